// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestCanaryPool(t *testing.T) {
	c := newFakeCluster(t).withPool()
	want := readRoute(t, "canary-pool.yaml").Object
	before := c.world.StablePool.DeepCopy()
	c.settle(Desired{Fenced: true})
	for name, from := range map[string]*unstructured.Unstructured{"before the fence": before, "behind the fence": c.world.StablePool} {
		got, err := CanaryPool(from, c.setup)
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffJSON(want.Object, decodedJSON(c, got.Object)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if p := poolDrift(want, got); p != nil {
			t.Errorf("%s: drift %v", name, p)
		}
	}
	c.setup.Policy.Pool.PickerPort = 9009
	c.setup.CanaryPin = merged(c.setup.CanaryPin, map[string]string{"whole": "true"})
	got, err := CanaryPool(before, c.setup)
	if err != nil || pickerPort(pickerOf(got)) != 9009 || poolSelector(got).labels["whole"] != "true" {
		t.Errorf("%v, %v: want the policy's port, and all labels of the pin", got, err)
	}
	if diff := diffJSON(readRoute(t, "pool.yaml").Object.Object["spec"], before.Object["spec"]); diff != "" {
		t.Errorf("the cached pool was modified:\n%s", diff)
	}
}

// decodedJSON is an object as a client reads it back.
func decodedJSON(c *fakeCluster, o map[string]any) map[string]any {
	out := map[string]any{}
	c.decode(o, &out)
	return out
}

