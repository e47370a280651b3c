// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"context"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// away is how often a driver is tried again that does not answer.
	away = 2 * time.Second
	// A workload that does not exist is looked for at growing intervals. Who sees it appear calls Watch, a little before the
	// driver has seen it, perhaps.
	absentFirst = 250 * time.Millisecond
	absentLast  = time.Minute
)

// Watcher is the part of a driver that a Follower needs.
type Watcher interface {
	WatchBatchContext(context.Context, *pb.WatchBatchContextRequest, ...grpc.CallOption) iter.Seq2[*pb.BatchContext, error]
}

// Follower watches workloads through the driver and tells of their changes. A manager runs it.
type Follower struct {
	// Events has an event for each change, with the workload's namespace and name.
	Events chan event.TypedGenericEvent[*metav1.PartialObjectMetadata]

	driver Watcher
	// needed says whether somebody still wants to know of the workload.
	needed func(context.Context, client.ObjectKey) bool
	// groups is whether changes of single groups count.
	groups bool

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // The manager's, under which the watches run.
	followed map[client.ObjectKey]chan struct{}
}

// NewFollower makes a Follower. needed says whether a workload is still to be followed; groups has it told of changes of
// single groups too.
func NewFollower(driver Watcher, groups bool, needed func(context.Context, client.ObjectKey) bool) *Follower {
	return &Follower{
		Events: make(chan event.TypedGenericEvent[*metav1.PartialObjectMetadata]),
		driver: driver, needed: needed, groups: groups, followed: map[client.ObjectKey]chan struct{}{},
	}
}

// Start is called by the manager once this process leads.
func (f *Follower) Start(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	for workload, again := range f.followed {
		go f.follow(ctx, workload, again)
	}
	f.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Watch begins to follow a workload. Where that is done already and the workload was not there, it is looked for again.
func (f *Follower) Watch(workload client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if again, followed := f.followed[workload]; followed {
		select {
		case again <- struct{}{}:
		default: // It will be looked for already.
		}
		return
	}
	again := make(chan struct{}, 1)
	f.followed[workload] = again
	if f.ctx != nil {
		go f.follow(f.ctx, workload, again)
	}
}

// follow tells of each change of one workload, until nobody needs it any more.
func (f *Follower) follow(ctx context.Context, workload client.ObjectKey, again <-chan struct{}) {
	absent := absentFirst
	for ctx.Err() == nil {
		seen, err := f.stream(ctx, workload)
		if seen {
			// That a workload is gone, or a driver, is a change too.
			f.tell(ctx, workload)
			absent = absentFirst
		}
		pause := away
		if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			pause, absent = absent, min(2*absent, absentLast)
		}
		select {
		case <-again:
			absent = absentFirst
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if f.forget(ctx, workload) {
			return
		}
	}
}

// stream tells of changes while the driver does and somebody needs them, and says whether there were any, and why it ended.
func (f *Follower) stream(ctx context.Context, workload client.ObjectKey) (seen bool, err error) {
	ref := &pb.WorkloadRef{Namespace: workload.Namespace, Name: workload.Name}
	for _, err := range f.driver.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: f.groups}) {
		if err != nil || !f.needed(ctx, workload) {
			return seen, err
		}
		seen = true
		f.tell(ctx, workload)
	}
	return seen, nil
}

// tell sends an event.
func (f *Follower) tell(ctx context.Context, workload client.ObjectKey) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: workload.Name}}
	select {
	case f.Events <- event.TypedGenericEvent[*metav1.PartialObjectMetadata]{Object: o}:
	case <-ctx.Done():
	}
}

// forget drops the workload unless somebody needs it.
func (f *Follower) forget(ctx context.Context, workload client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Under the lock, so that who calls Watch meanwhile is seen, or begins anew.
	if f.needed(ctx, workload) {
		return false
	}
	delete(f.followed, workload)
	return true
}
