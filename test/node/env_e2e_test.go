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
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// groups is the number of groups of a workload, of two pods each.
const groups = 4

// maxUnavailable is that of LeaderWorkerSets by default.
const maxUnavailable = 1

// pushed is the model server's image, which is pushed once.
var pushed struct {
	once sync.Once
	err  error
}

// serve creates a workload of real containers behind a Service and a route, and a driver with the permissions of config/base.
func serve(t *testing.T, changes ...func(*lws.LeaderWorkerSet)) *serving.Release {
	t.Helper()
	e := serving.NewEnv(t)
	return serveBy(e, driver.Start(t, driver.Kubeconfig(t, e.Cluster), e.Namespace), changes...)
}

// serveBy is serve with another driver.
func serveBy(e *serving.Env, d *driver.Driver, changes ...func(*lws.LeaderWorkerSet)) *serving.Release {
	e.T.Helper()
	s := serving.Prepare(e, d)
	create(s, changes...)
	s.Expose()
	return s
}

// create creates the workload of a release, and returns when its groups are ready.
func create(s *serving.Release, changes ...func(*lws.LeaderWorkerSet)) {
	s.T.Helper()
	pushed.once.Do(func() { pushed.err = Push(context.Background(), s.Cluster, "v1", "v2") })
	require.NoError(s.T, pushed.err)
	s.Image = func(tag string) string { return Image(s.Cluster, tag) }
	w, err := Workload(s.Name, groups, s.Image("v1"))
	require.NoError(s.T, err)
	for _, change := range changes {
		change(w)
	}
	suite.Create(s.T, s.Sets(), w)
	s.Ready(s.Name, 2*groups)
}

// rate is the number of requests a second.
const rate = 25

// stream starts streaming requests of two seconds, and tells revisions apart.
func stream(s *serving.Release) *load.Generator {
	s.T.Helper()
	return s.Load(load.Options{
		Rate: rate, Stream: serving.Longest, Timeout: 20 * time.Second, Side: func(a podanswer.Answer) string { return a.Revision },
		Ready: s.ReadyGroups(),
	})
}

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
