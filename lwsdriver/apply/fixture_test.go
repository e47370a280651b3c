// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// fixture is an Applier of a cluster of fake clients. Its observer does not run unless a test runs it; until then its caches hold
// what it was made with.
type fixture struct {
	*Applier
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
	ignore := func(types.NamespacedName) {}
	o := observe.New(observe.Config{
		Core: c.Core, Sets: c.Sets, Dynamic: generic, Log: slog.New(slog.DiscardHandler), Changed: ignore, Deleted: ignore,
		Now: func() time.Time { return lwstest.Noon },
	})
	b := &fixture{Applier: New(c.Core, c.Sets, generic, o), Cluster: c, t: t}
	for _, w := range objects {
		b.cache(w)
	}
	return b
}

// restingFixture is a fixture with a workload at rest.
func restingFixture(t *testing.T) *fixture {
	t.Helper()
	core, w := lwstest.AtRest(t)
	return newFixtureOn(t, core, lwstest.NoRoutes(), w)
}

// cache shows a workload to the observer as its informer would.
func (b *fixture) cache(w *lws.LeaderWorkerSet) {
	b.t.Helper()
	lwstest.UpdateCache(b.t, b.observer.Caches.Workloads, w)
}

// showPod shows a pod to the observer as its informer would.
func (b *fixture) showPod(p *corev1.Pod) {
	b.t.Helper()
	v := observe.NewPod(p)
	lwstest.UpdateCache(b.t, b.observer.Caches.Pods, v)
	b.observer.Caches.Groups.Invalidate(v.Workload(), v.Group)
}

// run runs the observer until the test ends.
func (b *fixture) run() {
	b.t.Helper()
	lwstest.Run(b.t, func(ctx context.Context) error { b.observer.Run(ctx); return nil })
}

func (b *fixture) runSynced() {
	b.t.Helper()
	b.run()
	b.eventually("caches are filled", func() bool { return b.observer.Caches.Synced() && b.observer.History.Synced() })
}

func (b *fixture) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look observes default/vllm.
func (b *fixture) look() *observe.Snapshot {
	b.t.Helper()
	s, err := b.observer.Observe(lwstest.VLLM)
	require.NoError(b.t, err)
	return s
}
