// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// nodes is the number of nodes. A group is on one or on several.
const nodes = 2

func TestMain(m *testing.M) {
	flag.Parse()
	options := Options(nodes)
	if selected("TestInferencePool") {
		options = append(options, cluster.WithEndpointPicker())
	}
	if selected("TestDriverInCluster") {
		options = append(options, cluster.WithInstallers(), cluster.WithPrometheus())
	}
	build := func() error {
		if selected("TestDriverInCluster") {
			// The tests' network reaches no module proxy.
			download := exec.Command("go", "mod", "download")
			download.Dir, download.Stderr = filepath.Join("..", "..", "tools", "sbom"), os.Stderr
			if err := download.Run(); err != nil {
				return fmt.Errorf("download the modules of tools/sbom: %w", err)
			}
		}
		return cluster.Build(context.Background(), os.Stderr, options...)
	}
	run := func() int {
		defer driver.Cleanup()
		// Tests share two processors with their pods.
		return suite.Main(m, 2, options...)
	}
	os.Exit(cluster.MainOnNode(build, run))
}

// selected reports whether -run may select a test. What only that test needs is not built otherwise.
func selected(test string) bool {
	for pattern := range strings.SplitSeq(flag.Lookup("test.run").Value.String(), "|") {
		name, _, _ := strings.Cut(pattern, "/")
		if found, err := regexp.MatchString(name, test); found || err != nil {
			return true
		}
	}
	return false
}
