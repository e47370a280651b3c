// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Follow calls observe with the state of the workload, at once and after each change, also across broken streams. It
// returns nil when ctx ends, and an error when the driver refuses or does not answer for Timing.Patience.
func (h *Host) Follow(ctx context.Context, ref *pb.WorkloadRef, observe func(*pb.BatchContext)) error {
	return h.follow(ctx, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: true}, observe)
}

func (h *Host) follow(ctx context.Context, req *pb.WatchBatchContextRequest, observe func(*pb.BatchContext)) error {
	timing := h.Timing.withDefaults()
	var lost time.Time // when the driver stopped answering; zero while it answers
	contexts := plugin.Follow(ctx, h.Driver, req,
		plugin.WithBackoff(timing.Backoff, maxBackoff), plugin.WithPollInterval(timing.Interval))
	for c, err := range contexts {
		switch {
		case err == nil:
			lost = time.Time{}
			observe(c)
		case !retryable(err):
			return err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > timing.Patience:
			return gaveUp(timing.Patience, err)
		}
	}
	return nil
}
