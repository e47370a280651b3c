// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// lastLookTimeout bounds how long Ctrl-C takes.
const lastLookTimeout = 2 * time.Second

// run is one run of a host with one release. Everything but the watch happens in the caller's goroutine.
type run struct {
	host    *Host
	timing  Timing
	machine machine

	// last is the newest state that was shown.
	last *pb.BatchContext
	// template is the revision for which the release was requested, or "" for whatever the template is.
	template string
	// found is true until the first response about a release that was in flight when this run began.
	found bool
	// reported is true once the start of the release was reported.
	reported bool
	// forced is true once a rollback was requested with force.
	forced bool
	// request and requested are the last request and when it was sent, to space equal ones.
	request   step
	requested time.Time

	// seenReady is the last batch that the watch has shown ready. Nil means none, or it was unready since.
	seenReady *int32
	// feed has the states of the watch.
	feed     chan *pb.BatchContext
	watching sync.Once
	watchers sync.WaitGroup
}

// finish runs the loop, and turns the end of ctx into an outcome.
func (r *run) finish(ctx context.Context, begin func(context.Context) (step, error)) (Result, error) {
	running, stop := context.WithCancel(ctx)
	// stop is called before Wait, which would wait for a watch that lasts.
	defer r.watchers.Wait()
	defer stop()

	outcome, err := r.loop(running, begin)
	interrupted := err != nil && ctx.Err() != nil
	if interrupted {
		outcome, err = OutcomeInterrupted, nil
		r.lastLook(ctx)
	}
	result := Result{Outcome: outcome, ReleaseID: r.machine.ID, Context: r.last, Failure: r.machine.gateFailure}
	if err != nil {
		return result, err
	}
	r.emit(Event{Kind: EventFinished, Message: result.Sentence(), Outcome: result.Outcome})
	return result, nil
}

// lastLook reads the state of an interrupted release, since the interrupted request may have reached the driver. If the driver does not
// answer soon, the last known state remains.
func (r *run) lastLook(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLookTimeout)
	defer cancel()
	if a, err := r.readContext(ctx); err == nil {
		r.last = a.context
	}
}

func (r *run) loop(ctx context.Context, begin func(context.Context) (step, error)) (Outcome, error) {
	next, err := begin(ctx)
	for err == nil {
		for _, n := range next.notes {
			r.emit(n)
		}
		if next.action == actStop {
			return next.outcome, nil
		}
		var a answer
		if a, err = r.perform(ctx, next); err == nil {
			next = r.decideNext(ctx, a)
		}
	}
	return "", err
}

// decideNext shows a response and decides the next step.
func (r *run) decideNext(ctx context.Context, a answer) step {
	r.reportStart(a)
	r.report(a.context)
	r.machine.requested = r.machine.requested || a.requested
	notes := r.machine.record(a.measured, time.Now())
	next := r.machine.next(a.context, time.Now())
	next.notes = append(notes, next.notes...)
	if a.done && next.action != actStop {
		next.action, next.outcome = actStop, doneOutcome(r.machine.intent)
	}
	// Before the first response the driver may not know the release.
	if next.action != actStop {
		r.watching.Do(func() { r.watch(ctx) })
	}
	return next
}

// doneOutcome is the outcome of `done` if the state is not final.
func doneOutcome(intent pb.FinalizeIntent) Outcome {
	if intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		return OutcomeRolledBack
	}
	return OutcomePromoted
}

// reportStart reports the driver's warnings, and once which release this is.
func (r *run) reportStart(a answer) {
	for _, w := range a.warnings {
		r.emit(Event{Kind: EventWarning, Message: fmt.Sprintf("%s [%s]", w.GetMessage(), w.GetCode())})
	}
	if r.reported || a.action == pb.Action_ACTION_UNSPECIFIED || r.machine.endOnly {
		return
	}
	r.reported = true
	if a.context.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		return
	}
	r.last = a.context
	kind, verb := EventStarted, "began"
	if a.action == pb.Action_ACTION_UNCHANGED {
		kind, verb = EventResumed, "continuing"
	}
	r.emit(Event{Kind: kind, Message: fmt.Sprintf("%s release %s of %s", verb, r.machine.ID, plugin.WorkloadKey(r.machine.Workload))})
}

// report reports a state that differs from the last one.
func (r *run) report(c *pb.BatchContext) {
	if c == nil || proto.Equal(c, r.last) {
		return
	}
	r.last = c
	r.emit(Event{Kind: EventProgress, Message: c.GetMessage()})
}

// emit completes the event and hands it to the observer.
func (r *run) emit(e Event) {
	if r.host.Observe == nil {
		return
	}
	e.Time, e.Context = time.Now(), r.last
	r.host.Observe(e)
}

// NothingToRelease is the message of OutcomeNothing.
const NothingToRelease = "nothing to release: the groups already run the workload's template. It is under hold: its next template waits for a release"

// Sentence describes how a run ended.
func (r Result) Sentence() string {
	c := r.Context
	switch r.Outcome {
	case OutcomePromoted:
		return fmt.Sprintf("release %s is complete: %s", r.ReleaseID, c.GetMessage())
	case OutcomeRolledBack:
		return fmt.Sprintf("release %s was rolled back: %s", r.ReleaseID, cmp.Or(r.Failure, c.GetMessage()))
	case OutcomeNothing:
		return NothingToRelease
	case OutcomeLastBatch:
		return "the last batch is ready, and the release waits to be promoted"
	case OutcomeGateFailed:
		return fmt.Sprintf("release %s stays at its batch: %s", r.ReleaseID, r.Failure)
	case OutcomeFailed:
		return fmt.Sprintf("release %s failed (%s): %s", r.ReleaseID, c.GetReason(), c.GetMessage())
	case OutcomeSuperseded:
		return fmt.Sprintf("release %s got a new template, of which no batch was verified: not promoting it", r.ReleaseID)
	default:
		return "interrupted: the release stays in its state"
	}
}

// noBatch makes rest ignore the state of the watch.
const noBatch int32 = -1

// spaceRequests keeps equal requests Timing.Interval apart, for drivers that do not wait.
func (r *run) spaceRequests(ctx context.Context, s step) {
	same := s.action == r.request.action && s.batch == r.request.batch && s.weight == r.request.weight
	if left := time.Until(r.requested.Add(r.timing.Interval)); same && left > 0 {
		r.showUntil(ctx, left, noBatch)
	}
	r.request, r.requested = s, time.Now()
}

// showUntil waits for d and shows the states of the watch. With a batch it ends early if the batch is no longer ready, so that the host
// requests it again.
func (r *run) showUntil(ctx context.Context, d time.Duration, batch int32) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case c := <-r.feed:
			if ready := r.showWatched(c); batch != noBatch && !ready {
				return
			}
		}
	}
}

// showWatched shows a state of the watch, and reports whether the batch is still ready. If it was so in the watch before, and is not any
// longer, its pause and its gates begin again, even if it is ready once more in the next response. A state from before the batch was
// ready, which the watch may show late, means nothing.
func (r *run) showWatched(c *pb.BatchContext) (ready bool) {
	r.report(c)
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
	request := &pb.WatchBatchContextRequest{Workload: r.machine.Workload, ReleaseId: r.machine.ID, IncludeGroups: true}
	r.watchers.Go(func() {
		// The watch is a convenience: if the driver refuses it, the answers to requests still carry the state.
		_ = Observe(plugin.Follow(ctx, r.host.Driver, request), func(c *pb.BatchContext) {
			select {
			case r.feed <- c:
			case <-ctx.Done():
			}
		}, func(error) {})
	})
}
