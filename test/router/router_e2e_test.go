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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/apply"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

func decode(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(manifest), o))
	return o
}

// TestRelease runs a release while tools and users change the objects.
//
// Proves (smoke): HTTPRoute objects: a release beside other writers.
func TestRelease(t *testing.T) {
	e := newEnv(t)
	e.applyRoutes("argocd")
	e.pod("vllm-0", "vllm", "0")
	e.pod("vllm-0-1", "vllm", "1")
	require.NoError(t, e.router.Check(t.Context(), e.setup))
	svc := traffic.Key{Kind: traffic.KindService, Name: "vllm"}
	user := map[traffic.Key]any{}
	for _, key := range []traffic.Key{svc, httpRoute, grpcRoute} {
		user[key] = e.get(key).Object["spec"]
	}

	prepared := traffic.Desired{Prepared: true}
	want := []string{"patch Service vllm", "create Service vllm-canary"}
	require.Empty(t, cmp.Diff(want, e.applyAll(prepared)), "prepare (-want +got)")
	e.gateway()
	v := e.view(prepared, "")
	assert.True(t, v.StableEndpoints == 1 && v.Pinned && v.Prepared, "view %+v: the leader alone serves", v)
	e.pod("vllm-abc123-0", "vllm-abc123", "0")
	e.pod("vllm-abc123-0-1", "vllm-abc123", "1")
	d := traffic.Desired{Weight: 25, Mirror: 5, HeaderRoutes: []traffic.HeaderRoute{
		{Name: "beta", Matches: []traffic.HeaderMatch{{Name: "x-canary", Value: "y.*", Regex: true}}},
		{Name: "people", Matches: []traffic.HeaderMatch{{Name: "tester", Value: "always", Cookie: true}}},
	}}
	await.Nil(t, "the canary has an endpoint", func(context.Context) error {
		if v := e.router.Snapshot(e.setup).Look(d); v.CanaryEndpoints != 1 {
			return fmt.Errorf("view %+v", v)
		}
		return nil
	})
	want = []string{"patch HTTPRoute llm", "patch GRPCRoute llm"}
	require.Empty(t, cmp.Diff(want, e.applyAll(d)), "up (-want +got)")
	e.view(d, traffic.ReasonRouteNotObserved)
	e.gateway()
	v = e.view(d, "")
	assert.True(t, v.Weight == 25 && v.StableEndpoints == 1, "view %+v: the isolation keeps the canary out", v)

	t.Run("manifests applied again", func(t *testing.T) { e.in(t).reapply(d) })

	e.applyAll(prepared)
	e.gateway()
	e.view(prepared, "")
	want = []string{"delete Service vllm-canary", "patch Service vllm", "patch Service vllm", "patch HTTPRoute llm", "patch GRPCRoute llm"}
	require.Empty(t, cmp.Diff(want, e.applyAll(traffic.Desired{})), "end (-want +got)")
	for key, spec := range user {
		o := e.get(key)
		assert.Empty(t, cmp.Diff(spec, o.Object["spec"]), "%s is not as the user had it", key)
		for _, entry := range o.GetManagedFields() {
			assert.NotEqual(t, traffic.FieldManager, entry.Manager, "%s: fields are still ours: %s", key, entry.FieldsV1)
		}
		_, ok := o.GetAnnotations()[traffic.IsolationAnnotation]
		assert.False(t, ok, "%s still has the note of the isolation", key)
	}
	for manifest, change := range map[string][2]string{httpManifest: {"/old", "/older"}, serviceManifest: {"app: vllm", "app: sglang"}} {
		assert.NoError(t, e.applyError("argocd", strings.Replace(manifest, change[0], change[1], 1), false), "a conflict after the release")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range []string{"Service/vllm", "Service/vllm-canary", "HTTPRoute/llm", "GRPCRoute/llm"} {
		assert.NotZero(t, e.changes[name], "no change of %s was reported: %v", name, e.changes)
	}
}

func (e *env) in(t *testing.T) *env {
	return &env{
		T: t, cluster: e.cluster, namespace: e.namespace, kube: e.kube, dynamic: e.dynamic, router: e.router,
		setup: e.setup, changes: e.changes,
	}
}

// caughtUp waits until the caches have the present objects.
func (e *env) caughtUp(keys ...traffic.Key) {
	e.Helper()
	for _, key := range keys {
		version := e.get(key).GetResourceVersion()
		await.Nil(e.T, "the cache shows "+key.String(), func(context.Context) error {
			seen, err := apimeta.Accessor(informer.Get[any](e.router.Cache(key.Kind), types.NamespacedName{Namespace: e.namespace, Name: key.Name}))
			if err != nil {
				return fmt.Errorf("read it: %w", err)
			}
			if got := seen.GetResourceVersion(); got != version {
				return fmt.Errorf("it has version %s, not %s", got, version)
			}
			return nil
		})
	}
}

// reapply applies the user's manifests during the release, in each way that tools have.
func (e *env) reapply(d traffic.Desired) {
	if err := e.applyError("argocd", httpManifest, false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), traffic.FieldManager) {
		e.Errorf("server-side apply without force: %v, want a conflict that names lockstep", err)
	}
	e.applyRoutes("argocd")
	e.apply("another-tool", serviceManifest)
	e.view(d, traffic.ReasonWriting)
	e.caughtUp(traffic.Key{Kind: traffic.KindService, Name: "vllm"}, httpRoute, grpcRoute)
	for _, key := range []traffic.Key{httpRoute, grpcRoute} {
		e.onlyStable(key)
	}
	want := []string{"patch Service vllm", "patch HTTPRoute llm", "patch GRPCRoute llm"}
	assert.Empty(e, cmp.Diff(want, e.applyAll(d)), "server-side apply removes isolation and rules; they are repaired (-want +got)")

	// kubectl apply, client-side, merges with the last applied configuration: the isolation is kept.
	patch := []byte(`{"metadata": {"annotations": {"owner": "infra"}}, "spec": {"selector": {"app": "vllm"}}}`)
	_, err := e.client(traffic.KindService).Patch(e.Context(), "vllm", types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "kubectl-client-side-apply"})
	require.NoError(e, err)
	e.view(d, traffic.ReasonWriting)
	want = []string{"patch Service vllm-canary"}
	assert.Empty(e, cmp.Diff(want, e.applyAll(d)), "the isolation is kept, and the canary Service follows (-want +got)")

	// kubectl replace
	next := decode(e.T, serviceManifest)
	live := e.get(traffic.Key{Kind: traffic.KindService, Name: "vllm"})
	next.SetResourceVersion(live.GetResourceVersion())
	spec, _ := next.Object["spec"].(map[string]any)
	liveSpec, _ := live.Object["spec"].(map[string]any)
	spec["clusterIP"] = liveSpec["clusterIP"]
	_, err = e.client(traffic.KindService).Update(e.Context(), next, metav1.UpdateOptions{})
	require.NoError(e, err)
	e.view(d, traffic.ReasonWriting)
	want = []string{"patch Service vllm", "patch Service vllm-canary"}
	assert.Empty(e, cmp.Diff(want, e.applyAll(d)), "the isolation is repaired (-want +got)")
}

