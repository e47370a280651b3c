// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"errors"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// stepWait is how long a step waits inside one call of the controller. Two calls are at least 15 s apart, so a longer
	// wait sees groups become ready earlier, but it occupies a worker of the controller.
	stepWait = 20 * time.Second
	// requeue is when a step that continues is called again. Argo replaces anything up to 10 s by half a minute, and adds 5 s
	// to all.
	requeue = 10*time.Second + time.Millisecond
	// abortTimeout bounds how long Abort tries to make the intent durable: Argo calls it once and waits for it.
	abortTimeout = 10 * time.Second
	// DefaultStepWaits is half of the controller's default of 10 workers.
	DefaultStepWaits = 5
)

var _ rpc.StepPlugin = (*Plugin)(nil)

// Run performs the step as far as possible. A step that can't continue fails, which aborts the Rollout. Run never returns
// phase Error: Argo v1.10 can't run such a step again. What a user can resolve is an RpcError, which Argo shows and retries.
func (p *Plugin) Run(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	f, config, err := p.read(ro)
	if err != nil {
		p.log(f, "step", "", err)
		if p.mayAbort(f, config) {
			return types.RpcStepResult{}, types.RpcError{ErrorString: err.Error()}
		}
		return failedResult(err), types.RpcError{}
	}
	step, ok := config.Steps[f.Index]
	if !ok {
		return failedResult(errors.New("the Rollout's current step is not one of this plugin")), types.RpcError{}
	}
	wait := time.Duration(0)
	// Without a slot the step looks once, so that workers of Argo's controller stay free.
	select {
	case p.Waits <- struct{}{}:
		defer func() { <-p.Waits }()
		wait = stepWait
	default:
	}
	target := NewTarget(p.Driver, f, config)
	if p.Rollouts != nil {
		target.Confirm = func(ctx context.Context) (bool, error) { return p.Rollouts.Current(ctx, f) }
	}
	out, err := target.Run(p.Context, step, wait)
	p.log(f, "step", out.Message, err)
	if err != nil {
		return types.RpcStepResult{}, types.RpcError{ErrorString: status.Convert(err).Message()}
	}
	return stepResult(out), types.RpcError{}
}

// mayAbort reports whether a step that fails may abort a release in flight. The configuration is nil if it does not name the workload.
func (p *Plugin) mayAbort(f Facts, config *Config) bool {
	if config == nil {
		return len(f.Begun) > 0
	}
	t := NewTarget(p.Driver, f, config)
	c, err := t.Look(p.Context)
	_, mine := t.mine(c)
	return err != nil || mine && plugin.InFlight(c)
}

// Terminate ends a running step. After promote --full the promotion begins here; otherwise it does nothing.
func (p *Plugin) Terminate(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return p.end(ro, func(*Facts) {})
}

// Abort begins the rollback and returns once that is durable: the driver completes it. Argo calls it for each step that ran;
// the first call has an effect. If it fails, the router and the Controller try again.
func (p *Plugin) Abort(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return p.end(ro, func(f *Facts) { f.Abort = true })
}

func (p *Plugin) end(ro *v1alpha1.Rollout, change func(*Facts)) (types.RpcStepResult, types.RpcError) {
	f, config, err := p.read(ro)
	if config == nil {
		return failedResult(err), types.RpcError{}
	}
	change(&f)
	ctx, cancel := context.WithTimeout(p.Context, abortTimeout)
	defer cancel()
	c, err := ReconcileEndNow(ctx, NewTarget(p.Driver, f, config))
	if err != nil {
		p.log(f, "end of a step", "", err)
		return types.RpcStepResult{}, types.RpcError{ErrorString: status.Convert(err).Message()}
	}
	out := Outcome{Done: converge.Reached, Message: c.GetMessage()}
	if id, own := Ours(f, c); f.Abort && own && id.Hash == f.Hash && movesForward(c) {
		out.Done = converge.Failed
		out.Message = "the release is promoted already, which an abort does not revert: restore the old template. " + c.GetMessage()
	}
	p.log(f, "end of a step", out.Message, nil)
	return stepResult(out), types.RpcError{}
}

// movesForward reports whether the release is being promoted or complete, so that an abort has no effect.
func movesForward(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_COMPLETED || plugin.Ending(c) && c.GetIntent() != pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
}

// read returns the facts and the configuration of a Rollout that Argo's controller sent, with what the API server knows besides. With an
// error it also returns what an abort needs, if that can be read; otherwise the configuration is nil.
func (p *Plugin) read(ro *v1alpha1.Rollout) (Facts, *Config, error) {
	f, read := ReadFacts(ro), ReadLenient
	if p.Rollouts != nil {
		read = p.Rollouts.ReadLenient
	}
	// Argo calls plugins only once its status is of the Rollout's template and steps, but before it notes the generation (rolloutCanary).
	f.Current = true
	config, err := read(ro)
	switch {
	case config == nil && err == nil:
		err = errors.New("the Rollout does not use this plugin")
	case config != nil && p.Rollouts != nil:
		f.Rival = p.Rollouts.Rival(f, config.Workload)
	}
	return f, config, err
}

func (p *Plugin) log(f Facts, what, message string, err error) {
	attrs := []any{"rollout", f.Namespace + "/" + f.Name, "step", f.Index + 1}
	if err != nil {
		p.Logger.Warn(what+" not done", append(attrs, "error", err)...)
		return
	}
	p.Logger.Info(what, append(attrs, "message", message)...)
}

func failedResult(err error) types.RpcStepResult {
	return types.RpcStepResult{Phase: types.PhaseFailed, Message: err.Error()}
}

// stepResult converts the outcome to Argo's type.
func stepResult(o Outcome) types.RpcStepResult {
	r := types.RpcStepResult{Phase: types.PhaseRunning, Message: o.Message, RequeueAfter: requeue}
	switch o.Done { //nolint:exhaustive // After all others the step continues.
	case converge.Reached:
		r.Phase, r.RequeueAfter = types.PhaseSuccessful, 0
	case converge.Failed:
		r.Phase, r.RequeueAfter = types.PhaseFailed, 0
	}
	if o.Release != "" {
		r.Status = stepStatus{Release: o.Release}.encode()
	}
	return r
}
