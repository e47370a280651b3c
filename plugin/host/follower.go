// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// minAbsent is the first interval at which a workload that is not under hold is looked up again. If it does not exist, each lookup
	// costs the driver a request to the API server, so the interval doubles.
	minAbsent = 250 * time.Millisecond
	// maxAbsent is the longest of these intervals by default.
	maxAbsent = time.Minute
	// maxAway is the longest pause between two attempts to reach a driver that does not answer.
	maxAway = 2 * time.Second
)

// Watcher is the part of a driver that a Follower needs.
type Watcher interface {
	plugin.WorkloadsWatcher
	CalculateBatchContext(
		context.Context, *pb.CalculateBatchContextRequest, ...grpc.CallOption) (*pb.CalculateBatchContextResponse, error)
}

// Follower is a source of a controller: it watches workloads through the driver, and enqueues the requests of a workload whenever that
// changes. All workloads under hold share one watch. Others are looked up, for as long as they have requests.
type Follower[R comparable] struct {
	// Driver is required.
	Driver Watcher
	// Requests returns what to enqueue when a workload changes. Required.
	Requests func(context.Context, client.ObjectKey) []R
	// IncludeGroups is set where changes of single groups count.
	IncludeGroups bool
	// MaxAbsent is the longest interval at which a workload that is not under hold is looked up, by default one minute.
	MaxAbsent time.Duration

	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // The controller's, under which the watches run.
	queue workqueue.TypedRateLimitingInterface[R]
	// held are the workloads that the watch reports, absent those that are looked up.
	held   map[client.ObjectKey]bool
	absent map[client.ObjectKey]chan struct{}
}

var _ source.Source = (*Follower[reconcile.Request])(nil)

// Start is called by the controller, before Watch. The watches end with ctx.
func (f *Follower[R]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.queue, f.held, f.absent = ctx, queue, map[client.ObjectKey]bool{}, map[client.ObjectKey]chan struct{}{}
	go wait.UntilWithContext(ctx, func(ctx context.Context) { // again after a panic
		_ = guard.Call(nil, "follower", "all workloads", func() { f.followHeld(ctx) })
	}, minAbsent)
	return nil
}

// followHeld enqueues the requests of workloads under hold until ctx ends.
func (f *Follower[R]) followHeld(ctx context.Context) {
	watch := &pb.WatchWorkloadsRequest{IncludeGroups: f.IncludeGroups}
	connected := false
	for change, err := range plugin.FollowWorkloads(ctx, f.Driver, watch, plugin.WithBackoff(minAbsent, maxAway)) {
		if err != nil && connected {
			f.mu.Lock()
			held := slices.Collect(maps.Keys(f.held))
			f.mu.Unlock()
			for _, workload := range held { // the loss of the driver is a change, too
				f.enqueue(ctx, workload)
			}
		}
		connected = err == nil
		ref := cmp.Or(change.GetContext().GetWorkload(), change.GetRemoved())
		if ref == nil {
			continue
		}
		workload := client.ObjectKey{Namespace: ref.GetNamespace(), Name: plugin.NameOf(ref)}
		f.mu.Lock()
		if f.held[workload] = true; change.GetRemoved() != nil {
			delete(f.held, workload)
		}
		f.mu.Unlock()
		f.enqueue(ctx, workload)
	}
}

func (f *Follower[R]) enqueue(ctx context.Context, workload client.ObjectKey) {
	for _, request := range f.Requests(ctx, workload) {
		f.queue.Add(request)
	}
}

// Watch begins to look a workload up if it is not under hold. If that has begun already, it is looked up again at once: the
// caller has seen it appear, perhaps a little before the driver has.
func (f *Follower[R]) Watch(workload client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if again, absent := f.absent[workload]; absent {
		select {
		case again <- struct{}{}:
		default: // It will be looked up already.
		}
		return
	}
	if f.held[workload] {
		return
	}
	again := make(chan struct{}, 1)
	f.absent[workload] = again
	go f.lookUp(f.ctx, workload, again)
}

// lookUp enqueues the requests of a workload when its state changes, until it is under hold or has none, or ctx ends.
func (f *Follower[R]) lookUp(ctx context.Context, workload client.ObjectKey, again <-chan struct{}) {
	longest := cmp.Or(f.MaxAbsent, maxAbsent)
	request := &pb.CalculateBatchContextRequest{Workload: plugin.RefOf(workload.Namespace, workload.Name)}
	var last *pb.BatchContext
	for interval := minAbsent; ctx.Err() == nil; interval = min(2*interval, longest) {
		_ = guard.Call(nil, "follower", workload.String(), func() {
			// Without an answer the state is nil, as that of a workload that does not exist.
			response, _ := f.Driver.CalculateBatchContext(ctx, request)
			if state := response.GetContext(); !proto.Equal(state, last) {
				last, interval = state, minAbsent
				f.enqueue(ctx, workload)
			}
		})
		select {
		case <-again:
			interval = minAbsent
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
		if f.forget(ctx, workload) {
			return
		}
	}
}

// forget ends the lookups of a workload that is under hold, or has no requests.
func (f *Follower[R]) forget(ctx context.Context, workload client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Under the lock, so that a concurrent Watch either counts here or begins anew.
	if !f.held[workload] && len(f.Requests(ctx, workload)) > 0 {
		return false
	}
	delete(f.absent, workload)
	return true
}
