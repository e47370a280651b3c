// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/netns"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A Service that also selects workers: the checker reports it.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessFindsWorkers(t *testing.T) {
	e := serving.NewEnv(t)
	e.Deploy("model", 2)
	e.Service("stable", strings.ReplaceAll(serving.AllPods, "%s", "model"), 4)
	e.Route(serving.Only)
	e.Served()
	g := e.Load(load.Options{Rate: 300})
	g.Begin(load.Phase{Name: "workers selected", Want: load.Shares{"model": 100}})
	e.Await(g, 1000)
	report := e.Fails(g, "worker")
	row := report.Rows[len(report.Rows)-1]
	part := float64(row.ToWorkers) / float64(row.Checked)
	assert.False(t, part < 0.4 || part > 0.6, "%d of %d requests came to workers, want half", row.ToWorkers, row.Checked)
}

// One Service for both sides, without isolation: the share follows the pods, not the weights.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
// Proves (test): The request counter notices a missing isolation.
func TestHarnessFindsMissingIsolation(t *testing.T) {
	e := serving.NewEnv(t)
	for name, groups := range map[string]int{"model": 3, "model-canary": 1} {
		e.Deploy(name, groups)
	}
	e.Service("stable", `{leaderworkerset.sigs.k8s.io/worker-index: "0"}`, 4)
	e.Service("canary", serving.LeadersOf("model-canary"), 1)
	e.Route(serving.Split(90, 10))
	e.Served()
	g := e.Load(load.Options{Rate: 300})
	g.Begin(load.Phase{Name: "splitEnded", Want: load.Shares{"model": 90, "model-canary": 10}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	assert.Error(t, g.Await(ctx, 100), "a share of 67.5 % counts as 90 %")
	e.Fails(g, "model got")
}

// A leader whose worker is not ready is an endpoint all the same: the checker reports its requests.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessFindsUnreadyGroups(t *testing.T) {
	e := serving.NewEnv(t)
	e.Deploy("model", 3)
	e.Service("stable", serving.LeadersOf("model"), 3)
	e.Route(serving.Only)
	e.Served()
	g := e.Load(load.Options{Rate: 500})
	g.Begin(load.Phase{Name: "a worker turns unready"})
	e.Behave("model-2-1", cluster.BehaviorNeverReady)
	e.Await(g, 1000)
	e.Fails(g, string(podanswer.GroupUnready))
}

// A pod that is deleted while it serves a long request cuts it.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessFindsCutRequests(t *testing.T) {
	e := serving.NewEnv(t)
	e.Deploy("model", 2)
	e.Service("stable", serving.LeadersOf("model"), 2)
	e.Route(serving.Only)
	e.Served()
	g := e.Load(load.Options{Rate: 100, LongEvery: 2, LongFor: 3 * time.Second})
	e.Await(g, 100)
	suite.Delete(t, e.Kube.CoreV1().Pods(e.Namespace), "model-1")
	e.Await(g, 300)
	report := e.Fails(g, string(podanswer.Cut))
	assert.NotZero(t, report.Rows[0].Cut, "no request was cut")
}

func TestMain(m *testing.M) {
	build := func() error {
		return cluster.Build(context.Background(), os.Stderr, cluster.WithTraefik(), cluster.WithPrometheus())
	}
	run := func() int {
		defer driver.Cleanup()
		return cluster.Main(m, cluster.WithTraefik(), cluster.WithPrometheus(), cluster.WithManifest(deploy.Permissions))
	}
	os.Exit(netns.Main(build, run, cluster.PodCIDR))
}
