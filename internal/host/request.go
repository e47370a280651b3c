// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// grace is how much longer than its long poll a request may take.
const grace = 30 * time.Second

// quietAttempts is how many errors in a row are not reported: those of about a second.
const quietAttempts = 3

// answer has the common fields of responses.
type answer struct {
	action   pb.Action
	context  *pb.BatchContext
	warnings []*pb.Warning
	done     bool
	// measured are measurements by the name of their gate.
	measured map[string]gate.Measurement
	// requested is true for the response to a request of a batch or an end, false for a read.
	requested bool
}

// begin decides the release id and the first step.
func (r *run) begin(ctx context.Context) (step, error) {
	if r.machine.ID != "" {
		return step{action: actInitialize}, nil
	}
	a, err := r.retry(ctx, r.readContext)
	if err != nil {
		return step{}, err
	}
	c := a.context
	if plugin.InFlight(c) && c.GetOwner() == r.machine.Owner {
		r.machine.ID, r.found = c.GetReleaseId(), true
	} else {
		r.machine.ID, r.template = r.machine.NewID(), c.GetTemplateRevision()
	}
	return step{action: actInitialize}, nil
}

// perform performs one step, with retries.
func (r *run) perform(ctx context.Context, s step) (answer, error) {
	call := r.upgrade
	switch s.action {
	case actInitialize:
		call = r.initialize
	case actHeaders:
		call = r.setHeaders
	case actWeight:
		call = r.setWeight
	case actPromote, actRollback:
		call = r.finalize
	case actPause:
		r.showUntil(ctx, time.Until(s.until), s.batch)
		s.action = actUpgrade
	case actMeasure:
		r.showUntil(ctx, time.Until(s.until), s.batch)
		if !time.Now().Before(s.until) {
			return r.measure(ctx, s)
		}
		s.action = actUpgrade // the batch is no longer ready
	case actUpgrade, actStop:
		// UpgradeBatch is the default, and actStop makes no call.
	}
	r.spaceRequests(ctx, s)
	var superseded error
	a, err := r.retry(ctx, func(ctx context.Context) (answer, error) {
		a, err := call(ctx, s)
		if s.action == actInitialize && drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REVISION_CHANGED {
			superseded = err // not retried: the user decides about the new template
			return a, nil
		}
		return a, err
	})
	if err == nil {
		err = superseded
	}
	return a, err
}

func (r *run) initialize(ctx context.Context, _ step) (answer, error) {
	wait := r.timing.Wait
	if r.found {
		// It may be in any state, which is to be reported before it changes.
		wait = 0
	}
	response, err := r.host.Driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: r.machine.Workload, ReleaseId: r.machine.ID, Policy: r.machine.Policy, Owner: r.machine.Owner,
		Wait: durationpb.New(wait), IncludeGroups: true, TemplateRevision: r.template,
	})
	if err != nil {
		return answer{}, err
	}
	r.found = false
	return answer{action: response.GetAction(), context: response.GetContext(), warnings: response.GetWarnings()}, nil
}

func (r *run) upgrade(ctx context.Context, s step) (answer, error) {
	response, err := r.host.Driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.machine.Workload, ReleaseId: r.machine.ID, Target: &pb.UpgradeBatchRequest_Batch{Batch: s.batch},
		UpdateRevision: r.machine.revision, Wait: durationpb.New(r.timing.Wait), IncludeGroups: true,
	})
	if err != nil {
		return r.checkOutdated(ctx, err)
	}
	return answer{action: response.GetAction(), context: response.GetContext(), requested: true}, nil
}

// setWeight requests a weight, and reads the state afterwards: the response has none.
func (r *run) setWeight(ctx context.Context, s step) (answer, error) {
	_, err := r.host.Driver.SetWeight(ctx, &pb.SetWeightRequest{
		Workload: r.machine.Workload, ReleaseId: r.machine.ID, Weight: s.weight, UpdateRevision: r.machine.revision,
		Wait: durationpb.New(r.timing.Wait),
	})
	if err != nil {
		return r.checkOutdated(ctx, err)
	}
	return r.readContext(ctx)
}

func (r *run) finalize(ctx context.Context, s step) (answer, error) {
	intent := pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	if s.action == actRollback {
		intent = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
	}
	// Once: another force is a new decision.
	force := r.host.Force && s.action == actRollback && !r.forced
	// The revision that the machine decided about is promoted, not a newer template.
	response, err := r.host.Driver.Finalize(ctx, &pb.FinalizeRequest{
		Workload: r.machine.Workload, ReleaseId: r.machine.ID, Intent: intent, UpdateRevision: r.machine.revision,
		Wait: durationpb.New(r.timing.Wait), IncludeGroups: true, Force: force, Message: r.machine.endMessage,
	})
	if err != nil {
		return r.checkOutdated(ctx, err)
	}
	// A request that was refused has forced nothing.
	r.forced = r.forced || force
	return answer{
		action: response.GetAction(), context: response.GetContext(), done: response.GetDone(), requested: true,
	}, nil
}

// readContext reads the state of the release.
func (r *run) readContext(ctx context.Context) (answer, error) {
	c, err := r.host.read(ctx, r.machine.Workload, r.machine.ID)
	return answer{context: c}, err
}

// checkOutdated reads the state after an error that says that the release has a new template, or an end that another host chose. If the
// state has neither, because the driver's caches lag, the error is returned.
func (r *run) checkOutdated(ctx context.Context, cause error) (answer, error) {
	reason := drivererr.Reason(cause)
	newTemplate := reason == pb.ErrorReason_ERROR_REASON_REVISION_CHANGED
	if !newTemplate && reason != pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED {
		return answer{}, cause
	}
	a, err := r.readContext(ctx)
	if err != nil {
		return answer{}, err
	}
	switch a.context.GetState() {
	case pb.State_STATE_FAILED:
		if r.machine.promotes && r.machine.rollbackTried {
			return a, nil // a handover
		}
	case pb.State_STATE_PROMOTING, pb.State_STATE_ROLLING_BACK, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK:
		return a, nil
	default:
	}
	if newTemplate && a.context.GetUpdateRevision() != r.machine.revision {
		return a, nil
	}
	return answer{}, cause
}

// retry calls as Host.Retry does, shows the states of the watch meanwhile, and reports errors that last.
func (r *run) retry(ctx context.Context, call func(context.Context) (answer, error)) (a answer, err error) {
	attempts, reported := 0, ""
	err = r.host.retry(ctx, func(ctx context.Context) (err error) {
		a, err = r.callOnce(ctx, call)
		return err
	}, func(err error, delay time.Duration) {
		// A lost race and a driver that has just started are not worth a report.
		if text := status.Convert(err).Message(); text != reported && attempts >= quietAttempts {
			reported = text
			r.emit(Event{Kind: EventRetrying, Message: fmt.Sprintf("trying again: %s", text)})
		}
		attempts++
		r.showUntil(ctx, delay, noBatch)
	})
	return a, err
}

// callOnce sends one request, and shows the states of the watch meanwhile.
func (r *run) callOnce(ctx context.Context, call func(context.Context) (answer, error)) (answer, error) {
	// A driver that takes calls and never answers must not hold up the host.
	ctx, cancel := context.WithTimeout(ctx, r.timing.Wait+grace)
	defer cancel()
	type reply struct {
		answer answer
		err    error
	}
	replies := make(chan reply, 1)
	go func() {
		a, err := call(ctx)
		replies <- reply{a, err}
	}()
	for {
		select {
		case got := <-replies:
			return got.answer, got.err
		case c := <-r.feed:
			r.showWatched(c)
		}
	}
}
