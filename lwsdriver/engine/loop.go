// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
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

// labelsAtOnce is how many pods a pass labels before it lets others at the workload: a batch may have thousands, and a
// rollback must not wait for them.
const labelsAtOnce = 64

// labelLimit is how many pods a pass over the workload may label.
func labelLimit(s *observe.Snapshot) int {
	if s.Policy.RolloutID == "" {
		return 0
	}
	return labelsAtOnce
}

// labelWrites is 1 if the action labels a pod, else 0.
func labelWrites(a plan.Action) int {
	if _, ok := a.(plan.LabelGroup); ok {
		return 1
	}
	return 0
}

// writeLimit bounds the writes of one pass over the workload.
func writeLimit(s *observe.Snapshot) int {
	limit := maxWrites + labelLimit(s)
	if s.Setup != nil {
		limit += writesPerObject * len(s.Setup.Objects())
	}
	limit += len(s.History)
	for _, w := range append(s.Added, s.Stable) {
		limit += writesPerGroup * len(w.Groups)
	}
	return limit
}

// work takes workloads from the queue until the driver stops.
func (e *Engine) work(ctx context.Context) {
	for {
		key, quit := e.queue.Get()
		if quit {
			return
		}
		e.workOn(ctx, key)
		e.queue.Done(key)
	}
}

func (e *Engine) workOn(ctx context.Context, key types.NamespacedName) {
	start := time.Now()
	unlock, err := e.locks.lock(ctx, key)
	if err != nil {
		return
	}
	defer unlock()
	recheck, err := e.pass(ctx, key)
	e.metrics.reconciled(time.Since(start), err)
	switch {
	case err == nil:
		e.queue.Forget(key)
		if recheck > 0 {
			e.queue.AddAfter(key, recheck)
		}
	case ctx.Err() == nil:
		level := slog.LevelWarn
		if e.errors.get(key) == nil {
			level = slog.LevelDebug // somebody was faster; the next look is on its way
		}
		e.config.Log.Log(ctx, level, "release is stuck, will try again", slog.String("workload", key.String()), slog.Any("error", err))
		e.queue.AddRateLimited(key)
	}
	e.Observer.Changes.Notify(key)
}

// watch is work for a driver that writes nothing: it looks at what changed and tells those who wait, also when time
// alone changes what there is to say, such as at a progress deadline.
func (e *Engine) watch(context.Context) {
	for {
		key, quit := e.queue.Get()
		if quit {
			return
		}
		if _, decision, err := e.Look(key); err == nil && decision.Recheck > 0 {
			e.queue.AddAfter(key, decision.Recheck)
		}
		e.Observer.Changes.Notify(key)
		e.queue.Done(key)
	}
}

// pass is all the work on a workload until time or the cluster makes more. A panic is an error of this workload: a
// defect that one of them meets must not end the releases of the others.
func (e *Engine) pass(ctx context.Context, key types.NamespacedName) (recheck time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			e.config.Log.Error("panic", slog.String("workload", key.String()), slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
			err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL,
				"defect in the driver while it worked on %s; the driver's log has the details", key)
			e.errors.set(key, err)
		}
	}()
	decision, err := e.Reconcile(ctx, key)
	if err == nil && decision.Recheck == 0 && e.Observer.Caches.Workload(key) == nil {
		e.Observer.Forget(key)
		e.forget(key)
		e.Observer.ForgetPolicy(key)
	}
	return decision.Recheck, err
}

// Reconcile observes, plans and applies until there is nothing to write. The caller holds the workload's lock.
func (e *Engine) Reconcile(ctx context.Context, key types.NamespacedName) (plan.Decision, error) {
	for writes, labels := 0, 0; ; writes++ {
		s, decision, err := e.Look(key)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			s, decision, err = e.decide(e.Observer.ObserveGone(key))
		}
		if labels += labelWrites(decision.Action); labels > labelsAtOnce {
			e.queue.Add(key) // whoever waits for the workload goes first
			return decision, err
		}
		if err == nil && decision.Action != nil {
			e.announce(s, decision)
			do := e.Do
			if isHistory(decision.Action) {
				do = e.recordHistory
			}
			if _, err = do(ctx, s, decision.Action); err != nil && !drivererr.Retryable(err) {
				e.errors.refuse(key, err)
				return decision, err
			}
			if err == nil && writes >= writeLimit(s) {
				err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %d writes in a row and still not settled", key, writes)
			}
		}
		switch {
		case err != nil:
			e.errors.set(key, err)
			return decision, err
		case decision.Action == nil:
			e.announce(s, decision)
			e.errors.set(key, nil)
			return decision, nil
		}
	}
}

// Look observes a workload and plans what follows.
func (e *Engine) Look(key types.NamespacedName) (*observe.Snapshot, plan.Decision, error) {
	return e.decide(e.Observer.Observe(key))
}

// decide plans what follows from an observation.
func (e *Engine) decide(s *observe.Snapshot, err error) (*observe.Snapshot, plan.Decision, error) {
	if err != nil {
		return nil, plan.Decision{}, err
	}
	s.Refused = e.errors.refused(s.Key)
	decision, err := e.Decide(s, nil)
	if err != nil {
		return nil, decision, err
	}
	s.RecheckAfter(decision.Recheck)
	decision.Recheck = s.Recheck
	return s, decision, nil
}

// Decide has the planner decide. A nil intent asks what is left to do of what was requested before. The error has an
// ErrorReason.
func (e *Engine) Decide(s *observe.Snapshot, i plan.Intent) (plan.Decision, error) {
	decision, err := plan.Decide(s.Observation, i)
	if e.config.Decided != nil {
		e.config.Decided(s.Observation, i, decision, err)
	}
	return decision, observe.ContractError(err)
}

// Do applies one action, and records it in events and metrics. The caller holds the workload's lock.
func (e *Engine) Do(ctx context.Context, s *observe.Snapshot, action plan.Action) (wrote bool, err error) {
	wrote, err = e.Applier.Apply(ctx, s, action)
	e.metrics.applied(action, wrote, err)
	if err != nil {
		return false, observe.ContractError(fmt.Errorf("%s: %w", action, err))
	}
	if wrote {
		e.tellAutoscaler(s, action)
		e.tellAdoption(s, action)
		e.config.Log.Info(action.String(), slog.String("workload", s.Key.String()), slog.String("action", actionName(action)))
	}
	return wrote, nil
}
