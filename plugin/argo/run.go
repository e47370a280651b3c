// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/sleep"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// retryInterval is the pause after a call that failed with a retryable or outdated error.
	retryInterval = 250 * time.Millisecond
	// pollInterval is how often a driver without a watch is polled.
	pollInterval = 500 * time.Millisecond
	// minTimeout bounds the calls of a run that does not wait.
	minTimeout = 5 * time.Second
)

// outcome is the result of a run of a step.
type outcome struct {
	// done is actSucceed, actFail, or actWait for a step that continues.
	done action
	// message is shown in the Rollout's status.
	message string
	// release is the id of the step's release.
	release string
}

// run performs actions of a step until it ends or the deadline expires. Without an action it waits for a change of the
// workload. It returns an error that a user must resolve, after which the step continues.
type run struct {
	target
	stepper

	// wait is how long to wait. Zero: not at all.
	wait time.Duration
}

func (r *run) do(ctx context.Context) (outcome, error) {
	deadline := time.Now().Add(max(r.wait, minTimeout))
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(callTimeout))
	defer cancel()
	var changes <-chan struct{}
	var out outcome
	c, err := r.look(ctx)
	for {
		if err != nil {
			var final bool
			if final, err = r.failed(err, &out); final || !sleepUntil(ctx, deadline, retryInterval) {
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
			if changes == nil && r.wait > 0 {
				changes = r.watch(ctx)
			}
			if !r.change(changes, deadline) {
				return out, nil
			}
			// The watch may lag behind the last call, so its signal only triggers a look.
			c, err = r.look(ctx)
		default:
			if c, err = r.act(ctx, m, &out); out.done == actFail || time.Now().After(deadline) {
				return out, nil
			}
		}
	}
}

// act performs a move, and returns the state of the workload afterwards.
func (r *run) act(ctx context.Context, m move, out *outcome) (*pb.BatchContext, error) {
	if m.action == actInitialize {
		out.release = m.release
	}
	c, err := r.perform(ctx, m, r.step)
	if err != nil {
		if why := r.refusal(m, err); why != "" {
			out.done, out.message = actFail, why
		}
		return c, err
	}
	r.noteRequested(m.action)
	if c == nil {
		return r.look(ctx)
	}
	return c, nil
}

// refusal returns why a step can't begin, if retries can't change that.
func (r *run) refusal(m move, err error) string {
	switch {
	case retryable(err), outdated(err):
		return ""
	case m.action == actInitialize:
		return text(err)
	case m.action == actUndo && plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		return fmt.Sprintf("%s can't be undone: %s; and then: kubectl argo rollouts retry rollout %s", r.target.facts.Name, text(err), r.target.facts.Name)
	default:
		return ""
	}
}

// noteRequested notes that the driver accepted a request of the step.
func (s *stepper) noteRequested(a action) {
	switch a { //nolint:exhaustive // The other actions are no requests of the step.
	case actUpgrade:
		s.targetSet = true
	case actHeaders:
		s.headersSet = true
	case actMirror:
		s.mirrorSet = true
	case actWeight:
		s.weightSet = true
	}
}

// failed sets the outcome of an error. It reports whether the run ends, and returns the error that a user must resolve.
func (r *run) failed(err error, out *outcome) (final bool, unresolved error) {
	out.message = text(err)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		out.message = fmt.Sprintf("the driver does not answer, the step continues when it does (%s)", out.message)
	}
	if retryable(err) || outdated(err) {
		return false, nil
	}
	switch plugin.Reason(err) { // After all others, once a user has resolved them, the step continues.
	case pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:
		out.done = actFail
		return true, nil
	default:
		return true, err
	}
}

// text returns the message of an error without gRPC's prefix.
func text(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// change waits for a change of the workload. It returns false when the deadline expires.
func (r *run) change(changes <-chan struct{}, deadline time.Time) bool {
	if r.wait == 0 {
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

// sleepUntil sleeps for d. It returns false, without sleeping, if the deadline would expire meanwhile.
func sleepUntil(ctx context.Context, deadline time.Time, d time.Duration) bool {
	if time.Now().Add(d).After(deadline) || ctx.Err() != nil {
		return false
	}
	sleep.For(ctx, d)
	return ctx.Err() == nil
}
