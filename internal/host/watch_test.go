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
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
