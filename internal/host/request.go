// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// grace is how much longer than its long poll a request may take.
const grace = 30 * time.Second

// quietAttempts is how many errors in a row people are not told of: those of about a second.
const quietAttempts = 3

// answer is what the mutating RPCs have in common.
type answer struct {
	action   pb.Action
	context  *pb.BatchContext
	warnings []*pb.Warning
	done     bool
	// asked is true when the answer is about the machine's aim, false when the host only looked.
	asked bool
}

// begin settles the release id and asks for the release.
func (r *run) begin(ctx context.Context) (step, error) {
	if r.release.ID != "" {
		return step{action: actInitialize}, nil
	}
	a, err := r.retry(ctx, func(ctx context.Context) (answer, error) { return r.look(ctx, "") })
	if err != nil {
		return step{}, err
	}
	c := a.context
	if plugin.InFlight(c) && c.GetOwner() == r.release.Owner {
		r.release.ID = c.GetReleaseId()
		r.guessed = c.GetState() == pb.State_STATE_HOLDING
		r.found = true
	} else {
		r.release.ID = r.release.NewID()
	}
	return step{action: actInitialize}, nil
}

// perform does one step, and again while that may help.
func (r *run) perform(ctx context.Context, s step) (answer, error) {
	call := r.upgrade
	switch s.action {
	case actInitialize:
		call = r.initialize
	case actHeaders:
		call = r.direct
	case actWeight:
		call = r.weigh
	case actPromote, actRollback:
		call = r.finalize
	case actPause:
		r.rest(ctx, time.Until(s.until), s.batch)
		s.action = actUpgrade
	case actUpgrade, actStop:
		// The call is UpgradeBatch already, and after actStop there is none.
	}
	r.space(ctx, s)
	return r.retry(ctx, func(ctx context.Context) (answer, error) { return call(ctx, s) })
}

func (r *run) initialize(ctx context.Context, _ step) (answer, error) {
	wait := r.timing.Wait
	if r.found {
		// It may be anywhere, and people want to be told where before it gets further.
		wait = 0
	}
	response, err := r.host.Driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: r.release.Workload, ReleaseId: r.release.ID, Policy: r.release.Policy, Owner: r.release.Owner,
		Wait: durationpb.New(wait), IncludeGroups: true,
	})
	if err != nil {
		return answer{}, err
	}
	r.found = false
	if r.guessed && ended(response.GetContext()) {
		r.release.ID, r.guessed = r.release.NewID(), false
		return r.initialize(ctx, step{})
	}
	r.guessed = false
	return answer{action: response.GetAction(), context: response.GetContext(), warnings: response.GetWarnings()}, nil
}

func (r *run) upgrade(ctx context.Context, s step) (answer, error) {
	response, err := r.host.Driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.release.Workload, ReleaseId: r.release.ID, Target: &pb.UpgradeBatchRequest_Batch{Batch: s.batch},
		UpdateRevision: r.machine.revision, Wait: durationpb.New(r.timing.Wait), IncludeGroups: true,
	})
	if err != nil {
		return r.overtaken(ctx, err)
	}
	return answer{action: response.GetAction(), context: response.GetContext(), asked: true}, nil
}

// weigh asks for a weight, and looks at what came of it: the answer has no context.
func (r *run) weigh(ctx context.Context, s step) (answer, error) {
	_, err := r.host.Driver.SetWeight(ctx, &pb.SetWeightRequest{
		Workload: r.release.Workload, ReleaseId: r.release.ID, Weight: s.weight, UpdateRevision: r.machine.revision,
		Wait: durationpb.New(r.timing.Wait),
	})
	if err != nil {
		return r.overtaken(ctx, err)
	}
	return r.look(ctx, r.release.ID)
}

func (r *run) finalize(ctx context.Context, s step) (answer, error) {
	intent := pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	if s.action == actRollback {
		intent = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
	}
	// A promotion is of what the machine has decided on, not of a template that came in the meantime.
	response, err := r.host.Driver.Finalize(ctx, &pb.FinalizeRequest{
		Workload: r.release.Workload, ReleaseId: r.release.ID, Intent: intent, UpdateRevision: r.machine.revision,
		Wait: durationpb.New(r.timing.Wait), IncludeGroups: true,
	})
	if err != nil {
		return r.overtaken(ctx, err)
	}
	return answer{
		action: response.GetAction(), context: response.GetContext(), done: response.GetDone(), asked: true,
	}, nil
}

// look reads where the workload stands.
func (r *run) look(ctx context.Context, id string) (answer, error) {
	response, err := r.host.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
		Workload: r.release.Workload, ReleaseId: id, IncludeGroups: true,
	})
	return answer{context: response.GetContext()}, err
}

// overtaken looks again when the release is no longer what the request meant: it has a new template, or somebody
// chose its end. If the look shows neither (the driver's caches may lag), cause stands.
func (r *run) overtaken(ctx context.Context, cause error) (answer, error) {
	reason := drivererr.Reason(cause)
	newTemplate := reason == pb.ErrorReason_ERROR_REASON_REVISION_CHANGED
	if !newTemplate && reason != pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED {
		return answer{}, cause
	}
	a, err := r.look(ctx, r.release.ID)
	if err != nil {
		return answer{}, err
	}
	ending := a.context.GetState() == pb.State_STATE_PROMOTING || a.context.GetState() == pb.State_STATE_ROLLING_BACK
	if ending || ended(a.context) || newTemplate && a.context.GetUpdateRevision() != r.machine.revision {
		return a, nil
	}
	return answer{}, cause
}

// retry calls until the answer is not an error that may pass, ctx ends or patience does.
func (r *run) retry(ctx context.Context, call func(context.Context) (answer, error)) (answer, error) {
	began, delay, told := time.Now(), r.timing.Backoff, ""
	for attempt := 0; ; attempt++ {
		a, err := r.attempt(ctx, call)
		if err == nil || ctx.Err() != nil || !passing(err) {
			return a, err
		}
		if time.Since(began) > r.timing.Patience {
			return a, gaveUp(r.timing.Patience, err)
		}
		text := status.Convert(err).Message()
		// A lost race, and a driver that has just started, are everyday life.
		if text != told && attempt >= quietAttempts {
			told = text
			r.emit(Event{Kind: EventRetrying, Message: fmt.Sprintf("trying again: %s", text)})
		}
		r.rest(ctx, delay, noBatch)
		delay = min(2*delay, maxBackoff)
	}
}

// attempt sends one request and shows what the watch brings meanwhile.
func (r *run) attempt(ctx context.Context, call func(context.Context) (answer, error)) (answer, error) {
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
			r.show(c)
		}
	}
}
