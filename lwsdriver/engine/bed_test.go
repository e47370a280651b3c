// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/test/await"
)

// bed is an Engine of a cluster of fake clients. It does not run unless a test runs it; until then its caches hold what it was
// made with.
type bed struct {
	*Engine
	*lwstest.Cluster

	t testing.TB
}

func newBed(t testing.TB, objects ...*lws.LeaderWorkerSet) *bed {
	t.Helper()
	return newBedOn(t, fake.NewClientset(), lwstest.NoRoutes(), objects...)
}

// newBedOn is newBed with other objects, too.
func newBedOn(t testing.TB, core *fake.Clientset, generic dynamic.Interface, objects ...*lws.LeaderWorkerSet) *bed {
	t.Helper()
	c := lwstest.NewCluster(t, core, generic, objects...)
	e, err := New(Config{
		Core: c.Core, Sets: c.Sets, Dynamic: generic, Log: slog.New(slog.DiscardHandler), Decided: lwstest.ReplayDecisions(t),
		Now: func() time.Time { return lwstest.Noon },
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Engine: e, Cluster: c, t: t}
	for _, w := range objects {
		lwstest.UpdateCache(t, e.Observer.Caches.Workloads, w)
	}
	return b
}

// routedBed is a bed of a release that routes requests.
type routedBed struct {
	*bed

	routes *dynamicfake.FakeDynamicClient
	canary *lws.LeaderWorkerSet
}

func newRoutedBed(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedBed {
	t.Helper()
	core, routes, canary := lwstest.RoutedRelease(t, stable, weight)
	return &routedBed{bed: newBedOn(t, core, routes, stable, canary), routes: routes, canary: canary}
}

// run runs the engine until the test ends.
func (b *bed) run() {
	b.t.Helper()
	lwstest.Run(b.t, func(ctx context.Context) error { b.Run(ctx); return nil })
}

// Synced reports whether calls can be served.
func (b *bed) Synced() bool { return b.Ready() == nil }

func (b *bed) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look observes default/vllm.
func (b *bed) look() *observe.Snapshot {
	b.t.Helper()
	s, err := b.Observe(lwstest.VLLM)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// next is what follows from a look.
func next(t testing.TB, s *observe.Snapshot) plan.Decision {
	t.Helper()
	d, err := plan.Decide(s.Observation, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
