// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// table is admission with a limit of 4, and who was woken.
type table struct {
	admission

	t     *testing.T
	woken []string
}

func newTable(t *testing.T) *table {
	t.Helper()
	b := &table{t: t}
	b.limit, b.wake = 4, func(key types.NamespacedName) { b.woken = append(b.woken, key.Name) }
	return b
}

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// decide records a decision of the loop for a release that has groups in flight and is to start more, and reports whether they
// start.
func (b *table) decide(name string, flying, more int) bool {
	b.t.Helper()
	d := plan.Decision{InFlight: flying, Starts: more}
	if room := b.maxInFlight(named(name)); more > 0 && room != nil && flying+more > *room {
		d.Starts, d.Reason = 0, plan.ReasonWaitingForAdmission
	}
	assert.True(b.t, b.tryRecord(named(name), d, nil), "%s had room, and is refused", name)
	return d.Reason == ""
}

func (b *table) wokenNow(want ...string) {
	b.t.Helper()
	assert.True(b.t, slices.Equal(b.woken, want), "woken %q, want %q", b.woken, want)
	b.woken = nil
}

func TestAdmission(t *testing.T) {
	b := newTable(t)
	b.startAdmitting()
	assert.True(t, b.decide("a", 0, 3) && b.decide("b", 0, 1), "a release waits although there is room")
	assert.False(t, b.decide("c", 0, 2) || b.decide("d", 0, 1), "a fifth group starts")
	b.wokenNow("c") // as the first that waits, it decides again
	b.decide("b", 0, 0)
	b.wokenNow("c")
	assert.False(t, b.decide("c", 0, 2) || b.decide("d", 0, 1), "d overtakes c, which needs more")
	b.decide("a", 1, 0)
	b.wokenNow("c")
	assert.True(t, b.decide("c", 0, 2), "the first in the queue waits although there is room")
	b.wokenNow("d")
	assert.True(t, b.decide("d", 0, 1), "the next in the queue waits although there is room")
	n, waiting := b.counts()
	assert.True(t, n == 4 && waiting == 0, "%d in flight, %d wait", n, waiting)
}

// A release that needs more than the limit runs once no other does, and one that gives up leaves the queue to the next.
func TestAdmissionOfLargeRelease(t *testing.T) {
	b := newTable(t)
	b.startAdmitting()
	b.decide("a", 0, 1)
	assert.False(t, b.decide("large", 0, 9) || b.decide("b", 0, 1), "started beside others, or before admission")
	b.wokenNow("large")
	b.decide("a", 0, 0)
	b.wokenNow("large")
	assert.True(t, b.decide("large", 0, 9), "it waits although it is alone")
	b.wokenNow("b")
	assert.False(t, b.decide("b", 0, 1) || b.decide("c", 0, 1), "another starts beside it")
	b.decide("b", 0, 0) // aborted
	b.wokenNow("c")
	b.tryRecord(named("large"), plan.Decision{}, nil) // deleted
	b.wokenNow("c")
	assert.True(t, b.decide("c", 0, 1), "the deleted release still counts")
}

// Until the releases of an earlier driver are counted, none starts groups. A call does not lose the place in the queue.
func TestAdmissionOfEarlierReleases(t *testing.T) {
	b := newTable(t)
	b.decide("a", 3, 0)
	assert.False(t, b.decide("b", 0, 2) || b.decide("c", 0, 1), "started before all are counted")
	b.wokenNow("b")
	b.startAdmitting()
	b.wokenNow("b")
	b.tryRecord(named("b"), plan.Decision{}, plan.SetTarget{})
	assert.False(t, b.decide("c", 0, 1), "a call has cost b its place")
}

// Of two workers that both saw room, the second has to decide again.
func TestAdmittedMeanwhile(t *testing.T) {
	b := newTable(t)
	b.startAdmitting()
	b.decide("a", 0, 1)
	seen := b.maxInFlight(named("b"))
	b.decide("c", 0, 2)
	d := (plan.Decision{Starts: 2})
	assert.True(t, *seen == 3 && !b.tryRecord(named("b"), d, nil), "saw room for %d, and 2 more were accepted", *seen)
	got := b.maxInFlight(named("b"))
	assert.Equal(t, 1, *got, "room for %d", *got)
	b.limit = 0
	assert.True(t, b.maxInFlight(named("b")) == nil && b.tryRecord(named("b"), plan.Decision{Starts: 99}, nil), "limited without a limit")
}