// onlyStable requires that a reapplied manifest sends requests to the stable Service only.
func (e *env) onlyStable(key traffic.Key) {
	e.Helper()
	rules, _, err := unstructured.NestedSlice(e.get(key).Object, "spec", "rules")
	require.NoError(e, err)
	text := fmt.Sprint(rules)
	assert.True(e, !strings.Contains(text, "vllm-canary") && strings.Contains(text, "vllm"), "%s leads to %s", key, text)
}

// TestPrecondition: a write that is based on an outdated object fails.
//
// Proves: Route objects: preconditions, deletion with their owner, rights.
func TestPrecondition(t *testing.T) {
	e := newEnv(t)
	e.applyRoutes("someone")
	await.Nil(t, "the caches are filled", func(ctx context.Context) error { return e.router.Check(ctx, e.setup) })
	stale := e.router.Snapshot(e.setup).Look(traffic.Desired{Isolated: true}).Write
	require.NotNil(t, stale, "there is nothing to write")
	e.apply("another-tool", strings.Replace(serviceManifest, "owner: ml", "owner: infra", 1))
	_, err := apply.SendTraffic(t.Context(), e.client(stale.Key.Kind), stale)
	assert.True(t, apierrors.IsConflict(err), "%v, want a conflict", err)

	e.caughtUp(traffic.Key{Kind: traffic.KindService, Name: "vllm"})

	// Two drivers create the canary Service: one succeeds.
	e.applyAll(traffic.Desired{Isolated: true})
	create := e.router.Snapshot(e.setup).Look(traffic.Desired{Prepared: true}).Write
	require.True(t, create != nil && create.Verb == traffic.Create, "next is %v", create)
	for _, first := range []bool{true, false} {
		_, err := apply.SendTraffic(t.Context(), e.client(create.Key.Kind), create)
		assert.True(t, err == nil == first && apierrors.IsAlreadyExists(err) != first, "first: %t: %v", first, err)
	}

	// It is deleted with its owner.
	suite.Delete(t, e.kube.CoreV1().ConfigMaps(e.namespace), "owner")
	await.Nil(t, "the canary Service is collected", func(ctx context.Context) error {
		_, err := e.kube.CoreV1().Services(e.namespace).Get(ctx, "vllm-canary", metav1.GetOptions{})
		return suite.Gone(err)
	})
}

// TestForbidden: a driver without read permission reports which one is missing.
//
// Proves: Route objects: preconditions, deletion with their owner, rights.
func TestForbidden(t *testing.T) {
	e := newEnv(t)
	config := tenant.Account(t, e.cluster, e.namespace, "driver", map[string][]rbacv1.PolicyRule{
		e.namespace: {{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}}},
	})
	e.start(config)
	await.Nil(t, "Forbidden", func(ctx context.Context) error {
		err := e.router.Check(ctx, e.setup)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "endpointslices") {
			return nil
		}
		return fmt.Errorf("Check: %w", err)
	})
}
