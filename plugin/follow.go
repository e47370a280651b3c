// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ContextWatcher is the part of a driver that [Follow] needs.
type ContextWatcher interface {
	WatchBatchContext(
		context.Context, *pb.WatchBatchContextRequest, ...grpc.CallOption) iter.Seq2[*pb.BatchContext, error]
}

// WorkloadsWatcher is the part of a driver that [FollowWorkloads] needs.
type WorkloadsWatcher interface {
	WatchWorkloads(
		context.Context, *pb.WatchWorkloadsRequest, ...grpc.CallOption) iter.Seq2[*pb.WatchWorkloadsResponse, error]
}

var (
	_ ContextWatcher   = (*Client)(nil)
	_ WorkloadsWatcher = (*Client)(nil)
)

// minPause is the pause before the first reconnect, and maxPause the longest: each failure in a row doubles it.
const minPause, maxPause = 200 * time.Millisecond, 2 * time.Second

// Follow yields the state of a workload or of one of its releases, at once and after each change, across broken
// streams and restarts of the driver. It ends when ctx does, or when the caller leaves the loop.
//
// Follow yields an error each time that a stream ends, also when the driver closed it. If the caller stays in the loop,
// Follow pauses, for at most 2 seconds, and opens the next stream; so leave the loop for an error that is not [Retryable].
// After a reconnect the first state may be the one that was yielded last.
//
// A connection to a server has at most 100 calls in flight: use [FollowWorkloads] for many workloads.
func Follow(
	ctx context.Context, driver ContextWatcher, req *pb.WatchBatchContextRequest,
) iter.Seq2[*pb.BatchContext, error] {
	return reconnect(ctx, func() iter.Seq2[*pb.BatchContext, error] { return driver.WatchBatchContext(ctx, req) })
}

// FollowWorkloads yields each change of the workloads under hold, as [Client.WatchWorkloads] does, and reconnects as
// [Follow] does. A workload that left the hold while no stream was open is yielded as gone, before the next Synced.
func FollowWorkloads(
	ctx context.Context, driver WorkloadsWatcher, req *pb.WatchWorkloadsRequest,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		held := map[string]*pb.WorkloadRef{}
		var listed map[string]bool // by this stream
		responses := reconnect(ctx, func() iter.Seq2[*pb.WatchWorkloadsResponse, error] {
			listed = map[string]bool{}
			return driver.WatchWorkloads(ctx, req)
		})
		for r, err := range responses {
			switch change := r.GetChange().(type) {
			case *pb.WatchWorkloadsResponse_Context:
				ref := change.Context.GetWorkload()
				held[WorkloadKey(ref)], listed[WorkloadKey(ref)] = ref, true
			case *pb.WatchWorkloadsResponse_Removed:
				delete(held, WorkloadKey(change.Removed))
			case *pb.WatchWorkloadsResponse_Synced:
				for _, key := range slices.Sorted(maps.Keys(held)) {
					if listed[key] {
						continue
					}
					removed := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: held[key]}}
					delete(held, key)
					if !yield(removed, nil) {
						return
					}
				}
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// WorkloadKey returns the namespace and name of a workload, of a DisaggregatedSet with its type: one of each kind may have the same name.
func WorkloadKey(ref *pb.WorkloadRef) string { return ref.GetNamespace() + "/" + NameOf(ref) }

// reconnect yields what one stream after the other yields.
func reconnect[T any](ctx context.Context, open func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for delay := minPause; ctx.Err() == nil; delay = min(2*delay, maxPause) {
			ended := status.Error(codes.Unavailable, "the driver closed the watch")
			for item, err := range open() {
				if err != nil {
					ended = err
					break
				}
				// The driver is reached again, so the next pause is a short one.
				delay = minPause
				if !yield(item, nil) {
					return
				}
			}
			var none T
			if ctx.Err() != nil || !yield(none, ended) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(delay):
			}
		}
	}
}
