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
	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

// A release by hand, in the order of the engine: the harness measures the requested shares, no failure, and no misrouted
// request.
func TestHarnessMeasuresARelease(t *testing.T) {
	e := newEnv(t)
	t.Logf("namespace ready after %s", netns.SetupTime().Round(time.Millisecond))
	e.deploy("model", 4)
	e.service("stable", leadersOf("model"), 4)
	e.deploy("model-canary", 2)
	e.service("canary", leadersOf("model-canary"), 2)
	e.route(only)
	e.served()

	g := e.load(load.Options{
		Rate: 600, LongEvery: 100, LongFor: 2 * time.Second,
		MatchEvery: 10, Match: http.Header{"X-Canary": {"yes"}},
	})
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	e.await(g, 500)
	g.Begin(load.Phase{Name: "25 %", Want: load.Shares{"model": 75, "model-canary": 25}})
	e.route(split(75, 25))
	e.await(g, 3000)
	g.Begin(load.Phase{Name: "header match", Want: load.Shares{"model": 100}, WantMatch: "model-canary"})
	e.route(`[
  {matches: [{headers: [{name: X-Canary, value: "yes"}]}], backendRefs: [{name: canary, port: 80}]},
  {backendRefs: [{name: stable, port: 80}]}]`)
	e.await(g, 1500)
	g.Begin(load.Phase{Name: "back", Want: load.Shares{"model": 100}})
	e.route(only)
	e.await(g, 500)
	// Drained: long requests have had the time to finish.
	time.Sleep(4 * time.Second)
	g.Begin(load.Phase{Name: "canary deleted", Want: load.Shares{"model": 100}})
	e.delete("model-canary")
	e.await(g, 500)
	e.passes(g)

	total := 0
	for name, count := range e.pods.Counts() {
		if !strings.HasPrefix(name, e.namespace+"/") {
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
func TestHarnessFindsWorkers(t *testing.T) {
	e := newEnv(t)
	e.deploy("model", 2)
	e.service("stable", strings.ReplaceAll(allPods, "%s", "model"), 4)
	e.route(only)
	e.served()
	g := e.load(load.Options{Rate: 300})
	g.Begin(load.Phase{Name: "workers selected", Want: load.Shares{"model": 100}})
	e.await(g, 1000)
	report := e.fails(g, "worker")
	row := report.Rows[len(report.Rows)-1]
	if part := float64(row.ToWorkers) / float64(row.Checked); part < 0.4 || part > 0.6 {
		t.Errorf("%d of %d requests came to workers, want half", row.ToWorkers, row.Checked)
	}
}

// One Service for both sides, without a fence: the share follows the pods, not the weights.
func TestHarnessFindsMissingFence(t *testing.T) {
	e := newEnv(t)
	for name, groups := range map[string]int{"model": 3, "model-canary": 1} {
		e.deploy(name, groups)
	}
	e.service("stable", `{leaderworkerset.sigs.k8s.io/worker-index: "0"}`, 4)
	e.service("canary", leadersOf("model-canary"), 1)
	e.route(split(90, 10))
	e.served()
	g := e.load(load.Options{Rate: 300})
	g.Begin(load.Phase{Name: "unfenced", Want: load.Shares{"model": 90, "model-canary": 10}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := g.Await(ctx, 100); err == nil {
		t.Error("a share of 67.5 % counts as 90 %")
	}
	e.fails(g, "model got")
}

// A pod that becomes unready on its own loses some requests, and none once the endpoints have followed; so does a leader whose
// worker is not ready, while it is an endpoint.
func TestHarnessFollowsReadiness(t *testing.T) {
	e := newEnv(t)
	e.deploy("model", 3)
	e.service("stable", leadersOf("model"), 3)
	e.route(only)
	e.served()
	g := e.load(load.Options{Rate: 500})
	g.Begin(load.Phase{Name: "a leader turns unready", MayFail: true})
	e.behave("model-1", cluster.BehaviorNeverReady)
	e.eventually("its endpoint is not ready", func(ctx context.Context) error { return e.hasEndpoints(ctx, "stable", 2) })
	e.settled(g)
	g.Begin(load.Phase{Name: "settled", Want: load.Shares{"model": 100}})
	e.await(g, 1000)
	g.Begin(load.Phase{Name: "ready again", Want: load.Shares{"model": 100}})
	e.behave("model-1", "")
	e.await(g, 1000)
	e.passes(g)

	g = e.load(load.Options{Rate: 500})
	g.Begin(load.Phase{Name: "a worker turns unready"})
	e.behave("model-2-1", cluster.BehaviorNeverReady)
	e.await(g, 1000)
	e.fails(g, string(podserver.GroupUnready))
}

// A pod that is deleted while it serves a long request cuts it.
func TestHarnessFindsCutRequests(t *testing.T) {
	e := newEnv(t)
	e.deploy("model", 2)
	e.service("stable", leadersOf("model"), 2)
	e.route(only)
	e.served()
	g := e.load(load.Options{Rate: 100, LongEvery: 2, LongFor: 3 * time.Second})
	e.await(g, 100)
	if err := e.kube.CoreV1().Pods(e.namespace).Delete(t.Context(), "model-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await(g, 300)
	if report := e.fails(g, string(podserver.Cut)); report.Rows[0].Cut == 0 {
		t.Error("no request was cut")
	}
}

// The request rate that this machine can send: a measurement, without a limit.
func TestHarnessThroughput(t *testing.T) {
	e := newEnv(t)
	e.deploy("model", 4)
	e.service("stable", leadersOf("model"), 4)
	e.route(only)
	e.served()
	g := e.load(load.Options{Concurrency: 32, Duration: 5 * time.Second})
	g.Begin(load.Phase{Name: "maximum rate", Want: load.Shares{"model": 100}})
	e.await(g, 1000)
	time.Sleep(3 * time.Second)
	e.passes(g)
}

func leadersOf(name string) string { return strings.ReplaceAll(leaders, "%s", name) }

// delete deletes a LeaderWorkerSet and returns when its pods are deleted.
func (e *env) delete(name string) {
	e.t.Helper()
	e.deleteSet(name)
	e.eventually(name+" is deleted", func(ctx context.Context) error { return e.noPods(ctx, name) })
}

// passes ends the load, prints its table and fails the test for every problem.
func (e *env) passes(g *load.Generator) load.Report {
	e.t.Helper()
	report := g.End()
	report.Write(e.t.Output())
	for _, problem := range report.Problems() {
		e.t.Errorf("rule broken: %s", problem)
	}
	return report
}

// fails ends the load, prints its table and fails the test if the checker does not report the fault.
func (e *env) fails(g *load.Generator, want string) load.Report {
	e.t.Helper()
	report := g.End()
	report.Write(e.t.Output())
	if all := strings.Join(report.Problems(), "\n"); !strings.Contains(all, want) {
		e.t.Errorf("the problems do not name %q:\n%s", want, all)
	}
	return report
}

// Traefik that is stopped loses requests, and serves the same routes on the same address when it is back.
func TestHarnessGatewayRestart(t *testing.T) {
	e := newEnv(t)
	e.deploy("model", 1)
	e.service("stable", leadersOf("model"), 1)
	e.route(only)
	e.served()
	g := e.load(load.Options{Rate: 200})
	g.Begin(load.Phase{Name: "restart", MayFail: true})
	if err := e.cluster.StopComponent(t.Context(), cluster.Traefik); err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.StartComponent(t.Context(), cluster.Traefik); err != nil {
		t.Fatal(err)
	}
	e.served()
	g.Begin(load.Phase{Name: "back", Want: load.Shares{"model": 100}})
	e.await(g, 400)
	if report := e.passes(g); report.Rows[len(report.Rows)-2].Failed == 0 {
		t.Error("nothing failed without a gateway")
	}
}
