// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

func TestKeyLocks(t *testing.T) {
	var l keyLocks
	unlock, err := l.lock(t.Context(), lwstest.VLLM)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.lock(ctx, lwstest.VLLM)
	assert.ErrorIs(t, err, context.Canceled, "a second lock with an ended context")
	second := make(chan struct{})
	go func() {
		defer close(second)
		if unlock, err := l.lock(context.Background(), lwstest.VLLM); err == nil {
			unlock()
		}
	}()
	unlock()
	<-second
	l.mu.Lock()
	defer l.mu.Unlock()
	assert.Empty(t, l.locks, "unused locks are kept")
}

// A name means the object of that name, or else the one that has it as an alias by label and record.
func TestResolve(t *testing.T) {
	other := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-new"}
	for _, tt := range []struct {
		name, reason string
		objects      []*lws.LeaderWorkerSet
		want         types.NamespacedName
	}{
		{"no object", "the name itself", nil, lwstest.VLLM},
		{"itself", "an object's own name takes precedence", []*lws.LeaderWorkerSet{lwstest.InPhase(t, record.Promoted), lwstest.HandedOver(t)}, lwstest.VLLM},
		{"adopted", "it keeps the old name as an alias", []*lws.LeaderWorkerSet{lwstest.HandedOver(t)}, other},
		{"adopted twice", "and so it does the second time", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Predecessor = "vllm-old" }),
		}, other},
		{"one after the other", "the first has not been deleted yet", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, r *record.Record) {
				w.Name, w.UID, r.UID, r.Predecessor = "vllm-newer", "newer", "newer", "vllm-new"
			}),
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) {
				r.Release.Phase, r.Release.Successor = record.HandingOver, "vllm-newer"
			}),
		}, other},
		{"two", "the alias is ambiguous", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t), lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, r *record.Record) { w.Name, w.UID, r.UID = "vllm-newer", "newer", "newer" }),
		}, lwstest.VLLM},
		{"copied", "the record is another object's", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.UID = "copy" }),
		}, lwstest.VLLM},
		{"label alone", "labels are copied", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Workload = "" }),
		}, lwstest.VLLM},
		{"record alone", "removing the label removes the alias", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.Labels = nil }),
		}, lwstest.VLLM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, tt.objects...)
			assert.Equal(t, tt.want, b.Observer.Caches.Resolve(lwstest.VLLM), "%s: default/vllm means", tt.reason)
			assert.Equal(t, other, b.Observer.Caches.Resolve(other), "its own name means")
		})
	}
	b := newFixture(t, lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Predecessor = "vllm-old" }))
	before := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-old"}
	assert.Equal(t, other, b.Observer.Caches.Resolve(before), "the name of the object before means")
	b.locks.workload = before
	assert.True(t, b.locks.covers(other), "a driver of the object before does not work on its successor")
	b.locks.workload = lwstest.VLLM
	assert.True(t, b.locks.covers(other) && !b.locks.covers(types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "another"}),
		"a driver of default/vllm does not cover the workload with that alias, or covers others")
}

// A driver of one DisaggregatedSet says so.
func TestScopeNamesItsWorkload(t *testing.T) {
	s := scope{workload: observe.KeyFor(observe.KindSet, "default", "llm")}
	_, err := s.lock(t.Context(), lwstest.VLLM)
	assert.ErrorContains(t, err, "started for DisaggregatedSet default/llm only")
}

// A look is kept until a change of its workload is notified, a pass ends, or the time comes at which the decision may change.
func TestLookIsKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fixture, time.Duration)
		kept   bool
	}{
		{"nothing", func(*fixture, time.Duration) {}, true},
		{"just before the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck - 1) }, true},
		{"the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck) }, false},
		{"a change", func(b *fixture, _ time.Duration) { b.Observer.Notify(lwstest.VLLM) }, false},
		{"a change of another workload", func(b *fixture, _ time.Duration) { b.Observer.Notify(types.NamespacedName{Name: "other"}) }, true},
		{"a pass", func(b *fixture, _ time.Duration) { _, _, _ = b.Reconcile(t.Context(), lwstest.VLLM) }, false},
		{"it was deleted", func(b *fixture, _ time.Duration) { b.forget(lwstest.VLLM) }, false},
		{"a cache is stale", func(b *fixture, _ time.Duration) { b.Observer.Freshness = stale(b.t) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, lwstest.InPhase(t, record.Progressing))
			before, d, err := b.Look(lwstest.VLLM)
			require.True(t, err == nil && d.Recheck != 0, "%+v, %v", d, err)
			tt.change(b, d.Recheck)
			after, _, err := b.Look(lwstest.VLLM)
			assert.True(t, err == nil && (after == before) == tt.kept, "kept %t, %v", after == before, err)
		})
	}
}

// refusing is a client whose watch the API server refuses.
type refusing struct{}

func (refusing) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (refusing) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewTooManyRequestsError("later")
}

func (refusing) IsWatchListSemanticsUnSupported() bool { return true }

// stale returns the Freshness of a cache that the API server does not confirm.
func stale(t testing.TB) *informer.Freshness {
	t.Helper()
	source := informer.NewSource(corev1.SchemeGroupVersion.WithResource("pods"), refusing{}, refusing{}, "")
	go source.Informer(&corev1.Pod{}, nil).RunWithContext(t.Context())
	f := informer.NewFreshness(func() {}, source)
	for len(f.Of()) == 0 {
		runtime.Gosched()
	}
	return f
}

// at sets the clock to so long after noon.
func (b *fixture) at(after time.Duration) {
	b.config.Now = func() time.Time { return lwstest.Noon.Add(after) }
}

// Those who look while a call observes wait for what it observes: a change wakes many at once.
func TestLookIsShared(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	const callers = 10
	var started sync.WaitGroup
	var decided atomic.Int32
	b.config.Decided = func(plan.Observation, plan.Intent, plan.Decision, error) {
		decided.Add(1)
		started.Wait()
	}
	seen := make(chan *observe.Snapshot, callers)
	started.Add(callers)
	for range callers {
		go func() {
			started.Done()
			s, _, _ := b.Look(lwstest.VLLM)
			seen <- s
		}()
	}
	first := <-seen
	for range callers - 1 {
		assert.True(t, first == <-seen, "another snapshot")
	}
	assert.EqualValues(t, 1, decided.Load(), "observations")
}

// What is observed while a change comes may be from before it, so it is not kept.
func TestLookDuringChangeIsNotKept(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	b.config.Decided = func(plan.Observation, plan.Intent, plan.Decision, error) { b.Observer.Notify(lwstest.VLLM) }
	before, _, _ := b.Look(lwstest.VLLM)
	after, _, err := b.Look(lwstest.VLLM)
	assert.True(t, err == nil && after != before, "kept %t, %v", after == before, err)
}

// A decision that depends on what other workloads become is made anew each time.
func TestLookThatDependsOnOthersIsNotKept(t *testing.T) {
	rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, "vllm-new", 4
	b := newFixture(t, lwstest.WithRecord(t, lwstest.InPhase(t, record.Promoting), *rec))
	before, _, _ := b.Look(lwstest.VLLM)
	after, _, err := b.Look(lwstest.VLLM)
	assert.True(t, err == nil && after != before, "kept %t, %v", after == before, err)
}
