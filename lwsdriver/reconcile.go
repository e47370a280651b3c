// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// maxWrites bounds the writes of one pass over a workload, but for those that follow from how much there is of it. No
	// release needs as many in a row; a defect might.
	maxWrites = 16
	// writesPerObject and writesPerGroup are how often one pass may write one object that carries requests, and mark one
	// leader.
	writesPerObject, writesPerGroup = 3, 2
)

// writeLimit bounds the writes of one pass over the workload.
func (s *seen) writeLimit() int {
	limit := maxWrites + s.labelLimit()
	if s.setup != nil {
		limit += writesPerObject * len(s.setup.Objects())
	}
	limit += len(s.History)
	for _, w := range append(s.Added, s.Stable) {
		limit += writesPerGroup * len(w.Groups)
	}
	return limit
}

// work takes workloads from the queue until the driver stops.
func (d *Driver) work(ctx context.Context) {
	for {
		key, quit := d.queue.Get()
		if quit {
			return
		}
		d.workOn(ctx, key)
		d.queue.Done(key)
	}
}

func (d *Driver) workOn(ctx context.Context, key types.NamespacedName) {
	start := time.Now()
	unlock, err := d.locks.lock(ctx, key)
	if err != nil {
		return
	}
	defer unlock()
	recheck, err := d.pass(ctx, key)
	d.metrics.reconciled(time.Since(start), err)
	switch {
	case err == nil:
		d.queue.Forget(key)
		if recheck > 0 {
			d.queue.AddAfter(key, recheck)
		}
	case ctx.Err() == nil:
		level := slog.LevelWarn
		if d.trouble.get(key) == nil {
			level = slog.LevelDebug // somebody was faster; the next look is on its way
		}
		d.log.Log(ctx, level, "release is stuck, will try again", slog.String("workload", key.String()), slog.Any("error", err))
		d.queue.AddRateLimited(key)
	}
	d.hub.notify(key)
}

// pass is all the work on a workload until time or the cluster makes more. A panic is an error of this workload: a
// defect that one of them meets must not end the releases of the others.
func (d *Driver) pass(ctx context.Context, key types.NamespacedName) (recheck time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			d.log.Error("panic", slog.String("workload", key.String()), slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
			err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL,
				"defect in the driver while it worked on %s; the driver's log has the details", key)
			d.trouble.set(key, err)
		}
	}()
	decision, err := d.reconcile(ctx, key)
	if err == nil && decision.Recheck == 0 && d.caches.workload(key) == nil {
		d.gone(key)
		d.observer.forgetPolicy(key)
	}
	return decision.Recheck, err
}

// reconcile observes, plans and applies until there is nothing to write. The caller holds the workload's lock.
func (d *Driver) reconcile(ctx context.Context, key types.NamespacedName) (plan.Decision, error) {
	for writes, labels := 0, 0; ; writes++ {
		s, decision, err := d.look(key)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			s, decision, err = d.decide(d.observer.observeGone(key))
		}
		if labels += labelWrites(decision.Action); labels > labelsAtOnce {
			d.queue.Add(key) // whoever waits for the workload goes first
			return decision, err
		}
		if err == nil && decision.Action != nil {
			d.announce(s, decision)
			do := d.do
			if isHistory(decision.Action) {
				do = d.recordHistory
			}
			if _, err = do(ctx, s, decision.Action); err != nil && !drivererr.Retryable(err) {
				d.trouble.refuse(key, err)
				return decision, err
			}
			if err == nil && writes >= s.writeLimit() {
				err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %d writes in a row and still not settled", key, writes)
			}
		}
		switch {
		case err != nil:
			d.trouble.set(key, err)
			return decision, err
		case decision.Action == nil:
			d.announce(s, decision)
			d.trouble.set(key, nil)
			return decision, nil
		}
	}
}

// look observes and plans.
func (d *Driver) look(key types.NamespacedName) (*seen, plan.Decision, error) {
	return d.decide(d.observer.observe(key))
}

// decide plans what follows from a look.
func (d *Driver) decide(s *seen, err error) (*seen, plan.Decision, error) {
	if err != nil {
		return nil, plan.Decision{}, err
	}
	s.Refused = d.trouble.refused(s.key)
	decision, err := d.plan(s, nil)
	if err != nil {
		return nil, decision, err
	}
	s.recheckAfter(decision.Recheck)
	decision.Recheck = s.recheck
	return s, decision, nil
}

// plan has the planner decide.
func (d *Driver) plan(s *seen, i plan.Intent) (plan.Decision, error) {
	decision, err := plan.Decide(s.Observation, i)
	if d.options.decided != nil {
		d.options.decided(s.Observation, i, decision, err)
	}
	return decision, contractError(err)
}

// do applies one action and tells people and metrics of it.
func (d *Driver) do(ctx context.Context, s *seen, action plan.Action) (wrote bool, err error) {
	wrote, err = d.applier.apply(ctx, s, action)
	d.metrics.applied(action, wrote, err)
	if err != nil {
		return false, contractError(fmt.Errorf("%s: %w", action, err))
	}
	if wrote {
		d.tellAutoscaler(s, action)
		d.tellAdoption(s, action)
		d.log.Info(action.String(), slog.String("workload", s.key.String()), slog.String("action", actionName(action)))
	}
	return wrote, nil
}

// awaitRead returns once the caches tell how the workload's requests stand. A driver that has just started fills those that
// a release before needed, and its host may be about to begin the next one.
func (d *Driver) awaitRead(ctx context.Context, key types.NamespacedName) {
	_ = d.until(ctx, key, durationpb.New(catchUpTimeout), func() (bool, error) {
		s, err := d.observer.observe(key)
		if err != nil {
			return false, err // whoever looks next is told
		}
		return !plan.Unread(s.Observation) && !d.scalers.pending(), nil
	})
}

// isConflict says whether the write lost a race, so that a fresh look may succeed.
func isConflict(err error) bool {
	return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_CONFLICT && !errors.Is(err, context.Canceled)
}
