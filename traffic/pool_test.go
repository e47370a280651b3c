// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		require.NoError(t, err)
		assert.Empty(t, diffJSON(want.Object, decodedJSON(c, got.Object)), "%s (-want +got)", name)
		assert.Empty(t, driftOf(want, got, want.Object["spec"], got.Object["spec"]), "%s: drift", name)
	}
	c.setup.Policy.Pool.PickerPort = 9009
	c.setup.CanaryPin = labels.Merge(c.setup.CanaryPin, map[string]string{"whole": "true"})
	got, err := CanaryPool(before, c.setup)
	assert.True(t, err == nil && pickerPort(pickerOf(got)) == 9009 && poolSelector(got).labels["whole"] == "true",
		"%v, %v: want the policy's port, and all labels of the pin", got, err)
	assert.Empty(t, diffJSON(readRoute(t, "pool.yaml").Object.Object["spec"], before.Object["spec"]), "the cached pool was modified")
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
		require.NoError(t, unstructured.SetNestedField(c.world.StablePool.Object, mode, "spec", "endpointPickerRef", "failureMode"))
		c.applyAll(Desired{Prepared: true})
		assert.Empty(t, factsOf(c.setup, c.world).CanaryBroken, "%q: with a picker", mode)
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
	assert.Empty(t, cmp.Diff(want, describe(got)), "(-want +got)")
	ref := objectList(got.rules()[0], "backendRefs")[1]
	if ref["group"] != InferenceGroup || ref["kind"] != KindInferencePool || RouteWeight(got, c.setup) != 25 {
		t.Errorf("ref %v, weight %d", ref, RouteWeight(got, c.setup))
	}
}

// checkSays requires an error's reason, and in its message object, field, labels and remedy.
func checkSays(t *testing.T, why string, err error, want pb.ErrorReason, says []string) {
	t.Helper()
	require.True(t, drivererr.Reason(err) == want && (err == nil) == (says == nil), "%s: %v, want reason %v", why, err, want)
	for _, word := range says {
		assert.ErrorContains(t, err, word, why)
	}
}

// TestCanarySelectsLeaders: whatever label of leaders the user selects by, the canary's selector has the worker index too.
func TestCanarySelectsLeaders(t *testing.T) {
	for _, of := range []Key{{KindService, "vllm"}, {KindInferencePool, "vllm"}} {
		got, err := selector{of: of, labels: map[string]string{"role": "leader"}, object: &metav1.ObjectMeta{}}.forCanary(setupOf("vllm"))
		want := map[string]string{"role": "leader", lws.SetNameLabelKey: "vllm-abc123", lws.WorkerIndexLabelKey: "0"}
		diff := cmp.Diff(want, got)
		assert.True(t, diff == "" && err == nil, "%s: %v (-want +got):\n%s", of, err, diff)
		_, err = (selector{of: of, object: &metav1.ObjectMeta{}}).forCanary(setupOf("vllm"))
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, drivererr.Reason(err), "%s without selector: %v", of, err)
	}
}
