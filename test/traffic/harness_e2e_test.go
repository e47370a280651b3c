// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/netns"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

// A release by hand, in the order of the engine: the harness measures the requested shares, no failure, and no misrouted
// request.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessMeasuresARelease(t *testing.T) {
	e := serving.NewEnv(t)
	t.Logf("namespace ready after %s", netns.SetupTime().Round(time.Millisecond))
	e.Deploy("model", 4)
	e.Service("stable", serving.LeadersOf("model"), 4)
	e.Deploy("model-canary", 2)
	e.Service("canary", serving.LeadersOf("model-canary"), 2)
	e.Route(serving.Only)
	e.Served()

	g := e.Load(load.Options{
		Rate: 600, LongEvery: 100, LongFor: 2 * time.Second,
		MatchEvery: 10, Match: http.Header{"X-Canary": {"yes"}},
	})
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	e.Await(g, 500)
	g.Begin(load.Phase{Name: "25 %", Want: load.Shares{"model": 75, "model-canary": 25}})
	e.Route(serving.Split(75, 25))
	e.Await(g, 3000)
	g.Begin(load.Phase{Name: "header match", Want: load.Shares{"model": 100}, WantMatch: "model-canary"})
	e.Route(`[
  {matches: [{headers: [{name: X-Canary, value: "yes"}]}], backendRefs: [{name: canary, port: 80}]},
  {backendRefs: [{name: stable, port: 80}]}]`)
	e.Await(g, 1500)
	g.Begin(load.Phase{Name: "back", Want: load.Shares{"model": 100}})
	e.Route(serving.Only)
	e.Await(g, 500)
	// Drained: long requests have had the time to finish.
	time.Sleep(4 * time.Second)
	g.Begin(load.Phase{Name: "canary deleted", Want: load.Shares{"model": 100}})
	e.Delete("model-canary")
	e.Await(g, 500)
	e.Passes(g)

	total := 0
	for name, count := range e.Pods.Counts() {
		if !strings.HasPrefix(name, e.Namespace+"/") {
			continue
		}
		total += count.Requests
		if len(count.Violations) > 0 {
			t.Errorf("pod %s: %v", name, count.Violations)
		}
	}
	if total == 0 {
		t.Error("the pods' own counters are empty")
	}
}

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
	if part := float64(row.ToWorkers) / float64(row.Checked); part < 0.4 || part > 0.6 {
		t.Errorf("%d of %d requests came to workers, want half", row.ToWorkers, row.Checked)
	}
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
	if err := g.Await(ctx, 100); err == nil {
		t.Error("a share of 67.5 % counts as 90 %")
	}
	e.Fails(g, "model got")
}

// A pod that becomes unready on its own loses some requests, and none once the endpoints have followed; so does a leader whose
// worker is not ready, while it is an endpoint.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessFollowsReadiness(t *testing.T) {
	e := serving.NewEnv(t)
	e.Deploy("model", 3)
	e.Service("stable", serving.LeadersOf("model"), 3)
	e.Route(serving.Only)
	e.Served()
	g := e.Load(load.Options{Rate: 500})
	g.Begin(load.Phase{Name: "a leader turns unready", MayFail: true})
	e.Behave("model-1", cluster.BehaviorNeverReady)
	e.Eventually("its endpoint is not ready", func(ctx context.Context) error { return e.HasEndpoints(ctx, "stable", 2) })
	e.Settled(g)
	g.Begin(load.Phase{Name: "settled", Want: load.Shares{"model": 100}})
	e.Await(g, 1000)
	g.Begin(load.Phase{Name: "ready again", Want: load.Shares{"model": 100}})
	e.Behave("model-1", "")
	e.Await(g, 1000)
	e.Passes(g)

	g = e.Load(load.Options{Rate: 500})
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
	if err := e.Kube.CoreV1().Pods(e.Namespace).Delete(t.Context(), "model-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Await(g, 300)
	if report := e.Fails(g, string(podanswer.Cut)); report.Rows[0].Cut == 0 {
		t.Error("no request was cut")
	}
}

// Traefik that is stopped loses requests, and serves the same routes on the same address when it is back.
//
// Proves: The request counter notices what it must: workers, no isolation, cut requests.
func TestHarnessGatewayRestart(t *testing.T) {
	e := serving.NewEnv(t)
	e.Deploy("model", 1)
	e.Service("stable", serving.LeadersOf("model"), 1)
	e.Route(serving.Only)
	e.Served()
	g := e.Load(load.Options{Rate: 200})
	g.Begin(load.Phase{Name: "restart", MayFail: true})
	if err := e.Cluster.StopComponent(t.Context(), cluster.Traefik); err != nil {
		t.Fatal(err)
	}
	if err := e.Cluster.StartComponent(t.Context(), cluster.Traefik); err != nil {
		t.Fatal(err)
	}
	e.Served()
	g.Begin(load.Phase{Name: "back", Want: load.Shares{"model": 100}})
	e.Await(g, 400)
	if report := e.Passes(g); report.Rows[len(report.Rows)-2].Failed == 0 {
		t.Error("nothing failed without a gateway")
	}
}
