// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// minAbsent is the first interval at which a workload that does not exist is looked up again. Each lookup costs the
	// driver a request to the API server, so the interval doubles.
	minAbsent = 250 * time.Millisecond
	// maxAbsent is the longest of these intervals by default.
	maxAbsent = time.Minute
	// maxAway is the longest pause between two attempts to reach a driver that does not answer.
	maxAway = 2 * time.Second
)

// Follower is a source of a controller: it watches workloads through the driver, and enqueues the requests of a workload
// whenever that changes.
type Follower[R comparable] struct {
	// Driver is required.
	Driver plugin.ContextWatcher
	// Requests returns what to enqueue when a workload changes. A workload without requests is no longer followed.
	// Required.
	Requests func(context.Context, client.ObjectKey) []R
	// IncludeGroups is set where changes of single groups count.
	IncludeGroups bool
	// MaxAbsent is the longest interval at which a workload that does not exist is looked up. Zero: one minute.
	MaxAbsent time.Duration

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // The controller's, under which the watches run.
	queue    workqueue.TypedRateLimitingInterface[R]
	followed map[client.ObjectKey]chan struct{}
}

var _ source.Source = (*Follower[reconcile.Request])(nil)

// Start is called by the controller, before Watch. The watches end with ctx.
func (f *Follower[R]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.queue, f.followed = ctx, queue, map[client.ObjectKey]chan struct{}{}
	return nil
}

// Watch begins to follow a workload. If it is followed already but did not exist, it is looked up again at once: the
// caller has seen it appear, perhaps a little before the driver has.
func (f *Follower[R]) Watch(workload client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if again, followed := f.followed[workload]; followed {
		select {
		case again <- struct{}{}:
		default: // It will be looked up already.
		}
		return
	}
	again := make(chan struct{}, 1)
	f.followed[workload] = again
	go f.follow(f.ctx, workload, again)
}

// follow enqueues the requests of one workload until there are none, or ctx ends.
func (f *Follower[R]) follow(ctx context.Context, workload client.ObjectKey, again <-chan struct{}) {
	longest := f.MaxAbsent
	if longest == 0 {
		longest = maxAbsent
	}
	for absent := minAbsent; ctx.Err() == nil; absent = min(2*absent, longest) {
		ever := false
		if guard.Call(nil, "follower", workload.String(), func() { ever = f.exists(ctx, workload) }) == nil && ever {
			absent = minAbsent
		}
		select {
		case <-again:
			absent = minAbsent
		case <-time.After(absent):
		case <-ctx.Done():
			return
		}
		if f.forget(ctx, workload) {
			return
		}
	}
}

// exists follows a workload for as long as it exists and has requests. It reports whether it ever existed.
func (f *Follower[R]) exists(ctx context.Context, workload client.ObjectKey) (ever bool) {
	watch := &pb.WatchBatchContextRequest{
		Workload:      &pb.WorkloadRef{Namespace: workload.Namespace, Name: workload.Name},
		IncludeGroups: f.IncludeGroups,
	}
	connected := false
	for _, err := range plugin.Follow(ctx, f.Driver, watch, plugin.WithBackoff(minAbsent, maxAway)) {
		requests := f.Requests(ctx, workload)
		// The loss of a workload or of the driver is a change, too.
		if err == nil || connected {
			for _, request := range requests {
				f.queue.Add(request)
			}
		}
		connected = err == nil
		ever = ever || connected
		if len(requests) == 0 || plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			break
		}
	}
	return ever
}

// forget ends the following of a workload unless it has requests.
func (f *Follower[R]) forget(ctx context.Context, workload client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Under the lock, so that a concurrent Watch either counts here or begins anew.
	if len(f.Requests(ctx, workload)) > 0 {
		return false
	}
	delete(f.followed, workload)
	return true
}
