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

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// fixture is an Engine of a cluster of fake clients. It does not run unless a test runs it; until then its caches hold what it was
// made with.
type fixture struct {
	*Engine
	*lwstest.Cluster

	t testing.TB
}

func newFixture(t testing.TB, objects ...*lws.LeaderWorkerSet) *fixture {
	t.Helper()
	return newFixtureOn(t, fake.NewClientset(), lwstest.NoRoutes(), objects...)
}

// newFixtureOn is newFixture with other objects, too.
func newFixtureOn(t testing.TB, core *fake.Clientset, generic dynamic.Interface, objects ...*lws.LeaderWorkerSet) *fixture {
	t.Helper()
	c := lwstest.NewCluster(t, core, generic, objects...)
	e := New(Config{
		Config: observe.Config{
			Core: c.Core, Sets: c.Sets, Dynamic: generic, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return lwstest.Noon },
		},
		Decided: lwstest.ReplayDecisions(t),
	})
	b := &fixture{Engine: e, Cluster: c, t: t}
	for _, w := range objects {
		lwstest.UpdateCache(t, e.Observer.Caches.Workloads, w)
	}
	return b
}

// routedFixture is a fixture with a release that routes requests.
type routedFixture struct {
	*fixture

	routes *dynamicfake.FakeDynamicClient
	canary *lws.LeaderWorkerSet
}

func newRoutedFixture(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedFixture {
	t.Helper()
	core, routes, canary := lwstest.RoutedRelease(t, stable, weight)
	return &routedFixture{fixture: newFixtureOn(t, core, routes, stable, canary), routes: routes, canary: canary}
}

// run runs the engine until the test ends.
func (b *fixture) run() {
	b.t.Helper()
	lwstest.Run(b.t, func(ctx context.Context) error { b.Run(ctx); return nil })
}

// Synced reports whether calls can be served.
func (b *fixture) Synced() bool { return b.Ready() == nil }

func (b *fixture) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look observes default/vllm.
func (b *fixture) look() *observe.Snapshot {
	b.t.Helper()
	s, err := b.Observe(lwstest.VLLM)
	require.NoError(b.t, err)
	return s
}
