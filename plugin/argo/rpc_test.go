// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	routerrpc "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	goplugin "github.com/hashicorp/go-plugin"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// bed is both plugins as the controller has them, over Argo's own wire, and a driver in memory.
type bed struct {
	t      *testing.T
	fake   *plugintest.FakeDriver
	driver *plugin.Client
	step   rpc.StepPlugin
	router routerrpc.TrafficRouterPlugin
}

func newBed(t *testing.T) *bed {
	t.Helper()
	fake := plugintest.NewFakeDriver()
	driver := plugintest.Connect(t, fake, nil)
	step := &StepPlugin{
		Driver: driver, Logger: slog.New(slog.DiscardHandler), Waits: make(chan struct{}, 1), Context: t.Context(),
	}
	router := &RouterPlugin{Driver: driver, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	b := &bed{t: t, fake: fake, driver: driver}
	for role, name := range map[Role]string{RoleStep: "RpcStepPlugin", RoleRouter: "RpcTrafficRouterPlugin"} {
		client, _ := goplugin.TestPluginRPCConn(t, role.plugins(step, router), nil)
		t.Cleanup(func() { _ = client.Close() })
		dispensed, err := client.Dispense(name)
		if err != nil {
			t.Fatal(err)
		}
		switch p := dispensed.(type) {
		case rpc.StepPlugin:
			b.step = p
		case routerrpc.TrafficRouterPlugin:
			b.router = p
		}
	}
	return b
}

// rollout is one in the middle of its second template, at the given step.
func (b *bed) rollout(index int32, steps ...string) *v1alpha1.Rollout {
	canary := "{trafficRouting: {plugins: {lockstep/lws: {workload: w, style: Partition, wait: 2s}}}, steps: ["
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
func (b *bed) edited() {
	b.fake.SetWorkload("ns", "w", 4, "t1")
	if _, err := b.driver.Adopt(b.t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"}}); err != nil {
		b.t.Fatal(err)
	}
	b.fake.SetWorkload("ns", "w", 4, "t2")
}

func (b *bed) context() *pb.BatchContext {
	b.t.Helper()
	r, err := b.driver.CalculateBatchContext(b.t.Context(), &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return r.GetContext()
}

// run runs a step and checks its phase.
func (b *bed) run(ro *v1alpha1.Rollout, want types.StepPhase) types.RpcStepResult {
	b.t.Helper()
	got, err := b.step.Run(ro, &types.RpcStepContext{PluginName: PluginName})
	if err.HasError() || got.Phase != want {
		b.t.Fatalf("got %+v, %v, want phase %s", got, err, want)
	}
	return got
}

var quarters = []string{"upgrade: 25%", "upgrade: 100%", "promote: true"}

func TestReleaseOverTheWire(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.edited()
	first := b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
	if c := b.context(); c.GetReleaseId() != mine1 || c.GetPlanned() != 1 || c.GetOwner() != "argo-rollouts/ns/ro" {
		t.Errorf("after the first step: %v", c)
	}
	var status stepStatus
	if err := json.Unmarshal(first.Status, &status); err != nil || status.Release != mine1 {
		t.Errorf("status %s, want release %s", first.Status, mine1)
	}
	b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
	b.run(b.rollout(1, quarters...), types.PhaseSuccessful)
	b.run(b.rollout(2, quarters...), types.PhaseSuccessful)
	if c := b.context(); c.GetState() != pb.State_STATE_COMPLETED || c.GetReleaseId() != mine1 {
		t.Errorf("after the last step: %v", c)
	}
	b.run(b.rollout(2, quarters...), types.PhaseSuccessful)
}

// Argo calls Abort for each step that ran, once; a retry is a new release.
func TestAbortAndRetryOverTheWire(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.edited()
	ran := b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
	for range 2 {
		got, err := b.step.Abort(b.rollout(0, quarters...), &types.RpcStepContext{PluginName: PluginName})
		if err.HasError() || got.Phase != types.PhaseSuccessful {
			t.Errorf("abort: %+v, %v", got, err)
		}
	}
	if c := b.context(); c.GetState() != pb.State_STATE_ROLLED_BACK {
		t.Errorf("after the abort: %v", c)
	}
	// The statuses of the aborted attempt come along with the first call of the retry.
	retried := b.rollout(0, quarters...)
	retried.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{
		{Index: 0, Name: PluginName, Operation: v1alpha1.StepPluginOperationRun, Phase: v1alpha1.StepPluginPhaseSuccessful, Status: ran.Status},
		{Index: 0, Name: PluginName, Operation: v1alpha1.StepPluginOperationAbort, Phase: v1alpha1.StepPluginPhaseSuccessful},
	}
	b.run(retried, types.PhaseSuccessful)
	if c := b.context(); c.GetReleaseId() != "01234567.2.h2.t2.2" || c.GetState() != pb.State_STATE_READY {
		t.Errorf("after the retry: %v", c)
	}
}

// The router sees what no step sees.
func TestRouterOverTheWire(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*v1alpha1.Rollout)
		want   pb.State
	}{
		"under way":      {func(*v1alpha1.Rollout) {}, pb.State_STATE_READY},
		"abort":          {func(ro *v1alpha1.Rollout) { ro.Status.Abort = true }, pb.State_STATE_ROLLED_BACK},
		"promote --full": {func(ro *v1alpha1.Rollout) { ro.Status.PromoteFull = true }, pb.State_STATE_COMPLETED},
		"promoted":       {func(ro *v1alpha1.Rollout) { ro.Status.StableRS = "h2" }, pb.State_STATE_COMPLETED},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.edited()
			b.run(b.rollout(0, quarters...), types.PhaseSuccessful)
			ro := b.rollout(1, quarters...)
			test.change(ro)
			for range 2 {
				for what, err := range map[string]types.RpcError{
					"UpdateHash": b.router.UpdateHash(ro, "h2", "h1", nil), "SetWeight": b.router.SetWeight(ro, 0, nil),
					"RemoveManagedRoutes": b.router.RemoveManagedRoutes(ro),
				} {
					if err.HasError() {
						t.Errorf("%s: %v", what, err)
					}
				}
			}
			if c := b.context(); c.GetState() != test.want {
				t.Errorf("got %v, want %v", c, test.want)
			}
			if verified, err := b.router.VerifyWeight(ro, 0, nil); verified != types.NotImplemented || err.HasError() {
				t.Errorf("verified %v, %v: weights are the steps' business", verified, err)
			}
		})
	}
}

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
			b := newBed(t)
			b.edited()
			ro := b.rollout(0, quarters...)
			test.change(ro)
			if got := b.run(ro, types.PhaseFailed); !strings.Contains(got.Message, test.says) {
				t.Errorf("message %q, want %q", got.Message, test.says)
			}
			if c := b.context(); c.GetReleaseId() != "" {
				t.Errorf("something was begun: %v", c)
			}
		})
	}
}

