// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// absent is how often a workload is looked for that does not exist yet, or whose driver is away.
const absent = 2 * time.Second

// follower watches workloads through the driver and tells of their changes.
type follower struct {
	driver Driver
	events chan event.TypedGenericEvent[*metav1.PartialObjectMetadata]
	// needed says whether a target still names the workload.
	needed func(context.Context, client.ObjectKey) bool

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // The manager's, under which the watches run.
	followed map[client.ObjectKey]bool
}

func newFollower(driver Driver, needed func(context.Context, client.ObjectKey) bool) *follower {
	return &follower{
		driver: driver, needed: needed, followed: map[client.ObjectKey]bool{},
		events: make(chan event.TypedGenericEvent[*metav1.PartialObjectMetadata]),
	}
}

// Start is called by the manager once this process leads.
func (f *follower) Start(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	for workload := range f.followed {
		go f.follow(ctx, workload)
	}
	f.mu.Unlock()
	<-ctx.Done()
	return nil
}

// watch begins to follow a workload, unless that is done already.
func (f *follower) watch(workload client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.followed[workload] {
		return
	}
	f.followed[workload] = true
	if f.ctx != nil {
		go f.follow(f.ctx, workload)
	}
}

// follow tells of each change of one workload, until no target names it any more.
func (f *follower) follow(ctx context.Context, workload client.ObjectKey) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace, Name: workload.Name}}
	ref := &pb.WorkloadRef{Namespace: workload.Namespace, Name: workload.Name}
	for ctx.Err() == nil {
		for _, err := range f.driver.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: true}) {
			if err != nil {
				break
			}
			select {
			case f.events <- event.TypedGenericEvent[*metav1.PartialObjectMetadata]{Object: o}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(absent):
		case <-ctx.Done():
			return
		}
		if !f.needed(ctx, workload) {
			f.mu.Lock()
			delete(f.followed, workload)
			f.mu.Unlock()
			return
		}
	}
}
