// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// watcher follows a workload across broken streams and driver restarts.
type watcher struct {
	driver  Driver
	timing  Timing
	request *pb.WatchBatchContextRequest
}

// run calls observe for each context until ctx ends, the driver refuses, or errors that may pass have lasted for
// Timing.Patience. It returns why. A stream on which nothing changes is no error, however long that lasts.
func (w *watcher) run(ctx context.Context, observe func(*pb.BatchContext)) error {
	lost, delay := time.Now(), w.timing.Backoff
	for {
		served := false
		err := w.stream(ctx, func(c *pb.BatchContext) {
			served = true
			observe(c)
		})
		if served {
			lost, delay = time.Now(), w.timing.Backoff
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.Unimplemented:
			return w.poll(ctx, observe)
		case !passing(err):
			return err
		case time.Since(lost) > w.timing.Patience:
			return gaveUp(w.timing.Patience, err)
		}
		sleep(ctx, delay)
		delay = min(2*delay, maxBackoff)
	}
}

// stream reads one stream to its end, which is an error always: one that the driver closed properly counts as one that
// broke.
func (w *watcher) stream(ctx context.Context, observe func(*pb.BatchContext)) error {
	for c, err := range w.driver.WatchBatchContext(ctx, w.request) {
		if err != nil {
			return err
		}
		observe(c)
	}
	return status.Error(codes.Unavailable, "the driver closed the watch")
}

// poll stands in for the stream of a driver that has none.
func (w *watcher) poll(ctx context.Context, observe func(*pb.BatchContext)) error {
	var last *pb.BatchContext
	for ; ctx.Err() == nil; sleep(ctx, w.timing.Interval) {
		response, err := w.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
			Workload: w.request.GetWorkload(), ReleaseId: w.request.GetReleaseId(), IncludeGroups: true,
		})
		if err != nil && !passing(err) {
			return err
		}
		if err == nil && !proto.Equal(last, response.GetContext()) {
			last = response.GetContext()
			observe(last)
		}
	}
	return ctx.Err()
}
