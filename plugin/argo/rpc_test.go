// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// rpcFixture is the step plugin as the controller has it, over Argo's own wire, and a driver in memory.
type rpcFixture struct {
	t      *testing.T
	fake   *plugintest.FakeDriver
	driver *plugin.Client
	step   rpc.StepPlugin
}

func newRPCFixture(t *testing.T) *rpcFixture {
	t.Helper()
	fake := plugintest.NewFakeDriver()
	driver := plugintest.Connect(t, fake, fake)
	step := &Plugin{
		Driver: driver, Logger: slog.New(slog.DiscardHandler), Waits: make(chan struct{}, 1), Context: t.Context(),
	}
	b := &rpcFixture{t: t, fake: fake, driver: driver}
	client, _ := goplugin.TestPluginRPCConn(t, step.set(RoleStep), nil)
	t.Cleanup(func() { _ = client.Close() })
	dispensed, err := client.Dispense("RpcStepPlugin")
	require.NoError(t, err)
	b.step = dispensed.(rpc.StepPlugin)
	return b
}

// rollout is one in the middle of its second template, at the given step.
func (b *rpcFixture) rollout(index int32, steps ...string) *v1alpha1.Rollout {
	canary := "{trafficRouting: {plugins: {lockstep/lws: {workload: w, style: Partition}}}, steps: ["
	for _, s := range steps {
		canary += "{plugin: {name: lockstep/lws, config: {" + s + "}}},"
	}
	ro := parse(b.t, canary+"]}")
	ro.ObjectMeta = metav1.ObjectMeta{
		Namespace: "ns", Name: "ro", UID: uid, Generation: 4,
		Annotations: map[string]string{annotationNumber: "2", AnnotationFirst: "t1", AnnotationSeen: "t2"},
	}
	ro.Spec.Replicas = ptr.To[int32](0)
	ro.Spec.ProgressDeadlineSeconds = ptr.To[int32](endless)
	ro.Spec.Template.Annotations = map[string]string{AnnotationRevision: "t2"}
	ro.Status = v1alpha1.RolloutStatus{
		CurrentPodHash: "h2", StableRS: "h1", ObservedGeneration: "4", CurrentStepIndex: ptr.To(index),
	}
	return ro
}

// edited puts a workload there whose template was edited.
func (b *rpcFixture) edited() {
	b.fake.SetWorkload("ns", "w", 4, "t1")
	_, err := b.driver.Adopt(b.t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"}})
	require.NoError(b.t, err)
	b.fake.SetWorkload("ns", "w", 4, "t2")
}

func (b *rpcFixture) context() *pb.BatchContext {
	b.t.Helper()
	r, err := b.driver.CalculateBatchContext(b.t.Context(), &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"},
	})
	require.NoError(b.t, err)
	return r.GetContext()
}

// run runs a step and checks its phase.
func (b *rpcFixture) run(ro *v1alpha1.Rollout, want types.StepPhase) types.RpcStepResult {
	b.t.Helper()
	got, err := b.step.Run(ro, &types.RpcStepContext{PluginName: PluginName})
	require.True(b.t, !err.HasError() && got.Phase == want, "got %+v, %v, want phase %s", got, err, want)
	return got
}

var quarters = []string{"upgrade: 25%", "upgrade: 100%", "promote: true"}

