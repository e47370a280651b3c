// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// noBatch makes rest ignore the state of the watch.
const noBatch int32 = -1

// space keeps equal requests Timing.Interval apart, for drivers that do not wait.
func (r *run) space(ctx context.Context, s step) {
	same := s.action == r.request.action && s.batch == r.request.batch && s.weight == r.request.weight
	if left := time.Until(r.requested.Add(r.timing.Interval)); same && left > 0 {
		r.rest(ctx, left, noBatch)
	}
	r.request, r.requested = s, time.Now()
}

// rest waits for d and shows the states of the watch. With a batch it ends early if the batch is no longer ready, so that the host
// requests it again.
func (r *run) rest(ctx context.Context, d time.Duration, batch int32) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case c := <-r.feed:
			if ready := r.hear(c); batch != noBatch && !ready {
				return
			}
		}
	}
}

// hear shows a state of the watch, and reports whether the batch is still ready. If it was so in the watch before, and is not any
// longer, its pause and its gates begin again, even if it is ready once more in the next response. A state from before the batch was
// ready, which the watch may show late, means nothing.
func (r *run) hear(c *pb.BatchContext) (ready bool) {
	r.show(c)
	switch ready = r.stillReady(c); {
	case ready && c.CurrentBatch != nil && c.GetCurrentBatch() == r.machine.cursor:
		r.seenReady = c.CurrentBatch
	case !ready && r.seenReady != nil && *r.seenReady == r.machine.cursor:
		r.seenReady, r.machine.readySince = nil, time.Time{}
	}
	return ready
}

// stillReady reports whether the pause of a ready batch continues.
func (r *run) stillReady(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_READY && c.GetUpdateRevision() == r.machine.revision && r.machine.hasWeight(c)
}

// watch follows the release in the background until ctx ends.
func (r *run) watch(ctx context.Context) {
	request := &pb.WatchBatchContextRequest{Workload: r.release.Workload, ReleaseId: r.release.ID, IncludeGroups: true}
	r.watchers.Go(func() {
		// The watch is a convenience: if the driver refuses it, the answers to requests still carry the state.
		_ = r.host.follow(ctx, request, func(c *pb.BatchContext) {
			select {
			case r.feed <- c:
			case <-ctx.Done():
			}
		})
	})
}
