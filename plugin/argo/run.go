// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// again is the pause between two calls after one that was overtaken or may pass.
	again = 250 * time.Millisecond
	// pollInterval stands in for a watch that the driver does not have.
	pollInterval = 500 * time.Millisecond
	// minWork is what one run may take for its calls although it does not wait.
	minWork = 5 * time.Second
)

// outcome is how far a run of a step has come.
type outcome struct {
	// done is actSucceed, actFail, or actWait for a step that goes on.
	done action
	// message is for people.
	message string
	// release is the one that the step works on.
	release string
}

// run takes a step as far as it gets until the deadline: it decides, calls, looks, and where there is nothing to do
// waits for the workload to change. An error is one that a person must do something about, and that may pass then.
type run struct {
	target
	stepper

	// patience is how long to wait. Zero: not at all.
	patience time.Duration
}

func (r *run) do(ctx context.Context) (outcome, error) {
	deadline := time.Now().Add(max(r.patience, minWork))
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(callTimeout))
	defer cancel()
	var changes <-chan struct{}
	var out outcome
	c, err := r.look(ctx)
	for {
		if err != nil {
			var final bool
			if final, err = r.judge(err, &out); final || !sleepUntil(ctx, deadline, again) {
				return out, err
			}
			c, err = r.look(ctx)
			continue
		}
		m := r.next(c)
		out.message = m.why
		if own, _ := ours(r.target.facts, c); own.Hash == r.target.facts.Hash && own.Hash != "" {
			out.release = c.GetReleaseId()
		}
		switch m.action {
		case actSucceed, actFail:
			out.done = m.action
			return out, nil
		case actWait:
			if changes == nil && r.patience > 0 {
				changes = r.watch(ctx)
			}
			if !r.change(changes, deadline) {
				return out, nil
			}
			// The watch may tell of a time before the last call, so it only says when to look.
			c, err = r.look(ctx)
		default:
			if c, err = r.act(ctx, m, &out); out.done == actFail || time.Now().After(deadline) {
				return out, nil
			}
		}
	}
}

// act does what is to be done next, and looks where that leaves the release.
func (r *run) act(ctx context.Context, m move, out *outcome) (*pb.BatchContext, error) {
	if m.action == actInitialize {
		out.release = m.release
	}
	c, err := r.perform(ctx, m, r.step)
	if err != nil {
		if refusal := r.refused(m, err); refusal != "" {
			out.done, out.message = actFail, refusal
		}
		return c, err
	}
	r.told(m.action)
	if c == nil {
		return r.look(ctx)
	}
	return c, nil
}

// refused says why a step can't even begin, which no further try changes. Empty: it may.
func (r *run) refused(m move, err error) string {
	switch {
	case passing(err), overtaken(err):
		return ""
	case m.action == actInitialize:
		return text(err)
	case m.action == actUndo && plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		return fmt.Sprintf("%s can't be undone: %s; and then: kubectl argo rollouts retry rollout %s", r.target.facts.Name, text(err), r.target.facts.Name)
	default:
		return ""
	}
}

// told notes that the driver knows the wish.
func (s *stepper) told(a action) {
	switch a { //nolint:exhaustive // The wishes.
	case actUpgrade:
		s.upgraded = true
	case actHeaders:
		s.headed = true
	case actMirror:
		s.mirrored = true
	case actWeight:
		s.weighed = true
	}
}

// judge says what becomes of the step after an error. Where it is final, nil means that out says it all.
func (r *run) judge(err error, out *outcome) (final bool, verdict error) {
	out.message = text(err)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		out.message = fmt.Sprintf("the driver does not answer, the step goes on when it does (%s)", out.message)
	}
	if passing(err) || overtaken(err) {
		return false, nil
	}
	switch plugin.Reason(err) { // For the others a person mends the world, and the step goes on.
	case pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:
		out.done = actFail
		return true, nil
	default:
		return true, err
	}
}

// text is what an error says to people: the driver's own sentence.
func text(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// change waits until the workload may have changed; false means that the time is up.
func (r *run) change(changes <-chan struct{}, deadline time.Time) bool {
	if r.patience == 0 {
		return false
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case _, ok := <-changes:
		return ok
	case <-timer.C:
		return false
	}
}

// watch sends a signal after each change of the workload, until ctx ends.
func (r *run) watch(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		// An error is a signal too: the run asks the driver itself, and decides what the error means for the step.
		for range plugin.Follow(ctx, r.driver, &pb.WatchBatchContextRequest{Workload: r.ref}, plugin.WithPollInterval(pollInterval)) {
			select {
			case changes <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return changes
}

// sleep waits for d, or less if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// sleepUntil sleeps for d unless that would pass the deadline; false means that the time is up.
func sleepUntil(ctx context.Context, deadline time.Time, d time.Duration) bool {
	if time.Now().Add(d).After(deadline) || ctx.Err() != nil {
		return false
	}
	sleep(ctx, d)
	return ctx.Err() == nil
}
