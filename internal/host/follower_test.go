// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// tape is a driver whose streams send what is on it, one stream after the other, each up to its error. The last one stays open.
type tape struct {
	streams [][]any
}

func (d *tape) WatchWorkloads(
	ctx context.Context, _ *pb.WatchWorkloadsRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		if len(d.streams) == 0 {
			<-ctx.Done()
			yield(nil, ctx.Err())
			return
		}
		items := d.streams[0]
		d.streams = d.streams[1:]
		for _, item := range items {
			if err, broken := item.(error); broken {
				yield(nil, err)
				return
			}
			if !yield(item.(*pb.WatchWorkloadsResponse), nil) {
				return
			}
		}
	}
}

func (*tape) WatchBatchContext(
	context.Context, *pb.WatchBatchContextRequest, ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	return func(yield func(*pb.BatchContext, error) bool) {
		if yield(&pb.BatchContext{Workload: &pb.WorkloadRef{Name: "a"}}, nil) {
			yield(nil, status.Error(codes.NotFound, "it went"))
		}
	}
}

func at(name string) *pb.WatchWorkloadsResponse {
	return &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{
		Context: &pb.BatchContext{Workload: &pb.WorkloadRef{Namespace: "ns", Name: name}},
	}}
}

func TestFollowerOutlivesStreams(t *testing.T) {
	t.Parallel()
	away := status.Error(codes.Unavailable, "away")
	settled := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}
	removed := func(name string) *pb.WatchWorkloadsResponse {
		return &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: &pb.WorkloadRef{Namespace: "ns", Name: name}}}
	}
	cases := map[string]struct {
		reason  string
		streams [][]any
		want    []string
	}{
		"Starting": {
			"a driver that starts is not lost", [][]any{{away}, {away}, {away}, {at("a"), settled}}, []string{"a", "synced"},
		},
		"Absent": {
			"one that stays away is", [][]any{{away}, {away}, {away}, {away}, {at("a"), settled}}, []string{"lost", "a", "synced"},
		},
		"Broken": {
			"a stream that breaks is told of at once, and what was removed meanwhile is reported",
			[][]any{{at("a"), at("b"), at("c"), settled, removed("c"), away}, {away}, {at("b"), settled}},
			[]string{"a", "b", "c", "synced", "c removed", "lost", "lost", "b", "a removed", "synced"},
		},
		"Closed": {
			"so is one that the driver ends", [][]any{{at("a"), settled}, {at("a"), settled}},
			[]string{"a", "synced", "lost", "a", "synced"},
		},
		"BrokenEarly": {
			"a stream that did not come to its end reports no workload as removed",
			[][]any{{at("a"), at("b"), settled, away}, {at("b"), away}, {at("a"), at("b"), settled}},
			[]string{"a", "b", "synced", "lost", "b", "lost", "a", "b", "synced"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var got []string
				f := host.Follower{Driver: &tape{tc.streams}, Lost: func(error) { got = append(got, "lost") }}
				err := f.Workloads(ctx, &pb.WatchWorkloadsRequest{}, func(r *pb.WatchWorkloadsResponse) {
					got = append(got, inAWord(r))
				})
				if err != nil {
					t.Errorf("the end of the context is an error: %v", err)
				}
				// The last stream of the tape ends as well.
				if last := len(got) - 1; got[last] == "lost" {
					got = got[:last]
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
				}
			})
		})
	}
}

func inAWord(r *pb.WatchWorkloadsResponse) string {
	switch change := r.GetChange().(type) {
	case *pb.WatchWorkloadsResponse_Removed:
		return change.Removed.GetName() + " removed"
	case *pb.WatchWorkloadsResponse_Synced:
		return "synced"
	default:
		return r.GetContext().GetWorkload().GetName()
	}
}

func TestFollowerEndsWhenItIsRefused(t *testing.T) {
	t.Parallel()
	seen := 0
	f := host.Follower{Driver: &tape{}, Lost: func(err error) { t.Errorf("lost: %v", err) }}
	err := f.Workload(t.Context(), &pb.WorkloadRef{}, func(*pb.BatchContext) { seen++ })
	if status.Code(err) != codes.NotFound || seen != 1 {
		t.Errorf("got %v after %d contexts", err, seen)
	}
	forbidden := status.Error(codes.PermissionDenied, "no")
	f.Driver = &tape{[][]any{{forbidden}}}
	err = f.Workloads(t.Context(), &pb.WatchWorkloadsRequest{}, func(*pb.WatchWorkloadsResponse) {})
	if !errors.Is(err, forbidden) {
		t.Errorf("got %v, want %v", err, forbidden)
	}
}
