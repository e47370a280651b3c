// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// faulty is a driver that plays one list per stream: items, pauses without a change, and the error that ends it. The driver
// closes the stream of a list without an error. Streams after the last list stay open.
type faulty struct {
	plugin.ContextWatcher

	streams [][]any
}

func playStream[T any](ctx context.Context, s *faulty) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if len(s.streams) == 0 {
			<-ctx.Done()
			yield(none, ctx.Err())
			return
		}
		items := s.streams[0]
		s.streams = s.streams[1:]
		for _, item := range items {
			switch item := item.(type) {
			case time.Duration:
				<-time.After(item)
			case error:
				yield(none, item)
				return
			case T:
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}

func (s *faulty) WatchBatchContext(
	ctx context.Context, _ *pb.WatchBatchContextRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	return playStream[*pb.BatchContext](ctx, s)
}

func (s *faulty) WatchWorkloads(
	ctx context.Context, _ *pb.WatchWorkloadsRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return playStream[*pb.WatchWorkloadsResponse](ctx, s)
}

var (
	errAway     = status.Error(codes.Unavailable, "away")
	errMissing  = drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "missing")
	errUnserved = drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "unserved")
)

const closed = "the driver closed the watch"

func TestFollow(t *testing.T) {
	t.Parallel()
	first, second := &pb.BatchContext{Reason: "First"}, &pb.BatchContext{Reason: "Second"}
	cases := map[string]struct {
		reason string
		driver faulty
		want   []string
	}{
		"restart": {
			"a driver that is away is tried again with growing pauses, and at once after it has answered",
			faulty{streams: [][]any{{first, errAway}, {errAway}, {errAway}, {second}}},
			[]string{"0s First", "0s away", "200ms away", "600ms away", "1.4s Second", "1.4s " + closed},
		},
		"long outage": {
			"the pauses do not grow without end",
			faulty{streams: [][]any{{errAway}, {errAway}, {errAway}, {errAway}, {errAway}, {errAway}, {errAway}, {first, time.Hour}}},
			[]string{"0s away", "200ms away", "600ms away", "1.4s away", "3s away", "5s away", "7s away", "9s First", "1h0m9s " + closed},
		},
		"quiet stream": {
			"a stream without a change has not failed",
			faulty{streams: [][]any{{errAway}, {first, time.Hour, second, errAway}}},
			[]string{"0s away", "200ms First", "1h0m0.2s Second", "1h0m0.2s away"},
		},
		"absent workload": {
			"the caller decides which errors are final",
			faulty{streams: [][]any{{errMissing}, {first, errMissing}}},
			[]string{"0s missing", "200ms First", "200ms missing"},
		},
		"no watch": {
			"the caller learns that the driver serves none",
			faulty{streams: [][]any{{errUnserved}}},
			[]string{"0s unserved"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				var got []string
				start := time.Now()
				for c, err := range plugin.Follow(ctx, &tc.driver, &pb.WatchBatchContextRequest{}) {
					what := c.GetReason()
					if err != nil {
						what = status.Convert(err).Message()
					}
					got = append(got, fmt.Sprint(time.Since(start), " ", what))
				}
				assert.Empty(t, cmp.Diff(tc.want, got), "%s: -want, +got", tc.reason)
			})
		})
	}
}

func TestFollowWorkloads(t *testing.T) {
	t.Parallel()
	at := func(name string) *pb.WatchWorkloadsResponse {
		return &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{
			Context: &pb.BatchContext{Workload: &pb.WorkloadRef{Namespace: "ns", Name: name}},
		}}
	}
	gone := func(name string) *pb.WatchWorkloadsResponse {
		return &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: &pb.WorkloadRef{Namespace: "ns", Name: name}}}
	}
	synced := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}
	cases := map[string]struct {
		reason  string
		streams [][]any
		want    []string
	}{
		"broken": {
			"a workload that left the hold between two streams is gone",
			[][]any{{at("a"), at("b"), at("c"), synced, gone("c"), errAway}, {errAway}, {at("b"), synced}},
			[]string{"a", "b", "c", "synced", "c gone", "away", "away", "b", "a gone", "synced", closed},
		},
		"closed": {
			"a workload of the next stream is not gone", [][]any{{at("a"), synced}, {at("a"), synced}},
			[]string{"a", "synced", closed, "a", "synced", closed},
		},
		"broken before it was synced": {
			"a stream that has not listed all workloads reports none as gone",
			[][]any{{at("a"), at("b"), synced, errAway}, {at("b"), errAway}, {at("a"), at("b"), synced}},
			[]string{"a", "b", "synced", "away", "b", "away", "a", "b", "synced", closed},
		},
		"unserved": {
			"a driver without this watch says so", [][]any{{errUnserved}}, []string{"unserved"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var got []string
				for r, err := range plugin.FollowWorkloads(ctx, &faulty{streams: tc.streams}, &pb.WatchWorkloadsRequest{}) {
					what := r.GetContext().GetWorkload().GetName()
					switch {
					case err != nil:
						what = status.Convert(err).Message()
					case r.GetRemoved() != nil:
						what = r.GetRemoved().GetName() + " gone"
					case r.GetSynced():
						what = "synced"
					}
					got = append(got, what)
				}
				assert.Empty(t, cmp.Diff(tc.want, got), "%s: -want, +got", tc.reason)
			})
		})
	}
}
