// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"flag"
	"os"
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
	build := func() error { return cluster.Build(context.Background(), os.Stderr, options...) }
	run := func() int {
		defer driver.Cleanup()
		// Tests share two processors with their pods.
		return suite.Main(m, 4, options...)
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
