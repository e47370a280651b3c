// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// withoutWaiting returns a context for tests whose caches are not updated: a write succeeds and is not waited for.
func withoutWaiting(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 50*time.Millisecond)
}

// driftedHold is an adopted workload that the driver has something to write to.
func driftedHold(t *testing.T) *lws.LeaderWorkerSet {
	t.Helper()
	return lwstest.WithRecord(t, lwstest.Unrecorded(), record.Record{Saved: record.Native(record.Hold())})
}

// A failing pass is retried with backoff.
func TestFailingPassBacksOff(t *testing.T) {
	w := driftedHold(t)
	b := newFixture(t, w)
	b.FailPatches(func() error { return apierrors.NewInternalError(errors.New("no leader")) })
	for want := 1; want <= 3; want++ {
		b.workOn(t.Context(), lwstest.VLLM)
		got := b.queue.NumRequeues(lwstest.VLLM)
		require.Equal(t, want, got, "%d tries are counted after %d failed: the next one does not wait longer", got, want)
	}
	require.NoError(t, b.Observer.Caches.Workloads.GetIndexer().Delete(w))
	b.workOn(t.Context(), lwstest.VLLM)
	if got := b.queue.NumRequeues(lwstest.VLLM); got != 0 || b.LastError(lwstest.VLLM) != nil {
		t.Errorf("%d tries and %v are remembered of a deleted workload", got, b.LastError(lwstest.VLLM))
	}
}

// A panic is an error of the workload that it happened for, and is retried.
func TestPanicStaysWithItsWorkload(t *testing.T) {
	b := newFixture(t, driftedHold(t))
	b.FailPatches(func() error { panic("a defect") })
	for range 2 {
		b.workOn(t.Context(), lwstest.VLLM)
	}
	got := b.queue.NumRequeues(lwstest.VLLM)
	assert.Equal(t, 2, got, "%d tries are counted, want 2", got)
	if got := drivererr.Reason(b.LastError(lwstest.VLLM)); got != pb.ErrorReason_ERROR_REASON_INTERNAL {
		t.Errorf("trouble is %v, want INTERNAL", b.LastError(lwstest.VLLM))
	}
	if unlock, err := b.locks.lock(t.Context(), lwstest.VLLM); err != nil {
		t.Error(err)
	} else {
		unlock()
	}
}

// A lost race is not reported, unless every write conflicts.
func TestConflictsInARow(t *testing.T) {
	b := newFixture(t, driftedHold(t))
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "leaderworkersets"}, "vllm", errors.New("changed"))
	b.FailPatches(func() error { return conflict })
	for try := 1; try <= conflictReportThreshold+1; try++ {
		b.workOn(t.Context(), lwstest.VLLM)
		err := b.LastError(lwstest.VLLM)
		assert.False(t, (err != nil) != (try >= conflictReportThreshold) || err != nil && !drivererr.Retryable(err),
			"after %d conflicts in a row the error is %v", try, err)
	}
	b.setError(lwstest.VLLM, nil)
	b.workOn(t.Context(), lwstest.VLLM)
	assert.NoError(t, b.LastError(lwstest.VLLM), "a first conflict after a success counts as one more")
}

// Nothing is remembered of a workload once it is deleted.
func TestDeletedWorkloadIsForgotten(t *testing.T) {
	for name, scope := range map[string]types.NamespacedName{"all": {}, "one workload": lwstest.VLLM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t, lwstest.InPhase(t, record.Progressing))
			b.locks.workload = scope
			b.run()
			b.eventually("the driver serves", b.Synced)
			b.setError(lwstest.VLLM, errors.New("something"))
			require.NoError(t, b.Sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), lwstest.VLLM.Namespace, lwstest.VLLM.Name))
			b.eventually("all is forgotten", func() bool { return b.remembered() == 0 })
		})
	}
}

// remembered counts the workloads that the engine remembers; what the observer keeps is its own test.
func (b *fixture) remembered() int {
	b.memories.mu.Lock()
	defer b.memories.mu.Unlock()
	return len(b.memories.of)
}

// The writes of one pass are bounded by how much there is to write.
func TestWriteLimit(t *testing.T) {
	s := &observe.Snapshot{}
	got := writeLimit(s)
	assert.Equal(t, maxWrites, got, "%d without traffic", got)
	s.Added = []plan.Workload{{Groups: make([]plan.Group, 100)}}
	s.Setup = &traffic.Setup{Policy: traffic.Policy{StableService: "a", CanaryService: "b", Routes: make([]traffic.Key, 40)}}
	got = writeLimit(s)
	assert.GreaterOrEqual(t, got, maxWrites+100+2*40, "%d for 100 leaders and 40 routes", got)
}

