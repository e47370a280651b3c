// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// noBatch makes rest ignore what the watch says.
const noBatch int32 = -1

// space keeps equal requests Timing.Interval apart. A driver that honours `wait` takes longer than that by itself.
func (r *run) space(ctx context.Context, s step) {
	same := s.action == r.request.action && s.batch == r.request.batch && s.weight == r.request.weight
	if left := time.Until(r.requested.Add(r.timing.Interval)); same && left > 0 {
		r.rest(ctx, left, noBatch)
	}
	r.request, r.requested = s, time.Now()
}

// rest waits for d and shows what the watch brings. With a batch it ends early when the watch hints that the release is
// no longer ready there, so that the host looks at once.
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
			r.show(c)
			if batch != noBatch && !r.restful(c) {
				return
			}
		}
	}
}

// restful reports whether a pause may go on under c.
func (r *run) restful(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_READY && c.GetUpdateRevision() == r.machine.revision && r.machine.weighed(c)
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
