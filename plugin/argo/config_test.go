// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// parse reads the canary strategy of a Rollout.
func parse(t *testing.T, canary string) *v1alpha1.Rollout {
	t.Helper()
	ro := &v1alpha1.Rollout{}
	ro.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{}
	if err := yaml.UnmarshalStrict([]byte(canary), ro.Spec.Strategy.Canary); err != nil {
		t.Fatal(err)
	}
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
      wait: 0s
steps:
- plugin: {name: lockstep/lws, config: {upgrade: 1}}
- pause: {}
- plugin: {name: lockstep/lws, config: {upgrade: 3, weight: 0, mirror: 5, headers: [{name: x, exact: "1"}, {name: x-b, regex: a.*}]}}
- plugin: {name: other/plugin, config: {upgrade: 9}}
- plugin: {name: lockstep/lws, config: {promote: true}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got.Unfit == nil || !strings.Contains(got.Unfit.Error(), "progressDeadlineSeconds: 2147483647") {
		t.Errorf("Argo's deadline of 10 minutes would end a release of an hour: got %v", got.Unfit)
	}
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
			4: {Promote: true},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReadConfigDefaults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason, config, steps string
		check                 func(*Config) bool
	}{
		"wait": {
			"A step waits.",
			`workload: w`, `upgrade: 50%`, func(c *Config) bool { return c.Wait == DefaultWait },
		},
		"no upgrade": {
			"A release that is one promotion needs a batch all the same.",
			`workload: w`, `promote: true`, func(c *Config) bool { return c.Policy.GetBatches()[0] == "100%" },
		},
		"batches said": {
			"Batches that are said take precedence over those of the steps.",
			`workload: w, batches: [10%, 50%, 100%]`, `upgrade: 50%`, func(c *Config) bool { return len(c.Policy.GetBatches()) == 3 },
		},
		"headers removed": {
			"An empty list is not the same as no list.",
			`workload: w, traffic: {stableService: s}`, `headers: []`,
			func(c *Config) bool { return c.Steps[0].Headers != nil && len(*c.Steps[0].Headers) == 0 },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := readTyped(parse(t, strategy(test.config, ownStep(test.steps))))
			if err != nil || !test.check(c) {
				t.Errorf("%s\ngot %+v, %v", test.reason, c, err)
			}
		})
	}
}

// strategy is a canary strategy with this configuration of the plugin and these steps.
func strategy(config string, steps ...string) string {
	return "{trafficRouting: {plugins: {lockstep/lws: {" + config + "}}}, steps: [" + strings.Join(steps, ", ") + "]}"
}

// ownStep is a step of this plugin.
func ownStep(config string) string { return "{plugin: {name: lockstep/lws, config: {" + config + "}}}" }

// A Rollout that never names the plugin is none of its business.
func TestReadConfigOfOthers(t *testing.T) {
	t.Parallel()
	for _, canary := range []string{`{steps: [{setWeight: 20}]}`, `{trafficRouting: {plugins: {a/b: {}}}}`, `{}`} {
		if c, err := readTyped(parse(t, canary)); c != nil || err != nil {
			t.Errorf("%s: %+v, %v", canary, c, err)
		}
	}
}

// A workload is a LeaderWorkerSet's name, or a kind and a name.
func TestReadConfigWorkload(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		"w": "w", "{name: w}": "w", "{kind: LeaderWorkerSet, name: w}": "w", "{kind: DisaggregatedSet, name: w}": "disaggregatedset/w",
	} {
		ro := parse(t, strategy("workload: "+config, ownStep("upgrade: 50%")))
		c, err := readTyped(ro)
		if err != nil || c.Workload != want {
			t.Errorf("%s: %+v, %v", config, c, err)
		}
		mistaken := parse(t, strategy("workload: "+config+", stile: Canary", ownStep("upgrade: 50%")))
		if c, err := ReadLenient(mistaken); err == nil || c == nil || c.Workload != want {
			t.Errorf("%s, leniently: %+v, %v", config, c, err)
		}
	}
}

