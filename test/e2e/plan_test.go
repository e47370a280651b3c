// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// A release matches its plan at each step, and planning writes nothing.
//
// Proves (test, canary): Plan predicts the release, and writes nothing; undo restores a template that LWS no longer has.
// Proves: Plan in each style.
func TestPlan(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]*pb.ReleasePolicy{
		"canary": policy("25%", "50%", "100%"), "partition": inPlace("25%", "50%", "100%"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, begun := newEnv(t), time.Now()
			w := e.adopt(model("model", 4, 2, gpus("1"), annotated(cluster.AnnotationWarmup, "2s"), rolling("1", "0", -1)))
			w.edit(image("v2"), gpus("2"))
			w.await("the new template is known", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
			before := w.get()
			r := w.plan(policy)
			// LWS may write the status meanwhile.
			if after := w.get(); after.Generation != before.Generation || !maps.Equal(after.Annotations, before.Annotations) {
				t.Errorf("the plan wrote: %s, then %s", asJSON(before.ObjectMeta), asJSON(after.ObjectMeta))
			}
			// The API's times are whole seconds.
			if took := r.GetStartup().AsDuration(); took < time.Second || took > time.Since(begun)+time.Second || r.GetStartupGroups() != 4 {
				t.Errorf("start-up %s of %d groups, want at least 2s of 4", took, r.GetStartupGroups())
			}
			require.True(t, len(r.GetSteps()) == 4 && len(r.GetBlockers()) == 0, "steps %v, blockers %v", r.GetSteps(), r.GetBlockers())
			w.initialize("r1", policy)
			for batch, step := range r.GetSteps()[:3] {
				w.upgrade("r1", int32(batch))
				w.mustMatchStep(step, w.awaitState(pb.State_STATE_READY))
			}
			codes := warningCodes(w.plan(policy).GetBlockers())
			assert.True(t, slices.Contains(codes, "ReleaseInProgress"), "blockers in mid-release: %v", codes)
			w.finalize("r1", promote)
			w.mustMatchStep(r.GetSteps()[3], w.awaitState(pb.State_STATE_COMPLETED))
			mustPlanGPUs(t, name, r)
		})
	}
}

// mustPlanGPUs fails unless the steps need these extra GPUs: 8 pods run with 1 GPU each, pods of the new template request 2.
func mustPlanGPUs(t *testing.T, style string, r *pb.PlanResponse) {
	t.Helper()
	want := map[string][]string{"canary": {"4", "8", "16", "24"}, "partition": {"2", "4", "8", "8"}}[style]
	for i, step := range r.GetSteps() {
		got := step.GetExtraResources()["nvidia.com/gpu"]
		assert.Equal(t, want[i], got, "%s: %s extra GPUs, want %s", step.GetName(), got, want[i])
	}
}

// plan calls Plan.
func (w *workload) plan(policy *pb.ReleasePolicy) *pb.PlanResponse {
	w.t.Helper()
	r, err := w.driver.Plan(w.t.Context(), &pb.PlanRequest{Workload: w.ref(), Policy: policy})
	require.NoError(w.t, err, "Plan")
	return r
}

func warningCodes(warnings []*pb.Warning) []string {
	codes := make([]string, 0, len(warnings))
	for _, w := range warnings {
		codes = append(codes, w.GetCode())
	}
	return codes
}

// mustMatchStep fails unless the context has the groups of the planned step.
func (w *workload) mustMatchStep(step *pb.PlanStep, c *pb.BatchContext) {
	w.t.Helper()
	assert.True(w.t, c.GetStableReady() == step.GetStableGroups() && c.GetUpdatedReady() == step.GetCanaryGroups() && c.GetTotal() == step.GetReadyGroups(),
		"%s: stable %d, updated %d of %d groups; planned %d, %d of %d", step.GetName(), c.GetStableReady(), c.GetUpdatedReady(), c.GetTotal(), step.GetStableGroups(), step.GetCanaryGroups(), step.GetReadyGroups())
}
