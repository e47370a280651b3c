// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// faulty is a driver whose streams send one list after the other, each up to its error. Streams after the last one stay open.
type faulty struct {
	host.Watcher

	streams [][]any
}

func (d *faulty) WatchWorkloads(
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

func (*faulty) WatchBatchContext(
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

func TestObserveReportsALostDriver(t *testing.T) {
	t.Parallel()
	away := status.Error(codes.Unavailable, "away")
	synced := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}
	cases := map[string]struct {
		reason  string
		streams [][]any
		want    []string
	}{
		"Starting": {
			"a driver that starts is not lost", [][]any{{away}, {away}, {away}, {at("a"), synced, away}}, []string{"a", "synced", "lost"},
		},
		"Absent": {
			"one that stays away is", [][]any{{away}, {away}, {away}, {away}, {at("a"), synced, away}}, []string{"lost", "a", "synced", "lost"},
		},
		"Broken": {
			"a stream that breaks is reported at once, and so is each failed attempt",
			[][]any{{at("a"), synced, away}, {away}, {at("a"), synced, away}},
			[]string{"a", "synced", "lost", "lost", "a", "synced", "lost"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var got []string
				changes := plugin.FollowWorkloads(ctx, &faulty{streams: tc.streams}, &pb.WatchWorkloadsRequest{})
				err := host.Observe(changes, func(r *pb.WatchWorkloadsResponse) {
					what := r.GetContext().GetWorkload().GetName()
					if r.GetSynced() {
						what = "synced"
					}
					got = append(got, what)
				}, func(error) { got = append(got, "lost") })
				assert.NoError(t, err, "the end of the context is an error")
				assert.Empty(t, cmp.Diff(tc.want, got), "%s: -want, +got", tc.reason)
			})
		})
	}
}

func TestObserveReturnsARefusal(t *testing.T) {
	t.Parallel()
	seen := 0
	lost := func(err error) { t.Errorf("lost: %v", err) }
	err := host.Observe(plugin.Follow(t.Context(), &faulty{}, &pb.WatchBatchContextRequest{}), func(*pb.BatchContext) { seen++ }, lost)
	assert.True(t, status.Code(err) == codes.NotFound && seen == 1, "got %v after %d contexts", err, seen)
	forbidden := status.Error(codes.PermissionDenied, "no")
	changes := plugin.FollowWorkloads(t.Context(), &faulty{streams: [][]any{{forbidden}}}, &pb.WatchWorkloadsRequest{})
	err = host.Observe(changes, func(*pb.WatchWorkloadsResponse) {}, lost)
	assert.ErrorIs(t, err, forbidden)
}

// quiet is a driver whose first stream breaks after an hour without a change, that then restarts, and that has completed the
// release by the time it answers.
type quiet struct {
	host.Driver

	streams int
}

func (d *quiet) WatchBatchContext(
	ctx context.Context, _ *pb.WatchBatchContextRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	d.streams++
	stream := d.streams
	return func(yield func(*pb.BatchContext, error) bool) {
		switch stream {
		case 1:
			if !yield(&pb.BatchContext{State: pb.State_STATE_PROMOTING}, nil) {
				return
			}
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
			}
		case 3:
			yield(&pb.BatchContext{State: pb.State_STATE_COMPLETED}, nil)
			return
		}
		yield(nil, status.Error(codes.Unavailable, "the driver restarts"))
	}
}

// Patience is for a driver that does not answer, not for a workload that does not change.
func TestFollowReconnectsAfterAQuietStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		h := &host.Host{Driver: &quiet{}, Timing: host.Timing{Patience: time.Minute}}
		var states []pb.State
		err := h.Follow(ctx, release(nil).Workload, func(c *pb.BatchContext) {
			if states = append(states, c.GetState()); c.GetState() == pb.State_STATE_COMPLETED {
				stop()
			}
		})
		require.NoError(t, err, "Follow(...)")
		assert.Empty(t, cmp.Diff([]pb.State{pb.State_STATE_PROMOTING, pb.State_STATE_COMPLETED}, states), "states: -want, +got")
	})
}