// A batch of very many pods is labelled in several passes, between which others may have the workload, and no pod twice.
func TestLabelsYieldToOtherCalls(t *testing.T) {
	const size = 2*labelsAtOnce + 10
	core, stable, canary := lwstest.LabelledRelease(t, size)
	b := newFixtureOn(t, core, lwstest.NoRoutes(), stable, canary)
	b.config.ReadOnly = true // the passes are the test's
	b.run()
	b.eventually("the group is seen", func() bool {
		added := b.look().Added
		return b.Synced() && len(added) == 1 && len(added[0].Groups) == 1 && added[0].Groups[0].ReadyPods == size
	})
	for pass, want := range []int{labelsAtOnce, 2 * labelsAtOnce, size, size} {
		_, d, err := b.Reconcile(t.Context(), lwstest.VLLM)
		require.NoError(t, err)
		patches := 0
		for _, a := range b.Core.Actions() {
			if a.Matches("patch", "pods") {
				patches++
			}
		}
		state := pb.State_STATE_VERIFYING
		if want == size {
			state = pb.State_STATE_READY
		}
		require.True(t, patches == want && d.State == state,
			"pass %d: %d pods are labelled, want %d; %s, %s", pass, patches, want, d.State, d.Message)
	}
}

// An admission webhook that undoes each write of an object is named as the cause, after a few writes.
func TestUndoneWrite(t *testing.T) {
	core, stable, canary := lwstest.LabelledRelease(t, 1)
	canary.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "mutated"
	b := newFixtureOn(t, core, lwstest.NoRoutes(), stable, canary)
	b.config.ReadOnly = true // the passes are the test's
	b.run()
	b.eventually("the canary is seen", func() bool {
		added := b.look().Added
		return b.Synced() && len(added) == 1 && added[0].Drifted && len(added[0].Groups) == 1 && added[0].Groups[0].Ready
	})
	fakes.React(&b.Sets.Fake, "patch", "leaderworkersets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, canary, nil })
	_, _, err := b.Reconcile(t.Context(), lwstest.VLLM)
	reason := drivererr.Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_REJECTED, reason, "%s: %v", reason, err)
	lwstest.ErrorContains(t, err, "restore the template of "+canary.Name, "webhook")
	assert.LessOrEqual(t, len(b.Writes()), maxRepeats, "writes")
}

// A leader that is gone from the cache of pods before its group knows of that is decided about a few times, not until the limit of writes: the pass
// has lost a race, which is no defect.
func TestLeaderIsGone(t *testing.T) {
	b := newRoutedFixture(t, lwstest.RoutedPhase(t, record.Progressing, nil), 0)
	leader := observe.NewPod(lwstest.CanaryPod(b.canary.Name, "0"))
	lwstest.UpdateCache(t, b.Observer.Caches.Pods, leader)
	b.Observer.Caches.Groups.Invalidate(leader.Workload(), leader.Group)
	b.look()
	require.NoError(t, b.Observer.Caches.Pods.GetIndexer().Delete(leader))
	decisions := 0
	b.config.Decided = func(plan.Observation, plan.Intent, plan.Decision, error) { decisions++ }
	_, d, err := b.Reconcile(t.Context(), lwstest.VLLM)
	assert.True(t, IsConflict(err) && decisions == maxRepeats, "%v: %v after %d decisions", d.Action, err, decisions)
}

// An observation that panics is an error of its workload, and others are served.
func TestPoisonousObservation(t *testing.T) {
	other := lwstest.Unrecorded()
	other.Name, other.UID = "other", "other"
	b := newFixture(t, lwstest.Unrecorded(), other)
	b.config.Decided = func(o plan.Observation, _ plan.Intent, _ plan.Decision, _ error) {
		if o.Key == lwstest.VLLM {
			panic("a defect")
		}
	}
	b.workOn(t.Context(), lwstest.VLLM)
	if err := b.LastError(lwstest.VLLM); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL || !strings.Contains(err.Error(), lwstest.VLLM.String()) {
		t.Errorf("its error is %v", err)
	}
	_, _, err := b.Look(lwstest.VLLM)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_INTERNAL, drivererr.Reason(err), "a call gets %v", err)
	_, _, err = b.Look(types.NamespacedName{Namespace: other.Namespace, Name: other.Name})
	assert.NoError(t, err, "another workload")
}

func TestNoisyNamespaceDelaysAnotherByOneWorkload(t *testing.T) {
	q := newQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Millisecond, time.Second))
	defer q.ShutDown()
	for i := range 10_000 {
		q.Add(types.NamespacedName{Namespace: "noisy", Name: fmt.Sprint(i)})
	}
	quiet := types.NamespacedName{Namespace: "quiet", Name: "vllm"}
	for round := range 3 {
		q.Add(quiet)
		for taken := 1; ; taken++ {
			key, _ := q.Get()
			q.Done(key)
			if key == quiet {
				break
			}
			q.Add(key) // a noisy workload changes all the time
			require.LessOrEqual(t, taken, 1, "round %d: %d workloads of the noisy namespace came first, want at most one", round, taken)
		}
	}
	assert.Equal(t, 10_000, q.Len(), "workloads wait, want each noisy one once")
}