// A workload that does not exist fails the step; a driver that is away does not.
func TestDriverTrouble(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if got := b.run(b.rollout(0, quarters...), types.PhaseFailed); !strings.Contains(got.Message, "ns/w") {
		t.Errorf("message %q does not name the workload", got.Message)
	}
	reached := make(chan *plugin.Client)
	pending := plugin.NewPending(func(func(error)) *plugin.Client { return <-reached })
	step := &StepPlugin{Driver: pending, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	step.Context = ctx
	got, err := step.Run(b.rollout(0, quarters...), nil)
	if err.HasError() || got.Phase != types.PhaseRunning || got.RequeueAfter <= 10*time.Second {
		t.Errorf("got %+v, %v, want a step that goes on in more than 10 s", got, err)
	}
	b.edited()
	reached <- b.driver
	step.Context = t.Context()
	if got, err := step.Run(b.rollout(0, quarters...), nil); err.HasError() || got.Phase != types.PhaseSuccessful {
		t.Errorf("got %+v, %v", got, err)
	}
}

// gob drops what points to zero: whether a step is the first must not depend on it.
func TestWireDropsZero(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.edited()
	ro := b.rollout(0, quarters...)
	b.run(ro, types.PhaseSuccessful)
	if ro.Status.CurrentStepIndex == nil {
		t.Fatal("the controller's own copy is not to change")
	}
	ro.Status.StableRS = ""
	if got := b.run(ro, types.PhaseSuccessful); !strings.Contains(got.Message, "first deployment") {
		t.Errorf("message %q", got.Message)
	}
}
