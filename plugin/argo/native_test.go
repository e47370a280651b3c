// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"flag"
	"reflect"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/nativetest"
)

var update = flag.Bool("update", false, "write the table of fields in docs/reference-argo-fields.md")

func TestFieldsReference(t *testing.T) {
	t.Parallel()
	nativetest.Documented(t, nativeFields, "../../docs/reference-argo-fields.md", *update)
}

// Every field of this version of Argo is judged, and none that it doesn't have.
func TestEveryFieldIsJudged(t *testing.T) {
	t.Parallel()
	nativetest.Complete(t, nativeFields, map[string]reflect.Type{
		"":                               reflect.TypeFor[v1alpha1.RolloutSpec](),
		"strategy":                       reflect.TypeFor[v1alpha1.RolloutStrategy](),
		"strategy.canary":                reflect.TypeFor[v1alpha1.CanaryStrategy](),
		"strategy.canary.trafficRouting": reflect.TypeFor[v1alpha1.RolloutTrafficRouting](),
		"strategy.canary.steps[]":        reflect.TypeFor[v1alpha1.CanaryStep](),
	})
}

// unfit returns why a Rollout begins no release.
func unfit(t *testing.T, ro *v1alpha1.Rollout) string {
	t.Helper()
	if ro.Spec.ProgressDeadlineSeconds == nil {
		ro.Spec.ProgressDeadlineSeconds = ptr.To[int32](endless)
	}
	c, err := readTyped(ro)
	require.NoError(t, err, "a release in flight would be aborted")
	if c.Unfit == nil {
		return ""
	}
	return c.Unfit.Error()
}

func TestUnfitSpec(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*v1alpha1.RolloutSpec)
		want   string
	}{
		"minReadySeconds":       {func(s *v1alpha1.RolloutSpec) { s.MinReadySeconds = 10 }, "spec.minReadySeconds: "},
		"progressDeadlineAbort": {func(s *v1alpha1.RolloutSpec) { s.ProgressDeadlineAbort = true }, "spec.progressDeadlineAbort: "},
		"workloadRef":           {func(s *v1alpha1.RolloutSpec) { s.WorkloadRef = &v1alpha1.ObjectRef{Name: "w"} }, "spec.workloadRef: "},
		// Argo counts it for each step, however long the policy's deadline is.
		"deadline of a day": {func(s *v1alpha1.RolloutSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](86400) }, "progressDeadlineSeconds is 86400"},
		"allowed": {func(s *v1alpha1.RolloutSpec) {
			s.RollbackWindow, s.RevisionHistoryLimit, s.Paused = &v1alpha1.RollbackWindowSpec{Revisions: 3}, ptr.To[int32](5), true
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ro := parse(t, strategy("workload: w", ownStep("upgrade: 50%")))
			test.change(&ro.Spec)
			got := unfit(t, ro)
			assert.False(t, test.want == "" && got != "" || !strings.Contains(got, test.want), "got %q, want %q", got, test.want)
		})
	}
}

// The weight is that of the last setWeight step, unless a later step of the plugin has one; gob drops a weight of 0.
func TestNativeWeight(t *testing.T) {
	t.Parallel()
	ro := parse(t, strategy("workload: w, traffic: {stableService: s}", ownStep("upgrade: 50%"), "{setWeight: 50}", "{pause: {}}", "{setWeight: 0}", ownStep("weight: 0"), "{pause: {}}"))
	ro.Spec.Strategy.Canary.Steps[3].SetWeight = nil // as it arrives
	for index, want := range []int32{-1, 50, 50, 0, -1, -1} {
		ro.Status.CurrentStepIndex = ptr.To(int32(index))
		weight, set := nativeWeight(ro)
		if !set {
			weight = -1
		}
		assert.Equal(t, want, weight, "step %d: weight", index+1)
	}
}