// TestPoolDrift: what somebody changed on the canary pool, or on the stable one since, is put right, and what others add
// to its marks is theirs.
func TestPoolDrift(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(spec map[string]any, pool *unstructured.Unstructured)
		want   map[string]any
	}{
		{"added by others", func(_ map[string]any, pool *unstructured.Unstructured) {
			pool.SetAnnotations(merged(pool.GetAnnotations(), map[string]string{"tool": "y"}))
		}, nil},
		{"selector", func(spec map[string]any, _ *unstructured.Unstructured) {
			spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": "vllm", "extra": "x"}}
		}, map[string]any{"selector": map[string]any{"matchLabels": map[string]any{
			"extra": nil, lws.SetNameLabelKey: "vllm-abc123", lws.WorkerIndexLabelKey: "0",
		}}}},
		{"picker", func(spec map[string]any, _ *unstructured.Unstructured) {
			ref, _ := spec["endpointPickerRef"].(map[string]any)
			ref["name"] = "vllm-epp"
		}, map[string]any{"endpointPickerRef": map[string]any{"name": "vllm-canary-epp"}}},
		{"ports", func(spec map[string]any, _ *unstructured.Unstructured) {
			spec["targetPorts"] = []any{map[string]any{"number": int64(8000)}}
		}, map[string]any{"targetPorts": []any{map[string]any{"number": int64(8000)}, map[string]any{"number": int64(8001)}}}},
		{"field lost", func(spec map[string]any, _ *unstructured.Unstructured) { delete(spec, "fieldOfTheFuture") },
			map[string]any{"fieldOfTheFuture": map[string]any{"kept": []any{int64(1), "two"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := readRoute(t, "canary-pool.yaml").Object
			have := want.DeepCopy()
			spec, _ := have.Object["spec"].(map[string]any)
			tt.change(spec, have)
			var patch map[string]any
			if tt.want != nil {
				patch = map[string]any{"spec": tt.want}
			}
			if diff := cmp.Diff(patch, poolDrift(have, want)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPoolOrder walks through a release between pools: each stage with the writes it takes.
func TestPoolOrder(t *testing.T) {
	c := newFakeCluster(t).withPool()
	user := c.world
	const (
		service, canary, pool, canaryPool = "patch Service vllm", "Service vllm-canary", "patch InferencePool vllm", "InferencePool vllm-canary"
		route                             = "patch HTTPRoute llm"
	)
	c.through([]stage{
		{"prepare", "both fences first, then the canary's objects, and no route yet", nil, Desired{Prepared: true},
			[]string{service, pool, "create " + canary, "create " + canaryPool}, ReasonPoolNotObserved},
		{"fence in force", "the gateway has taken the stable pool", c.acceptAll, Desired{Prepared: true}, nil, ""},
		{"too early", "no leader", nil, Desired{Weight: 10}, nil, ReasonNoCanaryEndpoints},
		{"no picker", "nobody would pick an endpoint", func() { c.ready(); c.world.PickerReady = nil }, Desired{Weight: 10}, nil, ReasonNoPicker},
		{"up", "once there are leaders and a picker", c.ready, Desired{Weight: 10}, []string{route}, ReasonRouteNotObserved},
		{"pool not taken", "the gateway has taken the route, and not looked at the pool", func() {
			for _, r := range c.world.routes(c.setup) {
				c.accept(r)
			}
		}, Desired{Weight: 10}, nil, ReasonPoolNotObserved},
		{"verified", "the gateway has taken both", c.acceptAll, Desired{Weight: 10}, nil, ""},
		{"picker lost", "what is there stays, and no more comes", func() { c.world.PickerReady = nil }, Desired{Weight: 50}, nil, ReasonNoPicker},
		{"all", "", c.ready, Desired{Weight: 100}, []string{route}, ReasonRouteNotObserved},
		{"all verified", "the stable pool is no longer named, so no gateway speaks of it", c.acceptAll, Desired{Weight: 100}, nil, ""},
		{"pool deleted by hand", "it comes back", func() { c.world.CanaryPool = nil }, Desired{Weight: 100}, []string{"create " + canaryPool}, ReasonPoolNotObserved},
		{"down", "a share goes back whatever the state of the canary", func() { c.world.CanaryReady, c.world.PickerReady = nil, nil }, Desired{Prepared: true}, []string{route}, ReasonRouteNotObserved},
		{"clean up", "pool, Service, then the fences", c.acceptAll, Desired{},
			[]string{"delete " + canaryPool, "delete " + canary, pool, service}, ""},
	})
	if diff := diffJSON(usersOwn(user.StablePool), usersOwn(c.world.StablePool)); diff != "" {
		t.Errorf("the stable pool is not as the user had it:\n%s", diff)
	}
}

// TestPoolRules: only refs to the pool are split, and copied requests go to the canary pool.
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
	ref := list(got.rules()[0], "backendRefs")[1]
	if ref["group"] != InferenceGroup || ref["kind"] != KindInferencePool || RouteWeight(got, c.setup) != 25 {
		t.Errorf("ref %v, weight %d", ref, RouteWeight(got, c.setup))
	}
}

func TestCheckPool(t *testing.T) {
	const gone, bad = pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE
	spec := func(value any, path ...string) func(*fakeCluster) {
		return func(c *fakeCluster) {
			if err := unstructured.SetNestedField(c.world.StablePool.Object, value, append([]string{"spec"}, path...)...); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name, reason string
		change       func(*fakeCluster)
		want         pb.ErrorReason
		says         []string
	}{
		{"fine", "leaders by app label, of both sides", func(*fakeCluster) {}, 0, nil},
		{"no pool", "named, and not there", func(c *fakeCluster) { c.world.StablePool = nil }, gone, []string{"InferencePool vllm", "create it"}},
		{"workers too", "an app label alone", spec(map[string]any{"app": "vllm"}, "selector", "matchLabels"), bad,
			[]string{"InferencePool vllm", "workers", `add leaderworkerset.sigs.k8s.io/worker-index: "0"`, "spec.selector.matchLabels"}},
		{"nothing", "labels that no leader has", spec(map[string]any{"app": "llm"}, "selector", "matchLabels"), bad,
			[]string{"InferencePool vllm selects no leader of vllm", `app: "llm"`, `app: "vllm"`}},
		{"no selector", "", spec(map[string]any{}, "selector", "matchLabels"), bad, []string{"InferencePool vllm has no spec.selector.matchLabels"}},
		{"policy changes a selected label", "the canary pool would select nothing", func(c *fakeCluster) {
			c.setup.CanaryLeader = map[string]string{"app": "canary"}
			c.world.Stable.Spec.Selector = map[string]string{lws.SetNameLabelKey: "vllm", lws.WorkerIndexLabelKey: "0"}
		}, bad, []string{"InferencePool vllm", "policy.canary_leader_metadata"}},
		{"name taken", "a pool of others", func(c *fakeCluster) { c.world.CanaryPool = readRoute(t, "pool.yaml").Object },
			pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"InferencePool default/vllm-canary", "rename it"}},
		{"one picker for both", "a picker serves one pool", func(c *fakeCluster) { c.setup.Policy.Pool.Picker = "vllm-epp" }, bad,
			[]string{"vllm-epp", "one pool only", "policy.traffic.inference_pool.canary_endpoint_picker"}},
		{"no picker", "named, and not there", func(c *fakeCluster) { c.world.Picker = nil }, gone, []string{"Service vllm-canary-epp", "create it"}},
		{"other port", "the picker's Service has not the stable one's port", func(c *fakeCluster) {
			c.world.Picker.Spec.Ports = []corev1.ServicePort{{Port: 9003}}
		}, bad, []string{"Service vllm-canary-epp", "no port 9002", "canary_endpoint_picker_port"}},
		{"its own port", "which the policy names", func(c *fakeCluster) {
			c.world.Picker.Spec.Ports, c.setup.Policy.Pool.PickerPort = []corev1.ServicePort{{Port: 9003}}, 9003
		}, 0, nil},
		{"no port", "the stable picker is of a kind without", spec(map[string]any{"kind": "Picker", "group": "example.com", "name": "x"}, "endpointPickerRef"), bad,
			[]string{"no port", "canary_endpoint_picker_port"}},
		{"route to the Service", "nothing leads to the pool", func(c *fakeCluster) {
			c.world.Routes[c.setup.Policy.Routes[0]] = Route{Object: c.world.Routes[c.setup.Policy.Routes[0]]}.with(t, []any{
				map[string]any{"backendRefs": []any{map[string]any{"name": "vllm", "port": int64(80)}}},
			}).Object
		}, bad, []string{"HTTPRoute llm", "backendRef to InferencePool vllm"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t).withPool()
			tt.change(c)
			checkSays(t, tt.reason, Check(c.setup, c.world), tt.want, tt.says)
		})
	}
}

// checkSays compares an error with its reason and the words that help: object, field, labels and fix.
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

func TestPoolVerified(t *testing.T) {
	first := func(key string, value any) func([]any) []any {
		return func(conditions []any) []any {
			conditions[0].(map[string]any)[key] = value
			return conditions
		}
	}
	for _, tt := range []struct {
		name, reason, gateway string
		change                func([]any) []any
		want                  string
	}{
		{"taken", "all conditions, of this generation", "public", func(c []any) []any { return c }, ""},
		{"old", "the gateway knows the pool of before", "public", first("observedGeneration", int64(0)), ReasonPoolNotObserved},
		{"not supported", "the gateway knows no pools", "public", first("status", "False"), ReasonPoolNotAccepted},
		{"picker missing", "a reference is dangling", "public", func(c []any) []any {
			c[1].(map[string]any)["status"] = "False"
			return c
		}, ReasonPoolRefsNotResolved},
		{"only accepted", "the second condition is not promised", "public", func(c []any) []any { return c[:1] }, ""},
		{"not accepted", "the first is", "public", func(c []any) []any { return c[1:] }, ReasonPoolNotObserved},
		{"others", "another gateway has taken it", "private", func(c []any) []any { return c }, ReasonPoolNotObserved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t).withPool()
			gateways := c.world.gateways(c.setup, c.setup.backend().isStable)
			if len(gateways) != 1 || gateways[0].Name != "public" {
				t.Fatalf("gateways %v: want each once, and no mesh", gateways)
			}
			pool := poolWithStatus(t, readRoute(t, "pool.yaml").Object, tt.gateway, tt.change)
			for _, field := range []string{"parents", "parent"} {
				if field == "parent" {
					status, _ := pool.Object["status"].(map[string]any)
					status["parent"], status["parents"] = status["parents"], nil
				}
				ok, reason, message := PoolVerified(pool, gateways)
				if reason != tt.want || ok != (tt.want == "") || (message == "") != ok {
					t.Errorf("%s: %s: %t, %s: %s", field, tt.reason, ok, reason, message)
				}
			}
		})
	}
}

// TestPoolTroubles: what a person must see to, and what goes on without.
func TestPoolTroubles(t *testing.T) {
	c := newFakeCluster(t).withPool()
	c.settle(Desired{Prepared: true})
	c.ready()
	c.settle(Desired{Weight: 50})
	c.world.CanaryPool.SetOwnerReferences(nil)
	want := []string{"delete InferencePool vllm-canary", "create InferencePool vllm-canary"}
	if diff := cmp.Diff(want, c.settle(Desired{Weight: 50})); diff != "" {
		t.Errorf("a pool that an earlier workload has left (-want +got):\n%s", diff)
	}
	c.world.CanaryPool.SetDeletionTimestamp(ptr.To(metav1.Unix(1, 0)))
	if v := Look(c.setup, Desired{Weight: 50}, c.world); v.Reason != ReasonPoolDeleting || v.Prepared {
		t.Errorf("going: view %+v", v)
	}
	c.world.CanaryPool.SetDeletionTimestamp(nil)
	c.world.StablePool = nil
	if _, err := Next(c.setup, Desired{Weight: 50}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND {
		t.Errorf("gone: %v", err)
	}
	if write, err := Next(c.setup, Desired{Weight: 10}, c.world); err != nil || write == nil || write.Key.Kind != KindHTTPRoute {
		t.Errorf("gone: %v, %v: a share goes back all the same", write, err)
	}
	c.settle(Desired{})
	if c.world.CanaryPool != nil {
		t.Error("the canary pool is left")
	}
	c = newFakeCluster(t).withPool()
	c.settle(Desired{Prepared: true})
	c.world.CanaryPool.SetLabels(nil)
	if _, err := Next(c.setup, Desired{Prepared: true}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_NAME_TAKEN {
		t.Errorf("a pool of others: %v", err)
	}
	want = []string{"delete Service vllm-canary", "patch InferencePool vllm", "patch Service vllm"}
	if got := c.settle(Desired{}); cmp.Diff(want, got) != "" || c.world.CanaryPool == nil {
		t.Errorf("wrote %v, want %v", got, want)
	}
}

// TestCanarySelectsLeaders: by whatever label the user tells leaders from workers, the canary's are told by ours.
func TestCanarySelectsLeaders(t *testing.T) {
	for _, of := range []Key{{KindService, "vllm"}, {KindInferencePool, "vllm"}} {
		got, err := selector{of: of, labels: map[string]string{"role": "leader"}}.forCanary(setupOf("vllm"))
		want := map[string]string{"role": "leader", lws.SetNameLabelKey: "vllm-abc123", lws.WorkerIndexLabelKey: "0"}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", of, err, diff)
		}
		if _, err := (selector{of: of}).forCanary(setupOf("vllm")); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE {
			t.Errorf("%s without selector: %v", of, err)
		}
	}
}
