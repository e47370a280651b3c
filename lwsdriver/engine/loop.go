// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

const (
	// maxWrites bounds the writes of one pass over a workload, apart from those that scale with its size. Only a defect makes more
	// in a row.
	maxWrites = 16
	// writesPerObject and writesPerGroup bound how often one pass writes an object that carries requests, or a leader.
	writesPerObject, writesPerGroup = 3, 2
)

// labelsAtOnce is how many pods a pass labels before it releases the lock: a batch may have thousands, and a rollback must not
// wait for them.
const labelsAtOnce = 64

// writeLimit bounds the writes of one pass over the workload.
func writeLimit(s *observe.Snapshot) int {
	limit := maxWrites + len(s.History)
	if s.Policy.RolloutID != "" {
		limit += labelsAtOnce
	}
	if s.Setup != nil {
		limit += writesPerObject * len(s.Setup.Objects())
	}
	for _, w := range s.Workloads() {
		limit += writesPerGroup * len(w.Groups)
	}
	return limit
}

// work takes workloads from the queue until the driver stops.
func (e *Engine) work(ctx context.Context) {
	do := e.workOn
	if e.config.ReadOnly {
		do = e.lookReadOnly
	}
	for {
		key, quit := e.queue.Get()
		if quit {
			return
		}
		_ = guard.Call(e.config.Log, "worker", key.String(), func() { do(ctx, key) })
		// After a panic, too: the queue gives a workload to no worker until it is done.
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
	e.metrics.reconciles.WithLabelValues(resultLabel(err)).Observe(time.Since(start).Seconds())
	switch {
	case err == nil:
		e.queue.Forget(key)
		if recheck > 0 {
			e.queue.AddAfter(key, recheck)
		}
	case ctx.Err() == nil:
		level := slog.LevelWarn
		if e.LastError(key) == nil {
			level = slog.LevelDebug // a lost race
		}
		e.config.Log.Log(ctx, level, "reconcile failed, will retry", slog.String("workload", key.String()), slog.Any("error", err))
		e.queue.AddRateLimited(key)
	}
	// The pass may have changed the last error, for which the caches have no event.
	e.Observer.Notify(key)
}

// lookReadOnly is workOn for a read-only driver: it signals waiters, also when time alone changes the context, such as at a progress
// deadline.
func (e *Engine) lookReadOnly(_ context.Context, key types.NamespacedName) {
	if _, decision, err := e.lookLocked(key); err == nil && decision.Recheck > 0 {
		e.queue.AddAfter(key, decision.Recheck)
	}
	e.Observer.Notify(key)
}

// pass reconciles a workload. A panic is an error of this workload: it must not end the releases of others.
func (e *Engine) pass(ctx context.Context, key types.NamespacedName) (recheck time.Duration, err error) {
	var decision plan.Decision
	panicked := guard.Call(e.config.Log, "reconciliation", key.String(), func() { _, decision, err = e.Reconcile(ctx, key) })
	if panicked != nil {
		err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%v", panicked)
		e.setError(key, err)
	}
	restored := err == nil && decision.Recheck == 0
	if restored && e.Observer.Workload(key) == nil { // the kept traffic policy is needed no longer
		e.Observer.Forget(key)
		e.forget(key)
		e.Observer.ForgetPolicy(key)
	}
	return decision.Recheck, err
}

// Reconcile observes, plans and applies until there is nothing to write, and returns what it has observed and decided last. The caller
// holds the workload's lock.
func (e *Engine) Reconcile(ctx context.Context, key types.NamespacedName) (*observe.Snapshot, plan.Decision, error) {
	// A pass changes what the engine remembers of the workload, such as its last error. That has no event.
	defer e.dropLook(key)
	var last Repeated
	for writes, labels := 0, 0; ; writes++ {
		s, decision, err := e.lookLocked(key)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			// A deleted workload leaves routes, bounds and held autoscalers behind.
			s, decision, err = e.decideNext(e.Observer.ObserveGone(key), nil)
		}
		if _, ok := decision.Action.(plan.LabelGroup); ok {
			labels++
		}
		if labels > labelsAtOnce {
			e.queue.Add(key) // others may wait for the lock
			return s, decision, err
		}
		if err == nil && decision.Action != nil {
			wrote := false
			if wrote, err = e.perform(ctx, s, decision); err != nil && !drivererr.Retryable(err) {
				// The next observation has the refusal, and the planner may decide otherwise.
				e.setRefused(s, decision.Action, err)
				return s, decision, err
			}
			if err == nil {
				err = last.Count(key, decision.Action, wrote)
			}
			if err == nil && writes >= writeLimit(s) {
				err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: not settled after %d writes in a row", key, writes)
			}
		}
		switch {
		case err != nil:
			e.setError(key, err)
			return s, decision, err
		case decision.Action == nil:
			e.announce(ctx, s, decision)
			e.announceUnsafe(s)
			e.setError(key, nil)
			return s, decision, nil
		}
	}
}

// setError remembers the result of a pass, see [memory.setError].
func (e *Engine) setError(key types.NamespacedName, err error) {
	e.memories.update(key, func(m *memory) { m.setError(err, false) })
}

