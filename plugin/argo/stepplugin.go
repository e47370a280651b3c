// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// requeue is when a step that goes on wants to be called again. Argo makes half a minute of anything up to 10 s, and
	// adds 5 s to all.
	requeue = 10*time.Second + time.Millisecond
	// abortPatience is how long Abort tries to make the intent durable: Argo calls it once and waits for it.
	abortPatience = 10 * time.Second
	// DefaultStepWaits is half of the controller's default of 10 workers.
	DefaultStepWaits = 5
)

// Rivals finds out who else wants a workload.
type Rivals interface {
	// Rival returns the name of a Rollout that came to the workload before this one. Empty: none, or not known.
	Rival(f Facts, workload string) string
}

// StepPlugin is Argo's step plugin. It may be called by several goroutines.
type StepPlugin struct {
	// Driver is required.
	Driver Driver
	// Rivals may be nil.
	Rivals Rivals
	// Logger is required.
	Logger *slog.Logger
	// Waits bounds how many steps wait at once: each takes a worker of the controller. Nil: none waits.
	Waits chan struct{}
	// Context ends with the process. Required.
	Context context.Context //nolint:containedctx // Argo's interface has none.
}

var _ rpc.StepPlugin = (*StepPlugin)(nil)

// InitPlugin has nothing to do: the driver fills its caches by itself, and Argo asks only once.
func (*StepPlugin) InitPlugin() types.RpcError { return types.RpcError{} }

// Type names the plugin.
func (*StepPlugin) Type() string { return PluginName }

// Run takes the step as far as it gets. A step that can't go on fails, which aborts the Rollout. A phase Error is never
// returned: Argo v1.10 can't run such a step again. What may pass once a person has mended something is an RpcError,
// which Argo shows and tries again.
func (p *StepPlugin) Run(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	f, config, err := p.read(ro)
	if err != nil {
		p.log(f, "step", "", err)
		return failed(err), types.RpcError{}
	}
	step, ok := config.Steps[f.Index]
	if !ok {
		return failed(errors.New("the Rollout's current step is not one of this plugin")), types.RpcError{}
	}
	r := &run{
		target:  newTarget(p.Driver, f, config),
		stepper: stepper{facts: f, config: config, step: step, canUndo: p.Driver.Has(pb.Capability_CAPABILITY_UNDO)},
	}
	if p.slot() {
		defer p.free()
		r.patience = config.Wait
	}
	out, err := r.do(p.Context)
	p.log(f, "step", out.message, err)
	if err != nil {
		return types.RpcStepResult{}, types.RpcError{ErrorString: text(err)}
	}
	return out.result(), types.RpcError{}
}

// Terminate ends a running step: with promote --full the promotion begins here, otherwise there is nothing to end.
func (p *StepPlugin) Terminate(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return p.end(ro, func(*Facts) {})
}

// Abort begins the way back and returns once that is durable: the driver finishes it, whoever is left. It is called for
// each step that ran; the first call does it. If it fails the traffic router's half and the Controller try again.
func (p *StepPlugin) Abort(ro *v1alpha1.Rollout, _ *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return p.end(ro, func(f *Facts) { f.Abort = true })
}

func (p *StepPlugin) end(ro *v1alpha1.Rollout, mean func(*Facts)) (types.RpcStepResult, types.RpcError) {
	f, config, err := p.read(ro)
	if config == nil {
		return failed(err), types.RpcError{}
	}
	mean(&f)
	ctx, cancel := context.WithTimeout(p.Context, abortPatience)
	defer cancel()
	c, err := settleNow(ctx, newTarget(p.Driver, f, config))
	if err != nil {
		p.log(f, "end of a step", "", err)
		return types.RpcStepResult{}, types.RpcError{ErrorString: text(err)}
	}
	out := outcome{done: actSucceed, message: c.GetMessage()}
	if id, own := ours(f, c); f.Abort && own && id.Hash == f.Hash && forwards(c) {
		out.done = actFail
		out.message = "the release is promoted already, and an abort does not take that back: restore the old template. " + c.GetMessage()
	}
	p.log(f, "end of a step", out.message, nil)
	return out.result(), types.RpcError{}
}

// forwards reports whether the release is past the point up to which it can be rolled back.
func forwards(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_COMPLETED
}

// read reads the Rollout that the controller sent. With an error comes what ends need, if it can be read.
func (p *StepPlugin) read(ro *v1alpha1.Rollout) (Facts, *Config, error) {
	f := ReadFacts(ro)
	config, err := ReadLenient(ro)
	if config == nil && err == nil {
		err = errors.New("the Rollout does not use this plugin")
	}
	if config != nil && p.Rivals != nil {
		f.Rival = p.Rivals.Rival(f, config.Workload)
	}
	return f, config, err
}

// slot takes the right to wait, if there is one left.
func (p *StepPlugin) slot() bool {
	select {
	case p.Waits <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *StepPlugin) free() { <-p.Waits }

func (p *StepPlugin) log(f Facts, what, message string, err error) {
	attrs := []any{"rollout", f.Namespace + "/" + f.Name, "step", f.Index + 1}
	if err != nil {
		p.Logger.Warn(what+" not done", append(attrs, "error", err)...)
		return
	}
	p.Logger.Info(what, append(attrs, "message", message)...)
}

func failed(err error) types.RpcStepResult {
	return types.RpcStepResult{Phase: types.PhaseFailed, Message: err.Error()}
}

// result is the outcome in Argo's words.
func (o outcome) result() types.RpcStepResult {
	r := types.RpcStepResult{Phase: types.PhaseRunning, Message: o.message, RequeueAfter: requeue}
	switch o.done { //nolint:exhaustive // Everything else goes on.
	case actSucceed:
		r.Phase, r.RequeueAfter = types.PhaseSuccessful, 0
	case actFail:
		r.Phase, r.RequeueAfter = types.PhaseFailed, 0
	}
	if o.release != "" {
		r.Status = stepStatus{Release: o.release}.encode()
	}
	return r
}
