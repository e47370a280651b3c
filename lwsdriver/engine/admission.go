// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

// admission limits how many groups all releases have in flight. Namespaces get their turns one after the other, and a namespace's releases in
// the order of the requests, however many groups one needs: the later ones wait behind it. A release that needs more than the limit runs
// alone.
type admission struct {
	// limit is the number of groups. 0 means no limit.
	limit int
	// wake is called with a workload that may be admitted now. It must not block.
	wake func(types.NamespacedName)

	mu sync.Mutex
	// counted is true once the releases of an earlier driver are counted; none starts groups before.
	counted bool
	flying  map[types.NamespacedName]int
	total   int
	queue   fair.Queue[types.NamespacedName]
}

// maxInFlight returns how many groups a release may have in flight, or nil if there is no limit.
func (t *admission) maxInFlight(key types.NamespacedName) *int {
	if t.limit == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.counted {
		return ptr.To(0)
	}
	if t.queue.Len() > 0 && t.nextInLine() != key {
		return ptr.To(0)
	}
	others := t.total - t.flying[key]
	if others == 0 {
		return ptr.To(math.MaxInt) // alone it may exceed the limit; nil would tell the planner that it never had to wait
	}
	return ptr.To(max(t.limit-others, 0))
}

// tryRecord counts the groups of a decision. A decision of the loop, which has no intent, also takes the release's place in the queue or gives
// it up. It returns false, and does nothing, if others have been admitted meanwhile.
func (t *admission) tryRecord(key types.NamespacedName, d plan.Decision, i plan.Intent) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, now := t.flying[key], d.InFlight+d.Starts
	others := t.total - before
	exceeds := t.limit > 0 && others > 0 && others+now > t.limit
	if exceeds && d.Starts > 0 {
		return false
	}
	t.total += now - before
	if now == 0 {
		delete(t.flying, key)
	} else {
		if t.flying == nil {
			t.flying = map[types.NamespacedName]int{}
		}
		t.flying[key] = now
	}
	first := t.nextInLine()
	if i == nil { // a call takes no place; the pass that follows it does, once the request is recorded
		t.queueOrRemove(key, d.Reason == plan.ReasonWaitingForAdmission)
	}
	// The next release gets no event when groups of others become ready. One that has just taken its place may have missed that, so it decides again.
	next := t.nextInLine()
	if next.Name != "" && (next != first || next != key && now < before) {
		t.wake(next)
	}
	return true
}

// queueOrRemove has a release that waits keep its place in the queue, or take the last one. Any other leaves the queue.
func (t *admission) queueOrRemove(key types.NamespacedName, waits bool) {
	if !waits {
		t.queue.Remove(key.Namespace, key)
	} else if !t.queue.Contains(key.Namespace, key) {
		t.queue.Push(key.Namespace, key)
	}
}

// nextInLine returns the release whose turn is next, or zero if none waits.
func (t *admission) nextInLine() types.NamespacedName {
	key, _ := t.queue.First()
	return key
}

// startAdmitting ends the count of earlier releases.
func (t *admission) startAdmitting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counted = true
	// The first one was refused only because nothing was counted yet.
	if t.queue.Len() > 0 {
		t.wake(t.nextInLine())
	}
}

// counts returns how many groups all releases have in flight, and how many releases wait for their turn.
func (t *admission) counts() (inFlight, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total, t.queue.Len()
}

// newQueue returns a rate-limited queue that serves namespaces in turn.
func newQueue(limiter workqueue.TypedRateLimiter[types.NamespacedName]) workqueue.TypedRateLimitingInterface[types.NamespacedName] {
	type key = types.NamespacedName
	ready := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[key]{Queue: &fairQueue{}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[key]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[key]{Queue: ready}),
	})
}

// fairQueue is a workqueue.Queue of workloads by namespace. The workqueue has the lock.
type fairQueue struct {
	fair.Queue[types.NamespacedName]
}

// Touch implements workqueue.Queue: a workload that is added again keeps its place.
func (q *fairQueue) Touch(types.NamespacedName) {}

// Push implements workqueue.Queue.
func (q *fairQueue) Push(key types.NamespacedName) { q.Queue.Push(key.Namespace, key) }
