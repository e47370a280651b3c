// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"flag"
	"reflect"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
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
	if err != nil {
		t.Fatalf("a release in flight would be aborted: %v", err)
	}
	if c.Unfit == nil {
		return ""
	}
	return c.Unfit.Error()
}

func TestUnfit(t *testing.T) {
	t.Parallel()
	routed := func(steps ...string) string { return strategy("workload: w, traffic: {stableService: s}", steps...) }
	routing := func(field string) string {
		return "{trafficRouting: {" + field + ", plugins: {lockstep/lws: {workload: w}}}, steps: [" + ownStep("upgrade: 50%") + "]}"
	}
	begun := ownStep("upgrade: 50%")
	hash := "{analysis: {templates: [{templateName: a}], args: [{name: h, valueFrom: {podTemplateHashValue: Latest}}]}}"
	tests := map[string]struct {
		canary string
		want   []string
	}{
		"setWeight beside weight":       {routed(begun, "{setWeight: 10}", ownStep("weight: 20")), []string{"step 2", "steps[1].setWeight", "step 3"}},
		"setWeight before groups":       {routed("{setWeight: 10}", begun), []string{"step 1", "`upgrade` in a step"}},
		"setWeight of nothing":          {strategy("workload: w", begun, "{setWeight: 10}"), []string{"step 2", "nothing splits"}},
		"setHeaderRoute before release": {routed("{setHeaderRoute: {name: x}}", begun), []string{"step 1", "steps[0].setHeaderRoute", "nothing to route to"}},
		"setHeaderRoute of nothing":     {strategy("workload: w", begun, "{setHeaderRoute: {name: x}}"), []string{"step 2", "nothing splits"}},
		"setMirrorRoute before release": {routed("{setMirrorRoute: {name: x}}", begun), []string{"step 1", "nothing to route to"}},
		"setMirrorRoute with match":     {routed(begun, "{setMirrorRoute: {name: x, match: [{path: {exact: /a}}]}}"), []string{"steps[1].setMirrorRoute.match", "`mirror`"}},
		"setCanaryScale":                {routed(begun, "{setCanaryScale: {replicas: 2}}"), []string{"spec.strategy.canary.steps[1].setCanaryScale", "`upgrade`"}},
		"experiment":                    {routed(begun, "{experiment: {templates: [{name: a, specRef: canary}]}}"), []string{"spec.strategy.canary.steps[1].experiment", "`analysis`"}},
		"stableService":                 {withStrategy("stableService: s"), []string{"spec.strategy.canary.stableService", "traffic.stableService"}},
		"canaryService":                 {withStrategy("canaryService: s"), []string{"spec.strategy.canary.canaryService", "traffic.canaryService"}},
		"canaryMetadata":                {withStrategy("canaryMetadata: {labels: {a: b}}"), []string{"canaryMetadata", "canaryLeaderMetadata"}},
		"stableMetadata":                {withStrategy("stableMetadata: {labels: {a: b}}"), []string{"stableMetadata"}},
		"dynamicStableScale":            {withStrategy("dynamicStableScale: true"), []string{"dynamicStableScale"}},
		"scaleDownDelaySeconds":         {withStrategy("scaleDownDelaySeconds: 30"), []string{"scaleDownDelaySeconds", "blueGreen.scaleDownDelay"}},
		"pingPong":                      {withStrategy("pingPong: {pingService: a, pongService: b}"), []string{"pingPong"}},
		"maxTrafficWeight": {
			"{trafficRouting: {maxTrafficWeight: 1000, plugins: {lockstep/lws: {workload: w}}}, steps: [" + begun + "]}", []string{"maxTrafficWeight", "percentages"},
		},
		"istio":                    {routing("istio: {destinationRule: {name: a, canarySubsetName: c, stableSubsetName: s}}"), []string{"trafficRouting.istio", "`traffic`"}},
		"nginx":                    {routing("nginx: {stableIngress: a}"), []string{"trafficRouting.nginx", "`traffic`"}},
		"another router plugin":    {"{trafficRouting: {plugins: {a/b: {}, lockstep/lws: {workload: w}}}, steps: [" + begun + "]}", []string{"trafficRouting.plugins[a/b]", "`traffic`"}},
		"maxSurge":                 {withStrategy("maxSurge: 1"), []string{"maxSurge", "LeaderWorkerSet"}},
		"maxUnavailable":           {withStrategy("maxUnavailable: 0"), []string{"maxUnavailable", "LeaderWorkerSet"}},
		"antiAffinity":             {withStrategy("antiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}"), []string{"antiAffinity", "`affinity`"}},
		"minPodsPerReplicaSet":     {withStrategy("minPodsPerReplicaSet: 2"), []string{"minPodsPerReplicaSet", "upgrade"}},
		"replicaProgressThreshold": {withStrategy("replicaProgressThreshold: {type: Pods, value: 1}"), []string{"replicaProgressThreshold", "failureThreshold"}},
		"hash of placeholder pods": {routed(begun, hash), []string{"steps[1].analysis.args[0].valueFrom.podTemplateHashValue", "canary-revision"}},
		"two fields":               {withStrategy("maxSurge: 1, stableService: s"), []string{"spec.strategy.canary.maxSurge", "spec.strategy.canary.stableService"}},
		"without effect":           {withStrategy("abortScaleDownDelaySeconds: 0, scaleDownDelayRevisionLimit: 1"), nil},
		"values of the default":    {routing("maxTrafficWeight: 100"), nil},
		"other steps":              {routed(begun, "{pause: {duration: 1m}}", "{setWeight: 50}", "{setHeaderRoute: {name: x}}", "{setMirrorRoute: {name: y, percentage: 5}}"), nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := unfit(t, parse(t, test.canary))
			if test.want == nil && got != "" {
				t.Errorf("refused: %s", got)
			}
			for _, words := range append(test.want, "no release begins") {
				if test.want != nil && !strings.Contains(got, words) {
					t.Errorf("%q does not say %q", got, words)
				}
			}
		})
	}
}

// withStrategy is a valid strategy with one more field.
func withStrategy(field string) string {
	return "{" + field + ", trafficRouting: {plugins: {lockstep/lws: {workload: w}}}, steps: [" + ownStep("upgrade: 50%") + "]}"
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
			if got := unfit(t, ro); test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
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
		if weight != want {
			t.Errorf("step %d: weight %d, want %d", index+1, weight, want)
		}
	}
}
