// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// panicPause is the pause after a panic.
const panicPause = 250 * time.Millisecond

// Follower is a source of a controller: it watches the workloads under hold through the driver, in one stream, and enqueues the requests of
// each that changes. A host looks at its other workloads again by itself, until it has adopted them.
type Follower[R comparable] struct {
	// Driver is required.
	Driver plugin.WorkloadsWatcher
	// Requests returns what to enqueue when a workload changes whose last release is of an owner, "" if it has none. Required.
	Requests func(ctx context.Context, workload client.ObjectKey, owner string) []R
	// IncludeGroups is set where changes of single groups count.
	IncludeGroups bool
	// Logger is required.
	Logger *slog.Logger
}

var _ source.Source = Follower[reconcile.Request]{}

// Start watches until ctx ends.
func (f Follower[R]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	go wait.UntilWithContext(ctx, func(ctx context.Context) { // again after a panic
		_ = guard.Call(nil, "follower", "all workloads", func() { f.follow(ctx, queue) })
	}, panicPause)
	return nil
}

// follow enqueues the requests of workloads under hold until ctx ends.
func (f Follower[R]) follow(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) {
	enqueue := func(workload client.ObjectKey, owner string) {
		for _, request := range f.Requests(ctx, workload, owner) {
			queue.Add(request)
		}
	}
	watch := &pb.WatchWorkloadsRequest{IncludeGroups: f.IncludeGroups}
	held, connected := map[client.ObjectKey]string{}, false // by their owner
	failed := codes.OK
	for change, err := range plugin.FollowWorkloads(ctx, f.Driver, watch) {
		// A stream that ends is opened again. One that can't be opened needs a user, or a driver that starts.
		if code := status.Code(err); !connected && code != failed {
			f.Logger.Warn("the driver can't be watched, trying again", "error", err)
			failed = code
		}
		if err != nil && connected {
			for workload, owner := range held { // the loss of the driver is a change, too
				enqueue(workload, owner)
			}
		}
		if connected = err == nil; connected {
			failed = codes.OK
		}
		ref := cmp.Or(change.GetContext().GetWorkload(), change.GetRemoved())
		if ref == nil {
			continue
		}
		workload, owner := client.ObjectKey{Namespace: ref.GetNamespace(), Name: plugin.NameOf(ref)}, change.GetContext().GetOwner()
		if held[workload] = owner; change.GetRemoved() != nil {
			delete(held, workload)
		}
		enqueue(workload, owner)
	}
}
