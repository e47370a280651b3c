// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// bed is a driver of a cluster that is not real. It does not run unless a test runs it; until then its caches hold what
// it was made with.
type bed struct {
	*Driver
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
	return newBedWith(t, options{}, core, generic, objects...)
}

// newBedWith is newBedOn with options.
func newBedWith(t testing.TB, o options, core *fake.Clientset, generic dynamic.Interface, objects ...*lws.LeaderWorkerSet) *bed {
	t.Helper()
	c := lwstest.NewCluster(t, core, generic, objects...)
	o.log, o.now = slog.New(slog.DiscardHandler), func() time.Time { return lwstest.Noon }
	if o.decided == nil {
		o.decided = lwstest.ReplayDecisions(t)
	}
	d, err := newDriver(c.Core, c.Sets, generic, o)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Driver: d, Cluster: c, t: t}
	for _, w := range objects {
		b.cache(w)
	}
	return b
}

// cache shows an object to the driver as its informer would.
func (b *bed) cache(w *lws.LeaderWorkerSet) {
	lwstest.UpdateCache(b.t, b.engine.Observer.Caches.Workloads, w)
}

// run runs the driver until the test ends.
func (b *bed) run() {
	b.t.Helper()
	lwstest.Run(b.t, b.Run)
}

// end stops what a driver that does not run has started.
func (b *bed) end() {
	b.t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Run(ended); err != nil {
		b.t.Errorf("Run: %v", err)
	}
}

// eventually waits for what other goroutines bring about.
func (b *bed) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look is what the driver sees of default/vllm.
func (b *bed) look() *observe.Snapshot {
	b.t.Helper()
	s, err := b.engine.Observe(lwstest.VLLM)
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

// showPod shows a pod to the driver as its informer would.
func (b *bed) showPod(p *corev1.Pod) {
	b.t.Helper()
	object, err := observe.StripPod(p)
	if err != nil {
		b.t.Fatal(err)
	}
	v := object.(*observe.Pod)
	lwstest.UpdateCache(b.t, b.engine.Observer.Caches.Pods, v)
	b.engine.Observer.Caches.Groups.Invalidate(v.Workload(), v.Group)
}

// routedBed is a driver of a cluster in which a release of default/vllm routes its requests: the stable Service is fenced,
// the canary Service is there, and the route gives the canary a share that its gateway has taken.
type routedBed struct {
	*bed

	routes *dynamicfake.FakeDynamicClient
	canary *lws.LeaderWorkerSet
}

// newRoutedBed makes one of a workload and its canary, with a share of weight in the route.
func newRoutedBed(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedBed {
	t.Helper()
	return newRoutedBedWith(t, options{}, stable, weight)
}

// newRoutedBedWith is newRoutedBed with options.
func newRoutedBedWith(t *testing.T, o options, stable *lws.LeaderWorkerSet, weight int) *routedBed {
	t.Helper()
	core, routes, canary := lwstest.RoutedRelease(t, stable, weight)
	return &routedBed{bed: newBedWith(t, o, core, routes, stable, canary), routes: routes, canary: canary}
}

// synced runs the driver and returns once it sees the route.
func (b *routedBed) synced() *routedBed {
	b.t.Helper()
	b.run()
	b.eventually("the driver serves", b.Synced)
	b.eventually("the routes are seen", func() bool {
		s, err := b.engine.Observe(lwstest.VLLM)
		return err == nil && s.Traffic != nil && s.Traffic.Look(traffic.Desired{}).Reason != traffic.ReasonNotSynced
	})
	return b
}

// caughtUp waits until the driver sees what it wrote: these objects have no resourceVersion by which it could tell.
func (b *routedBed) caughtUp() {
	b.t.Helper()
	b.eventually("the record is seen", func() bool {
		live, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets("default").Get(b.t.Context(), "vllm", metav1.GetOptions{})
		seen := b.engine.Observer.Caches.Workload(lwstest.VLLM)
		return err == nil && seen != nil && live.Annotations[record.RecordAnnotation] == seen.Annotations[record.RecordAnnotation]
	})
}

// requested returns what the record of default/vllm requests.
func (b *routedBed) requested() *record.Traffic {
	b.t.Helper()
	return b.look().Record.Release.Traffic
}

func (b *bed) runSynced() {
	b.t.Helper()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Synced() && b.engine.Observer.History.Synced() })
}

// restingBed is a driver of a workload at rest.
func restingBed(t *testing.T, snapshots ...runtime.Object) *bed {
	t.Helper()
	core, w := lwstest.AtRest(t, snapshots...)
	return newBedOn(t, core, lwstest.NoRoutes(), w)
}
