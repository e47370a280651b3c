// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The following are cases of Kruise's own end-to-end tests for workloads with a partition, adapted to groups.

// Percentages refer to the present number of groups.
//
// Proves: Kruise: targets that are deleted or come later; scaling; the examples.
func TestScaledInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	before := e.Identities()
	e.PatchWorkload(`{"spec":{"replicas":2}}`)
	e.Eventually("the driver holds one of two groups", func(ctx context.Context) error {
		s := e.Workload(ctx).Spec.RolloutStrategy.RollingUpdateConfiguration
		if s == nil || ptr.Deref(s.Partition, 0) != 1 {
			return fmt.Errorf("the rolling update is %s", asJSON(s))
		}
		return nil
	})
	e.MustHave("v1 v2")
	e.MustKeep(before, 0)
	e.approve()
	e.awaitDone()
	e.MustHave("v2 v2")
}

// Proves: Kruise: pauses, jumps, validation.
func TestPausedAndResumed(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"strategy":{"paused":true}}}`)
	e.awaitRollout("that it is paused", func(r *unstructured.Unstructured) bool {
		return strings.Contains(asJSON(r.Object["status"]), `"reason":"Paused"`)
	})
	e.MustHave("v1 v1 v1 v2")
	e.patch(rollouts, `{"spec":{"strategy":{"paused":false}}}`)
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
}

// A jump over a step, to the last one, at which Kruise does not wait.
//
// Proves: Kruise: pauses, jumps, validation.
func TestStepJump(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.jump(3)
	e.MustHave("v2 v2 v2 v2")
	e.awaitDone()
	e.MustRest("v2")
}

// A jump back, as by `kubectl kruise rollout undo --fast`, repeats steps. Updated groups stay: Kruise does not raise a partition.
//
// Proves: Kruise: pauses, jumps, validation.
func TestStepJumpBack(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.jump(1)
	e.awaitPause(1)
	e.MustHave("v1 v1 v2 v2")
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
}

// jump sets Kruise's next step.
func (e *env) jump(to int) {
	e.T.Helper()
	e.awaitRollout("the jump is accepted", func(r *unstructured.Unstructured) bool {
		if field(r, "status", "canaryStatus", "currentStepIndex") == fmt.Sprint(to) || field(r, "status", "phase") == "Healthy" {
			return true
		}
		if field(r, "status", "canaryStatus", "nextStepIndex") != fmt.Sprint(to) { // Kruise may write the status that it read before
			e.patch(rollouts, fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"canaryStatus":{"nextStepIndex":%d}}}`, r.GetResourceVersion(), to), "status")
		}
		return false
	})
}

// Steps are changed during the release: Kruise continues at the step that matches the updated groups.
//
// Proves: Kruise Rollouts: the other verbs in docs/kruise-rollouts.md.
func TestStepsChanged(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"strategy":{"canary":{"steps":[{"replicas":"25%","pause":{}},{"replicas":"75%","pause":{}},{"replicas":"100%"}]}}}}`)
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v2 v2 v2")
	e.approve()
	e.awaitDone()
	e.MustRest("v2")
}

// What Kruise would ignore for a target is refused before a group is replaced, and can be corrected after a rollback.
//
// Proves: Kruise: ignored fields are refused; rollback in batches; another rollout id.
func TestUnsupportedPlan(t *testing.T) {
	t.Parallel()
	for field, value := range map[string]string{
		"enableExtraWorkloadForCanary": "true", "patchPodTemplateMetadata": "{labels: {track: canary}}",
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters)
			e.Apply(rollout(quarters, field+": "+value))
			e.Edit("v2")
			e.awaitReady(name, metav1.ConditionFalse, "Unsupported")
			suite.AwaitEvents(t, e.Kube, e.Namespace, "RolloutTarget", name, "Warning Unsupported")
			s := e.target(t.Context(), name).Status
			assert.True(t, s.UpdatedReplicas == 0 && strings.Contains(s.Conditions[0].Message, field), "its status is %s", asJSON(s))
			e.Edit("v1")
			e.awaitDone()
			e.MustRest("v1")
			e.patch(rollouts, fmt.Sprintf(`{"spec":{"strategy":{"canary":{%q:null}}}}`, field))
			e.Edit("v2")
			e.awaitPause(1)
			e.MustHave("v1 v1 v1 v2")
		})
	}
}

// With Kruise's annotation a rollback passes through the steps again. Only the count does: the groups return at once.
//
// Proves: Kruise: ignored fields are refused; rollback in batches; another rollout id.
func TestRollbackInBatches(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.patch(rollouts, `{"metadata":{"annotations":{"rollouts.kruise.io/rollback-in-batch":"true"}}}`)
	e.Edit("v2")
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	e.Edit("v1")
	e.MustRest("v1")
	e.awaitPause(1)
	s := e.target(t.Context(), name).Status
	assert.Contains(t, s.Conditions[0].Message, "do not delay a rollback", "its status is %s", asJSON(s))
	e.approve()
	e.awaitPause(2)
	e.approve()
	e.awaitDone()
	e.MustRest("v1")
}

// Kruise counts the batches again when the id changes or is removed, and the Rollout stays at its step. The pods keep the id with
// which the release began.
//
// Proves: Kruise: ignored fields are refused; rollback in batches; another rollout id.
func TestRolloutIDChangedInMidRelease(t *testing.T) {
	t.Parallel()
	for id, label := range map[string]string{"changed": `"r8"`, "removed": "null"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters)
			e.Edit("v2", func(w *lws.LeaderWorkerSet) {
				metav1.SetMetaDataLabel(&w.ObjectMeta, "rollouts.kruise.io/rollout-id", "r7")
			})
			e.awaitPause(1)
			e.approve()
			e.awaitPause(2)
			e.PatchWorkload(`{"metadata":{"labels":{"rollouts.kruise.io/rollout-id":` + label + `}}}`)
			e.awaitRollout("it has observed the id", func(r *unstructured.Unstructured) bool {
				return field(r, "status", "canaryStatus", "observedRolloutID") != "r7"
			})
			e.MustHave("v1 v1 v2 v2")
			e.mustLabel("r7", map[string]string{"2": "2", "3": "1"})
			e.approve()
			e.awaitDone()
			e.MustRest("v2")
		})
	}
}
