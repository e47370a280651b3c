// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"iter"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Follow calls observe with the state of the workload, at once and after each change, also across broken streams. It
// returns nil when ctx ends, and an error when the driver refuses or does not answer for Timing.Patience.
func (h *Host) Follow(ctx context.Context, ref *pb.WorkloadRef, observe func(*pb.BatchContext)) error {
	timing := h.Timing.withDefaults()
	var lost time.Time // when the driver stopped answering; zero while it answers
	for c, err := range plugin.Follow(ctx, h.Driver, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: true}) {
		switch {
		case err == nil:
			lost = time.Time{}
			observe(c)
		case !converge.Retryable(err):
			return err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > timing.Patience:
			return gaveUp(timing.Patience, err)
		}
	}
	return nil
}

// Watcher is the part of the contract that user interfaces follow, as plugin.Client has it.
type Watcher interface {
	plugin.ContextWatcher
	plugin.WorkloadsWatcher
}

// Observe calls observe with each item of plugin.Follow or plugin.FollowWorkloads for a user interface, however long the driver is away.
// It returns nil when their context ends, and the driver's error when the driver refuses.
//
// It calls lost when a stream breaks and for each attempt to open it again that fails. Before the first item it does not for about a
// second, in which a driver may start. The next item means that the driver is back.
func Observe[T any](items iter.Seq2[T, error], observe func(T), lost func(error)) error {
	quiet := quietAttempts
	for item, err := range items {
		if err == nil {
			quiet = 0
			observe(item)
			continue
		}
		if !converge.Retryable(err) {
			return err
		}
		if quiet--; quiet < 0 {
			lost(err)
		}
	}
	return nil
}