// setRefused remembers that the API server has refused a write. Of one of routing it remembers the object, so that others come first.
func (e *Engine) setRefused(s *observe.Snapshot, a plan.Action, err error) {
	var of traffic.Key
	if a, routes := a.(plan.SetTraffic); routes {
		if write := s.Traffic.Look(a.Desired).Write; write != nil {
			of = write.Key
		}
	}
	e.memories.update(s.Key, func(m *memory) {
		m.setError(err, true)
		m.refusedOf = of
	})
}

// maxRepeats is how many times in a row a pass, or a call, carries out one action before it gives up. Another client may have been as fast a few times.
const maxRepeats = 5

// Repeated is an action, and how many times in a row it was carried out.
type Repeated struct {
	action plan.Action
	times  int
}

// Count counts an action, and whether there was something to write. It returns an error once it was carried out too often: what is observed then still
// asks for it.
func (r *Repeated) Count(key types.NamespacedName, a plan.Action, wrote bool) error {
	_, labels := a.(plan.LabelGroup) // one write for each pod
	if labels || !reflect.DeepEqual(a, r.action) {
		*r = Repeated{action: a}
	}
	if r.times++; r.times < maxRepeats {
		return nil
	}
	if !wrote { // the caches show why soon
		return observe.ContractError(fmt.Errorf("%s: %w", a, observe.ErrChanged))
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REJECTED,
		"%s: the API server has accepted the same write %d times in a row (%s), and it has no effect: an admission webhook or policy, an outdated CRD, "+
			"or another client undoes it. Find it (kubectl get mutatingwebhookconfigurations,mutatingadmissionpolicies), and exempt the driver from it",
		observe.Object(key), r.times, a)
}

// perform announces a decision, and makes its write.
func (e *Engine) perform(ctx context.Context, s *observe.Snapshot, decision plan.Decision) (wrote bool, err error) {
	e.announce(ctx, s, decision)
	if decision.Overwritten != "" {
		e.config.Log.Warn(decision.Overwritten, slog.String("workload", s.Key.String()), slog.String("action", actionName(decision.Action)))
	}
	do := e.Do
	if plan.IsHistory(decision.Action) {
		do = e.recordHistory
	}
	return do(ctx, s, decision.Action)
}

// Observe returns the state of a workload, as it is judged, before a release by the policy next, if one is given. The error has an ErrorReason.
func (e *Engine) Observe(key types.NamespacedName, next ...*pb.ReleasePolicy) (*observe.Snapshot, error) {
	s, err := e.Observer.Observe(key)
	if err != nil {
		return s, err
	}
	for _, policy := range next {
		e.Observer.Enter(s, policy)
	}
	historyPaused := e.memories.get(key).history.until.Sub(s.Now)
	if historyPaused > 0 {
		s.HistoryUnread = true // the planner does not write an unread history
		s.RecheckAfter(historyPaused)
	}
	s.Observation = plan.Judge(s.Observation)
	return s, nil
}

// look is what is observed of a workload, and decided from that, for all who look before it may have changed.
type look struct {
	once     sync.Once
	snapshot *observe.Snapshot
	decision plan.Decision
	err      error

	// done and until are guarded by the memories. until is when time alone may change it. Zero means never.
	done  bool
	until time.Time
}

// expired reports whether time alone may have changed it.
func (l *look) expired(now time.Time) bool { return !l.until.IsZero() && !now.Before(l.until) }

// Look returns what was observed of a workload and decided from that last, or observes and decides again if either may have changed since. It
// needs no lock, so it may be older than a write under way: the decision is for information. All callers share the snapshot, which must not
// be modified.
func (e *Engine) Look(key types.NamespacedName) (*observe.Snapshot, plan.Decision, error) {
	// While a cache is stale, or the process was suspended, no notice may have come.
	fresh, now := len(e.Observer.Freshness.Of()) == 0, e.config.Now()
	var l *look
	e.memories.update(key, func(m *memory) {
		if m.look == nil || m.look.done && (!fresh || m.look.expired(now)) {
			m.look = &look{}
		}
		l = m.look
	})
	l.once.Do(func() {
		l.snapshot, l.decision, l.err = e.lookAgain(key)
		// A change during the observation has removed it from the memory.
		e.memories.update(key, func(m *memory) {
			if m.look == l && (l.err != nil || !isNotifiedOfChanges(l.snapshot, l.decision)) {
				m.look = nil
			}
			if l.done = true; l.decision.Recheck > 0 {
				l.until = l.snapshot.Now.Add(l.decision.Recheck)
			}
		})
	})
	return l.snapshot, l.decision, l.err
}

// isNotifiedOfChanges reports whether each change of what was observed is notified as one of this workload. Changes of a successor, of
// other releases on a route, and of releases ahead in the queue are not.
func isNotifiedOfChanges(s *observe.Snapshot, decision plan.Decision) bool {
	hasSuccessor := s.Record != nil && s.Record.Release != nil && s.Record.Release.Successor != ""
	sharesRoutes := s.Setup != nil && len(s.Setup.Shared) > 0
	return !hasSuccessor && !sharesRoutes && decision.Reason != plan.ReasonWaitingForAdmission
}