// What is wrong is said with its place and its field.
func TestReadConfigRefuses(t *testing.T) {
	t.Parallel()
	routing := func(config string) string { return strategy(config, ownStep("upgrade: 50%")) }
	second := func(config string) string { return strategy("workload: w", ownStep("upgrade: 50%"), ownStep(config)) }
	begun := ownStep("upgrade: 50%")
	tests := map[string]struct {
		canary string
		want   []string
	}{
		"unknown field":               {routing(`workload: w, stile: Canary`), []string{"trafficRouting.plugins[lockstep/lws]", `"stile"`}},
		"another namespace":           {routing(`workload: w, namespace: other`), []string{`"namespace"`}},
		"unknown nested field":        {routing(`workload: w, traffic: {stableService: s, httpRoute: [x]}`), []string{`"traffic.httpRoute"`}},
		"wrong case":                  {routing(`Workload: w`), []string{`"Workload"`}},
		"wrong type":                  {routing(`workload: w, onFailure: 3`), []string{"onFailure", "want text, got number"}},
		"no name":                     {routing(`workload: 3`), []string{"workload: want NAME of a LeaderWorkerSet", "kind: DisaggregatedSet", "got 3"}},
		"unknown kind":                {routing(`workload: {kind: Deployment, name: w}`), []string{"workload", `"Deployment"`, "want LeaderWorkerSet or DisaggregatedSet"}},
		"unknown field of a workload": {routing(`workload: {kinds: DisaggregatedSet, name: w}`), []string{"workload", "kinds"}},
		"kind in the name":            {routing(`workload: disaggregatedset/w`), []string{"workload", "{kind: DisaggregatedSet, name: NAME}"}},
		"kind without a name":         {routing(`workload: {kind: DisaggregatedSet}`), []string{"workload: is required"}},
		"wrong nested type":           {routing(`workload: w, traffic: {stableService: s, httpRoutes: x}`), []string{"traffic.httpRoutes", "want a list"}},
		"no workload":                 {routing(`style: Canary`), []string{"workload: is required", "trafficRouting.plugins[lockstep/lws]"}},
		"style":                       {routing(`workload: w, style: rolling`), []string{"style", "rolling", "blue-green"}},
		"duration":                    {routing(`workload: w, progressDeadline: "30"`), []string{"progressDeadline", "30m"}},
		"negative duration":           {routing(`workload: w, minReady: -1s`), []string{"minReady"}},
		"wait too long":               {routing(`workload: w, wait: 10m`), []string{"wait", "at most 2m0s"}},
		"no object":                   {"{trafficRouting: {plugins: {lockstep/lws: [1]}}}", []string{"trafficRouting.plugins[lockstep/lws]", "want an object, got array"}},
		"unknown step field":          {second(`upgrad: 50%`), []string{"step 2", "steps[1]", `"upgrad"`}},
		"step type":                   {second(`promote: "yes"`), []string{"step 2", "promote", "want true or false"}},
		"fraction":                    {second(`weight: 2.5`), []string{"step 2", "weight", "want a whole number"}},
		"empty step":                  {second(``), []string{"step 2", "nothing to do"}},
		"no config":                   {strategy("workload: w", "{plugin: {name: lockstep/lws}}"), []string{"step 1", "nothing to do"}},
		"weight":                      {second(`weight: 101`), []string{"step 2", "weight", "0 to 100"}},
		"weight of nothing":           {second(`weight: 50`), []string{"step 2", "weight", "nothing splits"}},
		"weight in place, where no other group is left": {
			strategy("workload: w, style: Partition, traffic: {stableService: s, httpRoutes: [x]}", begun, ownStep("upgrade: 100%, weight: 50")),
			[]string{"step 2", "weight", "is 50", "in place"},
		},
		"upgrade":             {second(`upgrade: half`), []string{"step 2", "upgrade", "half"}},
		"more than all":       {second(`upgrade: 101%`), []string{"step 2", "upgrade", "101%"}},
		"upgrade object":      {second(`upgrade: {a: b}`), []string{"step 2", "upgrade"}},
		"header":              {second(`headers: [{name: x}]`), []string{"step 2", "headers[0]", "exact, regex and cookie"}},
		"header without name": {second(`headers: [{exact: x}]`), []string{"step 2", "headers[0].name"}},
		"workload in a step":  {second(`workload: w, upgrade: 100%`), []string{"step 2", `"workload"`}},
		"no traffic router": {
			"{steps: [" + begun + "]}", []string{"workload: is required", "trafficRouting.plugins[lockstep/lws]", "traffic-router plugin"},
		},
		"no step":               {strategy("workload: w"), []string{"spec.strategy.canary.steps", "at least one"}},
		"no step of the plugin": {strategy("workload: w", "{pause: {}}"), []string{"spec.strategy.canary.steps", "at least one"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustRefuse(t, parse(t, test.canary), test.want...)
		})
	}
}

func mustRefuse(t *testing.T, ro *v1alpha1.Rollout, want ...string) {
	t.Helper()
	_, err := readTyped(ro)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, words := range want {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%q does not say %q", err, words)
		}
	}
}

func TestReadConfigRefusesBlueGreen(t *testing.T) {
	t.Parallel()
	// Of a Rollout with blueGreen only the annotation tells that it released a workload before.
	ro := &v1alpha1.Rollout{}
	ro.Spec.Strategy.BlueGreen = &v1alpha1.BlueGreenStrategy{}
	if c, err := readTyped(ro); c != nil || err != nil {
		t.Errorf("another's Rollout: %+v, %v", c, err)
	}
	ro.Annotations = map[string]string{AnnotationFirst: "t0"}
	mustRefuse(t, ro, "spec.strategy.blueGreen", "style: BlueGreen")
	if c, err := ReadLenient(ro); c != nil || err == nil {
		t.Errorf("leniently: %+v, %v", c, err)
	}
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
