// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/test/await"
)

// bed is an Observer of a cluster of fake clients. It does not run unless a test runs it; until then its caches hold what it
// was made with.
type bed struct {
	*Observer
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
	ignore := func(types.NamespacedName) {}
	o, err := New(Config{
		Core: c.Core, Sets: c.Sets, Dynamic: generic, Log: slog.New(slog.DiscardHandler), Changed: ignore, Deleted: ignore,
		Now: func() time.Time { return lwstest.Noon },
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Observer: o, Cluster: c, t: t}
	for _, w := range objects {
		b.cache(w)
	}
	return b
}

// routedBed is a bed of a release that routes requests.
type routedBed struct {
	*bed

	canary *lws.LeaderWorkerSet
}

func newRoutedBed(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedBed {
	t.Helper()
	core, routes, canary := lwstest.RoutedRelease(t, stable, weight)
	return &routedBed{newBedOn(t, core, routes, stable, canary), canary}
}

// restingBed is a bed of a workload at rest, with the history that snapshots are.
func restingBed(t *testing.T, snapshots ...runtime.Object) *bed {
	t.Helper()
	core, w := lwstest.AtRest(t, snapshots...)
	return newBedOn(t, core, lwstest.NoRoutes(), w)
}

// cache shows a workload to the observer as its informer would.
func (b *bed) cache(w *lws.LeaderWorkerSet) {
	b.t.Helper()
	lwstest.UpdateCache(b.t, b.Caches.Workloads, w)
}

// showPod shows a pod to the observer as its informer would.
func (b *bed) showPod(p *corev1.Pod) {
	b.t.Helper()
	v := view(b.t, p)
	lwstest.UpdateCache(b.t, b.Caches.Pods, v)
	b.Caches.Groups.Invalidate(v.Workload(), v.Group)
}

// run runs the observer until the test ends.
func (b *bed) run() {
	b.t.Helper()
	lwstest.Run(b.t, func(ctx context.Context) error { b.Run(ctx); return nil })
}

func (b *bed) runSynced() {
	b.t.Helper()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Caches.Synced() && b.History.Synced() })
}

func (b *bed) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look observes default/vllm.
func (b *bed) look() *Snapshot {
	b.t.Helper()
	s, err := b.Observe(lwstest.VLLM)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// next is what follows from a look.
func next(t testing.TB, s *Snapshot) plan.Decision {
	t.Helper()
	d, err := plan.Decide(s.Observation, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
