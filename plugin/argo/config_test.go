// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// parse reads the canary strategy of a Rollout.
func parse(t *testing.T, canary string) *v1alpha1.Rollout {
	t.Helper()
	ro := &v1alpha1.Rollout{}
	ro.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(canary), ro.Spec.Strategy.Canary))
	return ro
}

func readTyped(ro *v1alpha1.Rollout) (*Config, error) { return readConfig(ro, judgeTyped(ro)) }

func TestReadConfig(t *testing.T) {
	t.Parallel()
	got, err := readTyped(parse(t, `
trafficRouting:
  plugins:
    lockstep/lws:
      workload: vllm
      style: BlueGreen
      traffic:
        stableService: vllm
        httpRoutes: [vllm, admin]
        inferencePool: {name: pool, canaryEndpointPicker: epp, canaryEndpointPickerPort: 9002}
        drain: {period: 10s, metric: running, metricEndpoint: ":8000/metrics", timeout: 5m, roles: [decode]}
        warmUp: {endpoint: ":8000/health", body: hi, timeout: 30s, roles: [embed]}
      failureThreshold: 1
      progressDeadline: 1h
      minReady: 10s
      canaryLeaderMetadata: {labels: {a: b}}
      blueGreen: {promotion: Adopt, scaleDownDelay: 5m, force: true}
      roleOrder: [prefill, decode]
      onFailure: Wait
steps:
- plugin: {name: lockstep/lws, config: {upgrade: 1}}
- pause: {}
- plugin: {name: lockstep/lws, config: {upgrade: 3, weight: 0, mirror: 5, headers: [{name: x, exact: "1"}, {name: x-b, regex: a.*}]}}
- plugin: {name: other/plugin, config: {upgrade: 9}}
- plugin: {name: lockstep/lws, config: {headers: [], promote: true}}
`))
	require.NoError(t, err)
	assert.ErrorContains(t, got.Unfit, "progressDeadlineSeconds: 2147483647", "Argo's deadline of 10 minutes would end a release of an hour")
	got.Unfit = nil
	zero, five := int32(0), int32(5)
	want := &Config{
		Workload: "vllm", WaitOnFailure: true,
		Policy: &pb.ReleasePolicy{
			Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"1", "3"}, FailureThreshold: "1",
			ProgressDeadline: durationpb.New(time.Hour), MinReady: durationpb.New(10 * time.Second),
			CanaryLeaderMetadata: &pb.PodMetadata{Labels: map[string]string{"a": "b"}},
			RoleOrder:            []string{"prefill", "decode"},
			BlueGreen: &pb.BlueGreenPolicy{
				Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT, ScaleDownDelay: durationpb.New(5 * time.Minute), Force: true,
			},
			Traffic: &pb.TrafficPolicy{
				StableService: "vllm", HttpRoutes: []string{"vllm", "admin"},
				InferencePool: &pb.InferencePoolPolicy{Name: "pool", CanaryEndpointPicker: "epp", CanaryEndpointPickerPort: 9002},
				Drain: &pb.DrainPolicy{
					Period: durationpb.New(10 * time.Second), Metric: "running", MetricEndpoint: ":8000/metrics",
					Timeout: durationpb.New(5 * time.Minute), Roles: []string{"decode"},
				},
				WarmUp: &pb.WarmUpPolicy{Endpoint: ":8000/health", Body: "hi", Timeout: durationpb.New(30 * time.Second), Roles: []string{"embed"}},
			},
		},
		Steps: map[int]Step{
			0: {Upgrade: "1"},
			2: {Upgrade: "3", Weight: &zero, Mirror: &five, Headers: &[]*pb.HeaderMatch{
				{Name: "x", Value: &pb.HeaderMatch_Exact{Exact: "1"}}, {Name: "x-b", Value: &pb.HeaderMatch_Regex{Regex: "a.*"}},
			}},
			4: {Promote: true, Headers: &[]*pb.HeaderMatch{}},
		},
	}
	assert.Empty(t, cmp.Diff(want, got, protocmp.Transform()), "-want +got")
}

