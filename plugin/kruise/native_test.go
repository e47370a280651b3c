// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"encoding/json"
	"flag"
	"reflect"
	"strings"
	"testing"

	kruise "github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/nativetest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var update = flag.Bool("update", false, "write the table of fields in docs/reference-kruise-fields.md")

func TestFieldsReference(t *testing.T) {
	t.Parallel()
	nativetest.Documented(t, rolloutFields, "../../docs/reference-kruise-fields.md", *update)
}

// Every field of this version of Kruise is judged, and none that it doesn't have.
func TestEveryFieldIsJudged(t *testing.T) {
	t.Parallel()
	nativetest.Complete(t, rolloutFields, map[string]reflect.Type{
		"":                        reflect.TypeFor[kruise.RolloutSpec](),
		"strategy":                reflect.TypeFor[kruise.RolloutStrategy](),
		"strategy.canary":         reflect.TypeFor[kruise.CanaryStrategy](),
		"strategy.canary.steps[]": reflect.TypeFor[kruise.CanaryStep](),
	})
	nativetest.Complete(t, planFields, map[string]reflect.Type{
		"": reflect.TypeFor[kruise.ReleasePlan](), "batches[]": reflect.TypeFor[kruise.ReleaseBatch](),
	})
}

func TestUnfit(t *testing.T) {
	t.Parallel()
	const canary = "{spec: {workloadRef: {name: t}, disabled: false, strategy: {paused: true, canary: {" +
		"steps: [{replicas: 25%, traffic: 5%, pause: {}, matches: [{}], requestHeaderModifier: {}}], failureThreshold: 1, " +
		"trafficRoutings: [{service: s, gracePeriodSeconds: 3, gateway: {httpRouteName: r}}], FIELD}}}}"
	const plan = "{spec: {releasePlan: {batches: [{canaryReplicas: 25%}], batchPartition: 0, rolloutID: r, failureThreshold: 1, " +
		"finalizingPolicy: Immediate, rollingStyle: Partition, enableExtraWorkloadForCanary: false, FIELD}}}"
	with := func(object, field string) string {
		if field == "" {
			return strings.Replace(object, ", FIELD", "", 1)
		}
		return strings.Replace(object, "FIELD", field, 1)
	}
	tests := map[string]struct {
		rollout, batchRelease string
		want                  string
	}{
		"all that works":               {with(canary, ""), with(plan, ""), ""},
		"neither":                      {"", "", ""},
		"blueGreen":                    {"{spec: {strategy: {blueGreen: {}}}}", "", "Rollout: spec.strategy.blueGreen: "},
		"enableExtraWorkloadForCanary": {with(canary, "enableExtraWorkloadForCanary: true"), "", "spec.strategy.canary.enableExtraWorkloadForCanary: "},
		"patchPodTemplateMetadata":     {with(canary, "patchPodTemplateMetadata: {labels: {a: b}}"), "", "spec.strategy.canary.patchPodTemplateMetadata: "},
		"trafficRoutingRef":            {with(canary, "trafficRoutingRef: x"), "", "use `trafficRoutings`"},
		"disableGenerateCanaryService": {with(canary, "disableGenerateCanaryService: true"), "", "disableGenerateCanaryService"},
		"unjudged, of a strategy":      {with(canary, "newer: 1"), "", "spec.strategy.canary.newer: this version of Lockstep did not judge"},
		"unjudged, of a step":          {"{spec: {strategy: {canary: {steps: [{replicas: 1}, {warmUp: 5}]}}}}", "", "steps[1].warmUp: "},
		"unjudged, of a plan":          {"", with(plan, "newer: 1"), "BatchRelease: spec.releasePlan.newer: "},
		"unjudged, of a batch":         {"", "{spec: {releasePlan: {batches: [{canaryReplicas: 1, newer: 1}]}}}", "batches[0].newer: "},
		"style of a plan":              {"", "{spec: {releasePlan: {rollingStyle: Canary}}}", "rolling-style: partition"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := refusalOf(decoded(t, test.rollout), decoded(t, test.batchRelease))
			switch {
			case test.want == "" && err == nil:
			case test.want == "" || plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_UNSUPPORTED || !strings.Contains(err.Error(), test.want):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func decoded(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	var object map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &object))
	return &unstructured.Unstructured{Object: object}
}

// Whatever is in a Rollout and its BatchRelease is judged, and what can't be read is no evidence.
func FuzzEvidence(f *testing.F) {
	f.Add(`{"spec": {"strategy": {"canary": {"steps": [{"replicas": 1}]}}}, "status": {"phase": "Healthy"}}`,
		`{"spec": {"releasePlan": {"batches": [{"canaryReplicas": "50%"}]}}, "status": {"phase": "Progressing"}}`)
	f.Add(`{"spec": {"strategy": {"canary": 1}}}`, `{"spec": {"releasePlan": [1]}, "status": {"phase": 1}}`)
	f.Add(`{"spec": {"workloadRef": {"apiVersion": "a/b/c"}}}`, `{}`)
	f.Fuzz(func(t *testing.T, rollout, batchRelease string) {
		var r, b map[string]any
		if json.Unmarshal([]byte(rollout), &r) != nil || json.Unmarshal([]byte(batchRelease), &b) != nil || r == nil || b == nil {
			return
		}
		e := Evidence{Rollout: &unstructured.Unstructured{Object: r}, BatchRelease: &unstructured.Unstructured{Object: b}}
		_ = refusalOf(e.Rollout, e.BatchRelease)
		if e.leftOver() && e.listens() {
			t.Error("a Rollout listens beside a BatchRelease that is left over")
		}
		_ = e.batchOf("revision")
	})
}
