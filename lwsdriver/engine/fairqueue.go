// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// newQueue returns a rate-limited queue that serves namespaces in turn.
func newQueue(limiter workqueue.TypedRateLimiter[types.NamespacedName]) workqueue.TypedRateLimitingInterface[types.NamespacedName] {
	type key = types.NamespacedName
	ready := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[key]{Queue: &fairQueue{waiting: map[string][]key{}}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[key]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[key]{Queue: ready}),
	})
}

// fairQueue is a workqueue.Queue that takes one workload of each namespace in turn, so that many workloads of one namespace
// do not delay those of another. Within a namespace it is first in, first out. The workqueue has the lock.
type fairQueue struct {
	turns   []string // the namespaces in waiting, the next one first
	waiting map[string][]types.NamespacedName
	length  int
}

// Touch implements workqueue.Queue: a workload that is added again keeps its place.
func (q *fairQueue) Touch(types.NamespacedName) {}

// Push implements workqueue.Queue.
func (q *fairQueue) Push(key types.NamespacedName) {
	if len(q.waiting[key.Namespace]) == 0 {
		q.turns = append(q.turns, key.Namespace)
	}
	q.waiting[key.Namespace] = append(q.waiting[key.Namespace], key)
	q.length++
}

// Len implements workqueue.Queue.
func (q *fairQueue) Len() int { return q.length }

// Pop implements workqueue.Queue. The queue is not empty.
func (q *fairQueue) Pop() types.NamespacedName {
	ns := q.turns[0]
	q.turns = q.turns[1:]
	key, rest := q.waiting[ns][0], q.waiting[ns][1:]
	q.length--
	if len(rest) == 0 {
		delete(q.waiting, ns)
	} else {
		q.waiting[ns] = rest
		q.turns = append(q.turns, ns)
	}
	return key
}