// A release that begins to wait while the groups of another become ready, or while the one before it gives up, is not left waiting for ever.
func TestAdmittedBeforeQueued(t *testing.T) {
	for name, meanwhile := range map[string]func(*table){
		"room":  func(b *table) { b.decide("a", 0, 0) },
		"front": func(b *table) { b.decide("first", 0, 0) },
	} {
		b := newTable(t)
		b.startAdmitting()
		if b.decide("a", 0, 4); name == "front" {
			b.decide("first", 0, 4)
		}
		room := b.maxInFlight(named("b"))
		assert.Zero(t, *room, "%s: room for %d", name, *room)
		b.woken = nil
		meanwhile(b)
		b.wokenNow()
		b.tryRecord(named("b"), plan.Decision{Reason: plan.ReasonWaitingForAdmission}, nil)
		b.wokenNow("b")
	}
}

// A release whose record has become unreadable neither keeps its place in the queue nor the groups it had in flight: others do not
// wait for a user to repair it.
func TestAdmissionOfUnreadableRelease(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	b := newFixture(t, stable)
	b.admission.limit, b.admission.counted = 4, true
	b.admission.wake = func(types.NamespacedName) {}
	b.admission.tryRecord(lwstest.VLLM, plan.Decision{InFlight: 3, Reason: plan.ReasonWaitingForAdmission}, nil)
	stable = stable.DeepCopy()
	stable.Annotations[record.RecordAnnotation] = "{"
	lwstest.UpdateCache(t, b.Observer.Caches.Workloads, stable)
	_, _, err := b.Reconcile(t.Context(), lwstest.VLLM)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, drivererr.Reason(err), err)
	n, waiting := b.admission.counts()
	assert.True(t, n == 0 && waiting == 0, "%d groups in flight and %d releases in the queue", n, waiting)
}

// A caller that reads the state while another worker writes sees the state before the write. Its decision does not count: the
// groups that the write starts would seem to be free for other releases.
func TestReadDoesNotCount(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	b.admission.limit, b.admission.counted = 4, true
	b.admission.tryRecord(lwstest.VLLM, plan.Decision{Starts: 3}, plan.SetTarget{})
	_, _, err := b.Look(lwstest.VLLM)
	require.NoError(t, err)
	n, _ := b.admission.counts()
	assert.Equal(t, 3, n, "%d groups in flight", n)
}

// A driver for one workload counts the releases that it drives. Others would count forever: it does not follow them.
func TestEarlierReleasesInScope(t *testing.T) {
	for scope, want := range map[types.NamespacedName]int{{}: 1, lwstest.VLLM: 0} {
		other := lwstest.InPhase(t, record.Progressing)
		other.Name, other.UID = "other", "other"
		b := newFixture(t, other, lwstest.Canary(t, other))
		b.admission.limit, b.locks.workload = 4, scope
		b.countEarlier()
		n, _ := b.admission.counts()
		assert.Equal(t, want, n, "for %q: %d groups in flight, want %d", scope, n, want)
	}
}

// A namespace with many releases delays one of another by one.
func TestAdmissionByNamespace(t *testing.T) {
	b := newTable(t)
	b.startAdmitting()
	b.tryRecord(named("flying"), plan.Decision{InFlight: 4}, nil)
	quiet := types.NamespacedName{Namespace: "quiet", Name: "vllm"}
	for _, key := range []types.NamespacedName{named("a"), named("b"), named("c"), quiet} {
		b.tryRecord(key, plan.Decision{Reason: plan.ReasonWaitingForAdmission}, nil)
	}
	var order []string
	for range 4 {
		first := b.nextInLine()
		order = append(order, first.Name)
		b.tryRecord(first, plan.Decision{}, nil)
	}
	want := []string{"a", "vllm", "b", "c"}
	assert.True(t, slices.Equal(order, want), "admitted %v, want %v", order, want)
}