// dropLook has the next call of Look observe again.
func (e *Engine) dropLook(key types.NamespacedName) {
	e.memories.update(key, func(m *memory) { m.look = nil })
}

// lookAgain observes a workload and decides what to do next. A panic is an error of this workload: a caller may look at others, too.
func (e *Engine) lookAgain(key types.NamespacedName) (s *observe.Snapshot, d plan.Decision, err error) {
	panicked := guard.Call(e.config.Log, "observation", key.String(), func() { s, d, err = e.decideNext(e.Observe(key)) })
	if panicked != nil {
		return nil, plan.Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%v", panicked)
	}
	return s, d, err
}

// lookLocked looks again for the holder of the workload's lock. The decision counts for admission, its effects begin and are observed at once,
// and what it waits for is remembered. A workload that can't be observed holds up no other.
func (e *Engine) lookLocked(key types.NamespacedName) (*observe.Snapshot, plan.Decision, error) {
	for {
		s, decision, err := e.lookAgain(key)
		if !e.admission.tryRecord(key, decision, nil) {
			continue
		}
		if err != nil {
			return s, decision, err
		}
		if e.Observer.Keep(s, decision.Effects) {
			continue
		}
		e.memories.update(key, func(m *memory) { m.waiting = decision.Waiting })
		return s, decision, nil
	}
}

// decideNext has the planner decide what to do next.
func (e *Engine) decideNext(s *observe.Snapshot, err error) (*observe.Snapshot, plan.Decision, error) {
	if err != nil {
		return nil, plan.Decision{}, err
	}
	known := e.memories.get(s.Key)
	if s.Refused, s.Waiting = known.refusal(), known.waiting; s.Traffic != nil {
		s.Traffic = s.Traffic.AfterRefusal(known.refusedOf)
	}
	decision, err := e.callPlanner(s, nil)
	if err != nil {
		return nil, decision, err
	}
	s.RecheckAfter(decision.Recheck)
	decision.Recheck = s.Recheck // the sooner of both
	return s, decision, nil
}

// Decide has the planner carry out an intent. The caller holds the workload's lock. The error has an ErrorReason.
func (e *Engine) Decide(s *observe.Snapshot, i plan.Intent) (plan.Decision, error) {
	decision, err := e.callPlanner(s, i)
	for err == nil && !e.admission.tryRecord(s.Key, decision, i) {
		decision, err = e.callPlanner(s, i)
	}
	return decision, err
}

// callPlanner calls the planner within what other releases leave. A nil intent continues what was requested before.
func (e *Engine) callPlanner(s *observe.Snapshot, i plan.Intent) (plan.Decision, error) {
	s.MaxInFlight = e.admission.maxInFlight(s.Key)
	decision, err := plan.Decide(s.Observation, i)
	if e.config.Decided != nil {
		e.config.Decided(s.Observation, i, decision, err)
	}
	return decision, observe.ContractError(err)
}

// Do applies one action, and records it in events and metrics. The caller holds the workload's lock.
func (e *Engine) Do(ctx context.Context, s *observe.Snapshot, action plan.Action) (wrote bool, err error) {
	if !e.leads() {
		return false, standbyError() // the Lease was lost meanwhile
	}
	wrote, err = e.Applier.Apply(ctx, s, action)
	e.metrics.applied(action, wrote, err)
	if err != nil {
		return false, observe.ContractError(fmt.Errorf("%s: %w", action, err))
	}
	if wrote {
		e.announceAutoscaler(s, action)
		e.announceHandover(s, action)
		e.config.Log.Info(action.String(), slog.String("workload", s.Key.String()), slog.String("action", actionName(action)))
	}
	return wrote, nil
}

// historyRetry is how long a history that can't be written is not retried. No release waits for it.
const historyRetry = time.Minute

// historyPause is why a history is not written, and until when.
type historyPause struct {
	err   error
	until time.Time
}

// HistoryError returns why the last write of a workload's history was refused, nil if it was not.
func (e *Engine) HistoryError(key types.NamespacedName) error { return e.memories.get(key).history.err }

// recordHistory is Do for writes of the history: one that is refused, such as for a missing permission, blocks no release. A
// retryable error is returned.
func (e *Engine) recordHistory(ctx context.Context, s *observe.Snapshot, action plan.Action) (bool, error) {
	wrote, err := e.Do(ctx, s, action)
	if err != nil && drivererr.Retryable(err) {
		return false, err
	}
	before := e.HistoryError(s.Key)
	pause := historyPause{}
	if err != nil {
		pause = historyPause{err, e.config.Now().Add(historyRetry)}
	}
	e.memories.update(s.Key, func(m *memory) { m.history = pause })
	if err == nil {
		return wrote, nil
	}
	if before == nil || before.Error() != err.Error() {
		e.config.Log.Warn("history can't be written, the release continues without it", slog.String("workload", s.Key.String()), slog.Any("error", err))
	}
	return false, nil
}
