// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// retryInterval is the pause after a call that failed with a retryable or outdated error.
	retryInterval = 250 * time.Millisecond
	// minTimeout bounds the calls of a run that does not wait.
	minTimeout = 5 * time.Second
)

// Outcome is the result of a run of a step.
type Outcome struct {
	// Done is Reached, Failed, or Wait for a step that continues.
	Done converge.Outcome
	// Message is shown in the Rollout's status.
	Message string
	// Release is the id of the step's release.
	Release string
}

type run struct {
	Target
	step Step

	// accepted are the requests of the step that the driver has accepted.
	accepted []proto.Message
	// wait is how long to wait. Zero means not at all.
	wait time.Duration
	// outdated is set once the Rollout is another than the one that the step was called for.
	outdated bool
}

// Run performs actions of a step until it ends or the time to wait is over (zero: it does not wait). Without an action it waits
// for a change of the workload. It returns an error that a user must resolve, after which the step continues.
func (t Target) Run(ctx context.Context, step Step, wait time.Duration) (Outcome, error) {
	r := &run{Target: t, step: step, wait: wait}
	deadline := time.Now().Add(max(r.wait, minTimeout))
	// A call that begins just before the deadline has its own time.
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(converge.CallTimeout))
	defer cancel()
	var changes <-chan struct{}
	var out Outcome
	c, err := r.Look(ctx)
	for {
		if err != nil {
			var final bool
			if final, err = r.failed(err, &out); final || !sleepUntil(ctx, deadline, retryInterval) {
				return out, err
			}
			c, err = r.Look(ctx)
			continue
		}
		m := r.next(c)
		out.Message = m.Why
		// One that rolls back and is not of this attempt is that of the abort before a retry.
		if _, mine := r.mine(c); mine && (!converge.RollsBack(c) || slices.Contains(r.Facts.Begun, c.GetReleaseId())) {
			out.Release = c.GetReleaseId()
		}
		switch m.Outcome {
		case converge.Reached, converge.Failed:
			out.Done = m.Outcome
			return out, nil
		case converge.Wait:
			if changes == nil && r.wait > 0 {
				changes = r.watch(ctx)
			}
			if !r.change(changes, deadline) {
				return out, nil
			}
			// The watch may lag behind the last call, so its signal only triggers a look.
			c, err = r.Look(ctx)
		default:
			if c, err = r.act(ctx, m, &out); out.Done == converge.Failed || r.outdated || time.Now().After(deadline) {
				return out, nil
			}
		}
	}
}

// act performs a move, and returns the state of the workload afterwards.
func (r *run) act(ctx context.Context, m Move, out *Outcome) (*pb.BatchContext, error) {
	if begins, ok := m.Request.(*pb.InitializeRequest); ok {
		current, err := r.Confirm(ctx)
		if err == nil && !current {
			r.outdated, out.Message = true, "the Rollout has changed since this step was called"
		}
		if err != nil || !current {
			return nil, err
		}
		out.Release = begins.GetReleaseId()
		r.Facts.Begun = append(slices.Clone(r.Facts.Begun), out.Release)
	}
	c, err := r.Call(ctx, m.Request)
	if err != nil {
		if why := r.refusal(m, err); why != "" && ctx.Err() == nil {
			out.Done, out.Message = converge.Failed, why
		}
		return c, err
	}
	r.accepted = append(r.accepted, m.Request)
	if c == nil {
		return r.Look(ctx)
	}
	return c, nil
}

// refusal returns why a step can't begin, if retries can't change that.
func (r *run) refusal(m Move, err error) string {
	if converge.Retryable(err) || converge.Outdated(err) {
		return ""
	}
	switch m.Request.(type) {
	case *pb.InitializeRequest:
		return status.Convert(err).Message()
	case *pb.UndoRequest:
		// A missing right can be granted while the step goes on.
		if plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN {
			return fmt.Sprintf("%s can't be undone: %s; and then: %s", r.Facts.Name, status.Convert(err).Message(), r.Facts.Retry)
		}
	}
	return ""
}

// failed sets the Outcome of an error. It reports whether the run ends, and returns the error that a user must resolve.
func (r *run) failed(err error, out *Outcome) (final bool, unresolved error) {
	out.Message = status.Convert(err).Message()
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		out.Message = fmt.Sprintf("the driver does not answer, the step continues when it does (%s)", out.Message)
	}
	if converge.Retryable(err) || converge.Outdated(err) {
		// The end of a release that can't be ended otherwise takes a while.
		return plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, nil
	}
	begun := out.Release != ""
	switch reason := plugin.Reason(err); { // After all others, once a user has resolved them, the step continues.
	case reason == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, reason == pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS,
		!begun && (reason == pb.ErrorReason_ERROR_REASON_INVALID_REQUEST || reason == pb.ErrorReason_ERROR_REASON_UNSUPPORTED):
		out.Done = converge.Failed
		return true, nil
	default:
		return true, err
	}
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
		for range plugin.Follow(ctx, r.Driver, &pb.WatchBatchContextRequest{Workload: r.Ref}) {
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
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// headerRoute is the name of the header route that steps set.
const headerRoute = "argo-rollouts"

// Target is a workload, and the Rollout that releases it.
type Target struct {
	Driver Driver
	Ref    *pb.WorkloadRef
	Facts  Facts
	Config *Config
	// Confirm reports whether the Rollout is still as in Facts, before a release begins: a step may wait for seconds.
	Confirm func(context.Context) (bool, error)
}

// NewTarget returns the workload that the configuration names.
func NewTarget(driver Driver, f Facts, config *Config) Target {
	return Target{
		Driver: driver, Facts: f, Config: config,
		Ref:     plugin.RefOf(f.Namespace, config.Workload),
		Confirm: func(context.Context) (bool, error) { return true, nil },
	}
}

// Look returns the state of the workload, from the driver's caches.
func (t Target) Look(ctx context.Context) (*pb.BatchContext, error) {
	return t.Call(ctx, &pb.CalculateBatchContextRequest{Workload: t.Ref})
}

// Call makes the call of a request. It returns the state of the workload, nil if the response has none.
func (t Target) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	return converge.CallDriver(ctx, t.Driver, request)
}

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	converge.Driver
	plugin.ContextWatcher
	plugin.WorkloadsWatcher

	Has(pb.Capability) bool
	VerifyWeight(context.Context, *pb.VerifyWeightRequest, ...grpc.CallOption) (*pb.VerifyWeightResponse, error)
}

var _ Driver = (*plugin.Client)(nil)

// Serving returns the revision from which a release would start, or "" if the groups run none, or several.
func Serving(c *pb.BatchContext) string {
	if c.GetState() == pb.State_STATE_PROMOTING {
		return ""
	}
	return plugin.Serving(c) // in all other states the stable groups are as before the release
}