// TestReadConfigs runs testdata/config.txt and native.txt, in the words of strategyOf. Below each line is what the configuration says, why no release
// begins with it, and what has no effect; or what is wrong, with the workload if that is known all the same.
func TestReadConfigs(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"config", "native"} {
		datadriven.RunTest(t, "testdata/"+file+".txt", func(t *testing.T, d *datadriven.TestData) string {
			var told strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				ro := parse(t, strategyOf(d.Cmd, line))
				ro.Spec.ProgressDeadlineSeconds = ptr.To[int32](endless)
				c, err := readTyped(ro)
				lenient, _ := ReadLenient(ro)
				switch {
				case err != nil && lenient != nil:
					fmt.Fprintf(&told, "%v (workload %s)\n", err, lenient.Workload)
				case err != nil:
					fmt.Fprintln(&told, err)
				case c == nil:
					fmt.Fprintln(&told, "not of this plugin")
				case c.Unfit != nil:
					fmt.Fprintln(&told, c.Unfit)
				case c.Ignored != "":
					fmt.Fprintf(&told, "no effect: %s\n", c.Ignored)
				default:
					fmt.Fprintf(&told, "%s in batches %v\n", c.Workload, c.Policy.GetBatches())
				}
			}
			return told.String()
		})
	}
}

// strategyOf is a canary strategy whose plugin has this configuration, or only this step, or this second step; one with these steps, of which those
// of the plugin are in parentheses, with traffic or without; one with this field, in trafficRouting or beside it; or as it is.
func strategyOf(command, text string) string {
	begun := ownStep("upgrade: 50%")
	steps := regexp.MustCompile(`\((.*?)\)`).ReplaceAllString(text, ownStep("$1"))
	switch command {
	case "plugin":
		return strategy(text, begun)
	case "steps":
		return strategy("workload: w", ownStep(text))
	case "second":
		return strategy("workload: w", begun, ownStep(text))
	case "routed":
		return strategy("workload: w, traffic: {stableService: s}", steps)
	case "unrouted":
		return strategy("workload: w", steps)
	case "router":
		return "{trafficRouting: {" + text + ", plugins: {lockstep/lws: {workload: w}}}, steps: [" + begun + "]}"
	case "field":
		return "{" + text + ", trafficRouting: {plugins: {lockstep/lws: {workload: w}}}, steps: [" + begun + "]}"
	default:
		return text
	}
}

// strategy is a canary strategy with this configuration of the plugin and these steps.
func strategy(config string, steps ...string) string {
	return "{trafficRouting: {plugins: {lockstep/lws: {" + config + "}}}, steps: [" + strings.Join(steps, ", ") + "]}"
}

// ownStep is a step of this plugin.
func ownStep(config string) string { return "{plugin: {name: lockstep/lws, config: {" + config + "}}}" }

func TestReadConfigRefusesBlueGreen(t *testing.T) {
	t.Parallel()
	// Of a Rollout with blueGreen only the annotation tells that it released a workload before.
	ro := &v1alpha1.Rollout{}
	ro.Spec.Strategy.BlueGreen = &v1alpha1.BlueGreenStrategy{}
	c, err := readTyped(ro)
	assert.True(t, c == nil && err == nil, "another's Rollout: %+v, %v", c, err)
	ro.Annotations = map[string]string{AnnotationFirst: "t0"}
	if _, err := readTyped(ro); err == nil || !strings.Contains(err.Error(), "spec.strategy.blueGreen") || !strings.Contains(err.Error(), "style: BlueGreen") {
		t.Errorf("a Rollout that released a workload: %v", err)
	}
	c, err = ReadLenient(ro)
	assert.True(t, c == nil && err != nil, "leniently: %+v, %v", c, err)
}

// FuzzReadConfig: no configuration crashes the controller.
func FuzzReadConfig(f *testing.F) {
	for _, seed := range []string{`{"workload":"w"}`, `{"workload":{"kind":"DisaggregatedSet","name":"w"}}`, `{"upgrade":"5%"}`, `[]`, `null`, `{"headers":[null]}`, `{"traffic":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, raw []byte) {
		ro := &v1alpha1.Rollout{}
		ro.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{
			TrafficRouting: &v1alpha1.RolloutTrafficRouting{Plugins: map[string]json.RawMessage{PluginName: raw}},
			Steps:          []v1alpha1.CanaryStep{{Plugin: &v1alpha1.PluginStep{Name: PluginName, Config: raw}}},
		}
		_, _ = readTyped(ro)
	})
}