// A step that fails says why, and never has the phase Error, from which Argo does not recover.
func TestRefusalsOverTheWire(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*v1alpha1.Rollout)
		says   string
	}{
		"unknown field": {func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.Steps[0].Plugin.Config = json.RawMessage(`{"upgrad":1}`)
		}, `step 1 (spec.strategy.canary.steps[0].plugin.config): unknown field "upgrad"`},
		"deadline": {func(ro *v1alpha1.Rollout) { ro.Spec.ProgressDeadlineSeconds = nil }, "progressDeadlineSeconds is 600"},
		"field of the release in a step": {func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.Steps[1].Plugin.Config = json.RawMessage(`{"promote":true,"batches":["50%"]}`)
		}, `unknown field "batches"`},
		"no traffic router": {func(ro *v1alpha1.Rollout) { ro.Spec.Strategy.Canary.TrafficRouting = nil }, "workload: is required"},
		"experiment": {func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.Steps = append(ro.Spec.Strategy.Canary.Steps, v1alpha1.CanaryStep{Experiment: &v1alpha1.RolloutExperimentStep{}})
		}, "placeholder pods"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRPCFixture(t)
			b.edited()
			ro := b.rollout(0, quarters...)
			test.change(ro)
			assert.Contains(t, b.run(ro, types.PhaseFailed).Message, test.says, "message")
			c := b.context()
			assert.Empty(t, c.GetReleaseId(), "something was begun: %v", c)
		})
	}
}

// A mistake in the configuration does not abort a release in flight, which a step that fails would do: Argo calls again, and shows it.
func TestMistakesInMidRelease(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*v1alpha1.Rollout){
		`unknown field "drian"`: func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.TrafficRouting.Plugins[PluginName] = json.RawMessage(`{"workload":"w","drian":{}}`)
		},
		"workload: is required": func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.TrafficRouting.Plugins[PluginName] = json.RawMessage(`{}`)
		},
		`unknown field "promot"`: func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.Steps[2].Plugin.Config = json.RawMessage(`{"promot":true}`)
			ro.Status.CurrentStepIndex, ro.Status.Canary.StepPluginStatuses = ptr.To[int32](0), nil // Argo starts at the first step
		},
		"the release has no policy.traffic": func(ro *v1alpha1.Rollout) {
			ro.Spec.Strategy.Canary.TrafficRouting.Plugins[PluginName] = json.RawMessage(`{"workload":"w","style":"Partition","traffic":{"stableService":"s","httpRoutes":["r"]}}`)
			ro.Spec.Strategy.Canary.Steps[1].Plugin.Config = json.RawMessage(`{"weight":25}`)
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			b := newRPCFixture(t)
			b.edited()
			begun := b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
			ro := b.rollout(1, quarters...)
			ro.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{{
				Name: PluginName, Operation: v1alpha1.StepPluginOperationRun, Status: begun.Status,
			}}
			change(ro)
			got, err := b.step.Run(ro, &types.RpcStepContext{PluginName: PluginName})
			if !strings.Contains(err.Error(), says) || !plugin.InFlight(b.context()) {
				t.Errorf("got %+v, %v, want the error %q; stands at %v", got, err, says, b.context())
			}
		})
	}
}

// An abort after the groups were promoted has no effect. The driver refuses it once, Argo aborts the step, and the step says why.
func TestAbortAfterThePromotion(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	b.fake.OnFinalize = func(intent pb.FinalizeIntent, c *pb.BatchContext) error {
		if intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release is promoted: revision t2 serves")
		}
		c.State = pb.State_STATE_PROMOTING
		return nil
	}
	b.edited()
	b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
	_, err := b.driver.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: b.context().GetWorkload(), ReleaseId: b.context().GetReleaseId(), UpdateRevision: "t2", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	})
	require.NoError(t, err)
	ro := b.rollout(2, quarters...)
	ro.Status.Abort = true
	before := len(b.fake.Calls())
	router := &Plugin{Driver: b.driver, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	if err := router.RemoveManagedRoutes(ro); err.HasError() || len(b.fake.Calls())-before > 3 {
		t.Errorf("Argo does not get to abort the step: %v, after %d calls", err, len(b.fake.Calls())-before)
	}
	got, failure := b.step.Abort(ro, &types.RpcStepContext{PluginName: PluginName})
	require.False(t, failure.HasError(), failure)
	assert.True(t, got.Phase == types.PhaseFailed && strings.Contains(got.Message, "is promoted already"), "got %+v", got)
}

