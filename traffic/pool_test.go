// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestCanaryPool(t *testing.T) {
	c := newFakeCluster(t).withPool()
	want := readRoute(t, "canary-pool.yaml").Object
	before := c.world.StablePool.DeepCopy()
	c.applyAll(Desired{Isolated: true})
	for name, from := range map[string]*unstructured.Unstructured{"before the isolation": before, "isolated": c.world.StablePool} {
		got, err := CanaryPool(from, c.setup)
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffJSON(want.Object, decodedJSON(c, got.Object)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if p := driftOf(want, got, want.Object["spec"], got.Object["spec"]); len(p) > 0 {
			t.Errorf("%s: drift %v", name, p)
		}
	}
	c.setup.Policy.Pool.PickerPort = 9009
	c.setup.CanaryPin = labels.Merge(c.setup.CanaryPin, map[string]string{"whole": "true"})
	got, err := CanaryPool(before, c.setup)
	if err != nil || pickerPort(pickerOf(got)) != 9009 || poolSelector(got).labels["whole"] != "true" {
		t.Errorf("%v, %v: want the policy's port, and all labels of the pin", got, err)
	}
	if diff := diffJSON(readRoute(t, "pool.yaml").Object.Object["spec"], before.Object["spec"]); diff != "" {
		t.Errorf("the cached pool was modified:\n%s", diff)
	}
}

// decodedJSON returns an object as a client decodes it.
func decodedJSON(c *fakeCluster, o map[string]any) map[string]any {
	out := map[string]any{}
	c.decode(o, &out)
	return out
}

// TestCanaryBroken: without a ready endpoint picker gateways drop the requests to the canary's pool, unless that fails open.
func TestCanaryBroken(t *testing.T) {
	for mode, broken := range map[string]bool{"": true, "FailClose": true, "FailOpen": false} {
		c := newFakeCluster(t).withPool()
		if err := unstructured.SetNestedField(c.world.StablePool.Object, mode, "spec", "endpointPickerRef", "failureMode"); err != nil {
			t.Fatal(err)
		}
		c.applyAll(Desired{Prepared: true})
		if is := factsOf(c.setup, c.world).CanaryBroken; is != "" {
			t.Errorf("%q: with a picker: %s", mode, is)
		}
		c.world.PickerReady = nil
		if is := factsOf(c.setup, c.world).CanaryBroken; (is != "") != broken || broken && !strings.Contains(is, "vllm-canary-epp") {
			t.Errorf("%q: without a picker: %q, want broken %t", mode, is, broken)
		}
	}
}

// TestPoolRules: only refs to the pool are split, and requests are mirrored to the canary pool.
func TestPoolRules(t *testing.T) {
	c := newFakeCluster(t).withPool()
	r := Route{c.setup.Policy.Routes[0], c.world.Routes[c.setup.Policy.Routes[0]]}
	got := apply(t, r, c.setup, Desired{Weight: 25, Mirror: 5})
	want := `- | PathPrefix /v1 | mirror 5% to vllm-canary:<nil> | vllm:<nil>=75, vllm-canary:<nil>=25
- | PathPrefix /health |  | vllm:80=1
- | PathPrefix /mixed | mirror 5% to vllm-canary:<nil> | sglang:<nil>=100, vllm:<nil>=225, vllm-canary:<nil>=75
`
	if diff := cmp.Diff(want, describe(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ref := objectList(got.rules()[0], "backendRefs")[1]
	if ref["group"] != InferenceGroup || ref["kind"] != KindInferencePool || RouteWeight(got, c.setup) != 25 {
		t.Errorf("ref %v, weight %d", ref, RouteWeight(got, c.setup))
	}
}

// checkSays requires an error's reason, and in its message object, field, labels and remedy.
func checkSays(t *testing.T, why string, err error, want pb.ErrorReason, says []string) {
	t.Helper()
	if got := drivererr.Reason(err); got != want || (err == nil) != (says == nil) {
		t.Fatalf("%s: %v, want reason %v", why, err, want)
	}
	for _, word := range says {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %q does not say %q", why, err, word)
		}
	}
}

// TestCanarySelectsLeaders: whatever label of leaders the user selects by, the canary's selector has the worker index too.
func TestCanarySelectsLeaders(t *testing.T) {
	for _, of := range []Key{{KindService, "vllm"}, {KindInferencePool, "vllm"}} {
		got, err := selector{of: of, labels: map[string]string{"role": "leader"}, object: &metav1.ObjectMeta{}}.forCanary(setupOf("vllm"))
		want := map[string]string{"role": "leader", lws.SetNameLabelKey: "vllm-abc123", lws.WorkerIndexLabelKey: "0"}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", of, err, diff)
		}
		if _, err := (selector{of: of, object: &metav1.ObjectMeta{}}).forCanary(setupOf("vllm")); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE {
			t.Errorf("%s without selector: %v", of, err)
		}
	}
}
