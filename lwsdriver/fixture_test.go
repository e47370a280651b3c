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
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// fixture is a driver of a cluster that is not real. It does not run unless a test runs it; until then its caches hold what
// it was made with.
type fixture struct {
	*Driver
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
	return newFixtureWith(t, Options{}, core, generic, objects...)
}

// newFixtureWith is newFixtureOn with options.
func newFixtureWith(t testing.TB, o Options, core *fake.Clientset, generic dynamic.Interface, objects ...*lws.LeaderWorkerSet) *fixture {
	t.Helper()
	c := lwstest.NewCluster(t, core, generic, objects...)
	o.Logger, o.now = slog.New(slog.DiscardHandler), func() time.Time { return lwstest.Noon }
	if o.Decided == nil {
		o.Decided = lwstest.ReplayDecisions(t)
	}
	d := newDriver(c.Core, c.Sets, generic, o)
	b := &fixture{Driver: d, Cluster: c, t: t}
	for _, w := range objects {
		b.cache(w)
	}
	return b
}

// cache shows an object to the driver as its informer would.
func (b *fixture) cache(w *lws.LeaderWorkerSet) {
	lwstest.UpdateCache(b.t, b.engine.Observer.Caches.Workloads, w)
	b.engine.Observer.Notify(observe.StableKey(w))
}

// run runs the driver until the test ends.
func (b *fixture) run() {
	b.t.Helper()
	lwstest.Run(b.t, b.Run)
}

// end stops what a driver that does not run has started.
func (b *fixture) end() {
	b.t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	assert.NoError(b.t, b.Run(ended), "Run")
}

// eventually waits for what other goroutines bring about.
func (b *fixture) eventually(what string, condition func() bool) {
	b.t.Helper()
	await.True(b.t, what, condition)
}

// look is what the driver sees of default/vllm.
func (b *fixture) look() *observe.Snapshot {
	b.t.Helper()
	s, err := b.engine.Observe(lwstest.VLLM)
	require.NoError(b.t, err)
	return s
}

// showPod shows a pod to the driver as its informer would.
func (b *fixture) showPod(p *corev1.Pod) {
	b.t.Helper()
	v := observe.NewPod(p)
	lwstest.UpdateCache(b.t, b.engine.Observer.Caches.Pods, v)
	b.engine.Observer.Caches.Groups.Invalidate(v.Workload(), v.Group)
	b.engine.Observer.Notify(v.Workload())
}

// routedFixture is a driver of a cluster in which a release of default/vllm routes its requests: the stable Service is isolated,
// the canary Service is there, and the route gives the canary a share that its gateway has taken.
type routedFixture struct {
	*fixture

	routes *dynamicfake.FakeDynamicClient
	canary *lws.LeaderWorkerSet
}

// newRoutedFixture makes one of a workload and its canary, with a share of weight in the route.
func newRoutedFixture(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedFixture {
	t.Helper()
	return newRoutedFixtureWith(t, Options{}, stable, weight)
}

// newRoutedFixtureWith is newRoutedFixture with options.
func newRoutedFixtureWith(t *testing.T, o Options, stable *lws.LeaderWorkerSet, weight int) *routedFixture {
	t.Helper()
	core, routes, canary := lwstest.RoutedRelease(t, stable, weight)
	return &routedFixture{fixture: newFixtureWith(t, o, core, routes, stable, canary), routes: routes, canary: canary}
}

// synced runs the driver and returns once it sees the route.
func (b *routedFixture) synced() *routedFixture {
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
func (b *routedFixture) caughtUp() {
	b.t.Helper()
	b.eventually("the record is seen", func() bool {
		live, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets("default").Get(b.t.Context(), "vllm", metav1.GetOptions{})
		seen := b.engine.Observer.Caches.Workload(lwstest.VLLM)
		return err == nil && seen != nil && live.Annotations[record.RecordAnnotation] == seen.Annotations[record.RecordAnnotation]
	})
}

// requested returns what the record of default/vllm requests.
func (b *routedFixture) requested() *record.Traffic {
	b.t.Helper()
	return b.look().Record.Release.Traffic
}

func (b *fixture) runSynced() {
	b.t.Helper()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Synced() && b.engine.Observer.History.Synced() })
}