// A retry whose first call failed, or came within the backoff of its step, has the status of the aborted attempt without the time of the abort.
func TestRetryAfterItsFirstCall(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	b.edited()
	begun := b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
	ro := b.rollout(0, quarters...)
	ro.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{{
		Name: PluginName, Operation: v1alpha1.StepPluginOperationRun, Phase: v1alpha1.StepPluginPhaseError, Status: begun.Status,
	}}
	_, err := b.step.Abort(ro, &types.RpcStepContext{PluginName: PluginName})
	require.False(t, err.HasError(), err)
	first := b.context().GetReleaseId()
	b.run(ro, types.PhaseSuccessful)
	assert.NotEqual(t, first, b.context().GetReleaseId(), "the retry is no release of its own")
}

// A workload that does not exist fails the step; a driver that is away does not.
func TestDriverTrouble(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	got := b.run(b.rollout(0, quarters...), types.PhaseFailed)
	assert.Contains(t, got.Message, "ns/w", "message %q does not name the workload", got.Message)
	reached := make(chan *plugin.Client)
	pending := plugin.NewPending(func(func(error)) *plugin.Client { return <-reached })
	step := &Plugin{Driver: pending, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	step.Context = ctx
	got, err := step.Run(b.rollout(0, quarters...), nil)
	assert.True(t, !err.HasError() && got.Phase == types.PhaseRunning && got.RequeueAfter > 10*time.Second,
		"got %+v, %v, want a step that goes on in more than 10 s", got, err)
	b.edited()
	reached <- b.driver
	step.Context = t.Context()
	got, err = step.Run(b.rollout(0, quarters...), nil)
	assert.True(t, !err.HasError() && got.Phase == types.PhaseSuccessful, "got %+v, %v", got, err)
}

// gob drops what points to zero: whether a step is the first must not depend on it.
func TestWireDropsZero(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	b.edited()
	ro := b.rollout(0, quarters...)
	b.run(ro, types.PhaseSuccessful)
	require.NotNil(t, ro.Status.CurrentStepIndex, "the controller's own copy is not to change")
	ro.Status.StableRS = ""
	assert.Contains(t, b.run(ro, types.PhaseSuccessful).Message, "first deployment", "message")
}

// promote --full of a paused Rollout changes its spec, too, and Argo promotes before it has noted that: the router has the promotion recorded.
func TestRouterPromotesBeforeTheSpecIsObserved(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	b.edited()
	ro := b.rollout(0, quarters...)
	b.run(ro, types.PhaseSuccessful)
	ro.Generation++
	ro.Status.PromoteFull = true
	router := &Plugin{Driver: b.driver, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	if err := router.RemoveManagedRoutes(ro); err.HasError() || b.context().GetIntent() != pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		t.Errorf("%v, stands at %v", err, b.context())
	}
}

// A lower weight is requested although lost groups have taken the share there already: it would rise again with them.
func TestRouterRequestsALowerWeight(t *testing.T) {
	t.Parallel()
	b := newRPCFixture(t)
	b.edited()
	ro := b.rollout(0, "upgrade: 50%")
	canary := parse(t, "{trafficRouting: {plugins: {lockstep/lws: {workload: w, traffic: {stableService: s, httpRoutes: [r]}}}}, "+
		"steps: [{plugin: {name: lockstep/lws, config: {upgrade: 50%}}}, {setWeight: 50}, {setWeight: 20}]}")
	ro.Spec.Strategy = canary.Spec.Strategy
	b.run(ro, types.PhaseSuccessful)
	router := &Plugin{Driver: b.driver, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	for _, weight := range []int32{50, 50, 20} {
		ro.Status.CurrentStepIndex = ptr.To(1 + (50-weight)/30)
		err := router.SetWeight(ro, weight, nil)
		require.False(t, err.HasError(), err)
		b.fake.Set("ns", "w", func(c *pb.BatchContext) { c.TrafficWeight = 20 })
	}
	calls := slices.DeleteFunc(b.fake.Calls(), func(call string) bool { return !strings.HasPrefix(call, "SetWeight") })
	assert.True(t, slices.Equal(calls, []string{"SetWeight 50", "SetWeight 20"}), "calls: %q", calls)
}
