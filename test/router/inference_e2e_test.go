// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var stablePool = traffic.Key{Kind: traffic.KindInferencePool, Name: "llm"}

const poolManifest = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llm, annotations: {owner: ml}}
spec:
  selector: {matchLabels: {app: vllm, leaderworkerset.sigs.k8s.io/worker-index: "0"}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
`

const poolRouteManifest = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llm}
spec:
  parentRefs: [{name: public}]
  rules:
  - matches: [{path: {value: /v1}}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llm}]
  - matches: [{path: {value: /health}}]
    backendRefs: [{name: vllm, port: 80}]
`

const pickerManifest = `apiVersion: v1
kind: Service
metadata: {name: epp-canary}
spec:
  selector: {app: epp-canary}
  ports: [{name: grpc, port: 9002, appProtocol: kubernetes.io/h2c}]
`

// installInference adds the InferencePool of the Inference Extension that the test cluster pins.
func installInference(t *testing.T) {
	t.Helper()
	manifest := crd(t, traffic.InferenceGroup, "inferencepools")
	if err := cluster.Shared(t).Apply(t.Context(), "", manifest); err != nil {
		t.Fatal(err)
	}
}

// newPoolEnv returns a release whose route leads to a pool; the canary pool's picker is not ready yet.
func newPoolEnv(t *testing.T) *env {
	t.Helper()
	installGateway(t)
	installInference(t)
	e := newEnv(t, nil)
	e.setup.Policy.Routes = []traffic.Key{httpRoute}
	e.setup.Policy.Pool = &traffic.Pool{Stable: "llm", Canary: "llm-canary", Picker: "epp-canary"}
	e.apply("another-tool", pickerManifest)
	for _, manifest := range []string{poolManifest, poolRouteManifest} {
		eventually(t, "the API is served", func(context.Context) error {
			return e.applyError("argocd", manifest, true)
		})
	}
	return e
}

// TestPoolRelease runs a release between pools while tools and users change them.
//
// Proves (test): InferencePool and Ingress objects.
func TestPoolRelease(t *testing.T) {
	e := newPoolEnv(t)
	e.pod("vllm-0", "vllm", "0")
	eventually(t, "the router knows of the APIs", func(ctx context.Context) error { return e.router.Check(ctx, e.setup) })
	user := map[traffic.Key]*unstructured.Unstructured{}
	for _, key := range []traffic.Key{{Kind: traffic.KindService, Name: "vllm"}, stablePool, httpRoute} {
		user[key] = e.get(key)
	}

	prepared, d := traffic.Desired{Prepared: true}, traffic.Desired{Weight: 25}
	want := []string{"patch Service vllm", "patch InferencePool llm", "create Service vllm-canary", "create InferencePool llm-canary"}
	if diff := cmp.Diff(want, e.applyAll(prepared)); diff != "" {
		t.Fatalf("prepare (-want +got):\n%s", diff)
	}
	e.view(prepared, traffic.ReasonRouteNotObserved)
	e.gateway()
	e.view(prepared, "")
	e.canaryPool(map[string]any{
		"app": "vllm", "leaderworkerset.sigs.k8s.io/name": "vllm-abc123", "leaderworkerset.sigs.k8s.io/worker-index": "0",
	})

	e.pod("vllm-abc123-0", "vllm-abc123", "0")
	e.endpoint()
	if got := e.applyAll(d); got != nil {
		t.Errorf("wrote %v without a picker", got)
	}
	e.view(d, traffic.ReasonNoPicker)
	e.podWith("epp", map[string]string{"app": "epp-canary"})
	eventually(t, "the picker is ready", func(context.Context) error {
		if v := e.router.Observe(e.setup, d); v.Stage != traffic.Drifted {
			return fmt.Errorf("view %+v", v)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"patch HTTPRoute llm"}, e.applyAll(d)); diff != "" {
		t.Fatalf("up (-want +got):\n%s", diff)
	}
	e.view(d, traffic.ReasonRouteNotObserved)
	e.accept(e.get(httpRoute))
	e.view(d, traffic.ReasonPoolNotObserved)
	e.gateway()
	if v := e.view(d, ""); v.Weight != 25 || !v.Pinned || !v.Prepared {
		t.Errorf("view %+v", v)
	}

	t.Run("manifests applied again", func(t *testing.T) { e.in(t).reapplyPool(d) })

	for _, weight := range []int{100, 0} {
		d := traffic.Desired{Weight: weight, Prepared: true}
		if diff := cmp.Diff([]string{"patch HTTPRoute llm"}, e.applyAll(d)); diff != "" {
			t.Errorf("to %d %% (-want +got):\n%s", weight, diff)
		}
		e.gateway()
		e.view(d, "")
	}
	want = []string{
		"delete InferencePool llm-canary", "delete Service vllm-canary", "patch InferencePool llm", "patch Service vllm",
		"patch Service vllm", "patch HTTPRoute llm", // managedFields entries of the atomic selector and the rules are removed
	}
	if diff := cmp.Diff(want, e.applyAll(traffic.Desired{})); diff != "" {
		t.Fatalf("end (-want +got):\n%s", diff)
	}
	e.asBefore(user)
	for _, manifest := range []string{strings.Replace(poolManifest, "8000", "8001", 1), strings.Replace(poolRouteManifest, "value: /v1", "value: /v2", 1)} {
		if err := e.applyError("argocd", manifest, false); err != nil {
			t.Errorf("a conflict after the release: %v", err)
		}
	}
}

// canaryPool checks the canary pool.
func (e *env) canaryPool(labels map[string]any) {
	e.Helper()
	got := e.get(traffic.Key{Kind: traffic.KindInferencePool, Name: "llm-canary"})
	want := map[string]any{
		"selector":          map[string]any{"matchLabels": labels},
		"targetPorts":       []any{map[string]any{"number": int64(8000)}},
		"endpointPickerRef": map[string]any{"group": "", "kind": "Service", "name": "epp-canary", "port": map[string]any{"number": int64(9002)}, "failureMode": "FailClose"},
	}
	if diff := cmp.Diff(want, got.Object["spec"]); diff != "" {
		e.Errorf("the canary pool (-want +got):\n%s", diff)
	}
	if owner := metav1.GetControllerOf(got); owner == nil || owner.UID != e.setup.Owner.UID {
		e.Errorf("the canary pool is owned by %v", owner)
	}
}

// asBefore requires that the user's objects are restored and no managedFields entry of Lockstep is left.
func (e *env) asBefore(user map[traffic.Key]*unstructured.Unstructured) {
	e.Helper()
	for key, before := range user {
		o := e.get(key)
		if diff := cmp.Diff(before.Object["spec"], o.Object["spec"]); diff != "" {
			e.Errorf("%s is not as the user had it:\n%s", key, diff)
		}
		if diff := cmp.Diff(before.GetAnnotations(), o.GetAnnotations()); diff != "" {
			e.Errorf("the annotations of %s differ from the user's:\n%s", key, diff)
		}
		for _, entry := range o.GetManagedFields() {
			if entry.Manager == traffic.FieldManager {
				e.Errorf("%s: fields are still ours: %s", key, entry.FieldsV1)
			}
		}
	}
}

// reapplyPool applies the user's pool during the release, in each way that tools have.
func (e *env) reapplyPool(d traffic.Desired) {
	before := e.get(stablePool).GetGeneration()
	if err := e.applyError("argocd", poolManifest, false); err != nil {
		e.Errorf("server-side apply without force: %v, want none: the added label is a separate map key", err)
	}
	if o := e.get(stablePool); o.GetGeneration() != before {
		e.Errorf("server-side apply removed the isolation: %v", o.Object["spec"])
	}
	if got := e.applyAll(d); got != nil {
		e.Errorf("wrote %v although the isolation is kept", got)
	}

	// kubectl replace
	next := decode(e.T, strings.Replace(poolManifest, "8000", "8001", 1))
	next.SetResourceVersion(e.get(stablePool).GetResourceVersion())
	if _, err := e.client(traffic.KindInferencePool).Update(e.Context(), next, metav1.UpdateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.view(d, traffic.ReasonWriting)
	want := []string{"patch InferencePool llm", "patch InferencePool llm-canary"}
	if diff := cmp.Diff(want, e.applyAll(d)); diff != "" {
		e.Errorf("the isolation is repaired, and the canary pool follows (-want +got):\n%s", diff)
	}
	e.apply("argocd", poolManifest)
	eventually(e.T, "the port is restored", func(context.Context) error {
		if got := e.get(stablePool).Object["spec"]; !strings.Contains(fmt.Sprint(got), "8000") {
			return fmt.Errorf("spec %v", got)
		}
		return nil
	})
	e.view(d, traffic.ReasonWriting)
	e.applyAll(d)

	// The route only: it leads to the stable pool until it is repaired.
	e.apply("argocd", poolRouteManifest)
	e.view(d, traffic.ReasonWriting)
	if diff := cmp.Diff([]string{"patch HTTPRoute llm"}, e.applyAll(d)); diff != "" {
		e.Errorf("(-want +got):\n%s", diff)
	}
	e.gateway()
	e.view(d, "")
}
