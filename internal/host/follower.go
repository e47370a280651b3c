// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"iter"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Watcher is the part of the contract that a Follower needs, as plugin.Client has it.
type Watcher interface {
	WatchBatchContext(
		context.Context, *pb.WatchBatchContextRequest, ...grpc.CallOption) iter.Seq2[*pb.BatchContext, error]
	WatchWorkloads(
		context.Context, *pb.WatchWorkloadsRequest, ...grpc.CallOption) iter.Seq2[*pb.WatchWorkloadsResponse, error]
}

var _ Watcher = (*plugin.Client)(nil)

// Follower watches for as long as somebody looks: streams that break are opened again, however long the driver is away.
// It may be used by several goroutines.
type Follower struct {
	// Driver is required.
	Driver Watcher
	// Lost is called when a stream breaks and for each attempt to open it again that fails; before anything was observed
	// not for the first second, in which a driver may start. What is observed next says that the driver is back. Required.
	Lost func(error)
	// Timing may be left zero. Patience does not matter.
	Timing Timing
}

// Workload calls observe with where a workload stands, groups included, at once and at each change, until ctx ends, which
// is no error, or the driver refuses.
func (f *Follower) Workload(ctx context.Context, ref *pb.WorkloadRef, observe func(*pb.BatchContext)) error {
	return keep(ctx, f, func() iter.Seq2[*pb.BatchContext, error] {
		return f.Driver.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: true})
	}, observe)
}

// Workloads calls observe with each change of the workloads under hold, until ctx ends, which is no error, or the driver
// refuses. What went while a stream was broken is observed as gone.
func (f *Follower) Workloads(ctx context.Context, req *pb.WatchWorkloadsRequest, observe func(*pb.WatchWorkloadsResponse)) error {
	known := map[string]*pb.WorkloadRef{}
	var fresh map[string]bool
	return keep(ctx, f, func() iter.Seq2[*pb.WatchWorkloadsResponse, error] {
		fresh = map[string]bool{}
		return f.Driver.WatchWorkloads(ctx, req)
	}, func(r *pb.WatchWorkloadsResponse) {
		switch change := r.GetChange().(type) {
		case *pb.WatchWorkloadsResponse_Context:
			ref := change.Context.GetWorkload()
			known[nameOf(ref)], fresh[nameOf(ref)] = ref, true
		case *pb.WatchWorkloadsResponse_Removed:
			delete(known, nameOf(change.Removed))
		case *pb.WatchWorkloadsResponse_Synced:
			// A stream begins with all that there are.
			for _, name := range slices.Sorted(maps.Keys(known)) {
				if !fresh[name] {
					observe(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: known[name]}})
					delete(known, name)
				}
			}
		}
		observe(r)
	})
}

func nameOf(ref *pb.WorkloadRef) string { return ref.GetNamespace() + "/" + ref.GetName() }

// keep reads one stream after the other.
func keep[T any](ctx context.Context, f *Follower, open func() iter.Seq2[T, error], observe func(T)) error {
	timing, quiet := f.Timing.withDefaults(), quietAttempts
	for delay := timing.Backoff; ; delay = min(2*delay, maxBackoff) {
		err := status.Error(codes.Unavailable, "the driver closed the watch")
		for item, broken := range open() {
			if broken != nil {
				err = broken
				break
			}
			delay, quiet = timing.Backoff, 0
			observe(item)
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // The end of ctx is how a caller stops.
		case !passing(err):
			return err
		}
		if quiet--; quiet < 0 {
			f.Lost(err)
		}
		sleep(ctx, delay)
	}
}
