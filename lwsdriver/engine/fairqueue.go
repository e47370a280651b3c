// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

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
