// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// routed is a release in two batches with shares, behind a Service and a route that Traefik serves.
var routed = step("upgrade: 25%, weight: 10") + pause + step("upgrade: 50%, weight: 50") + pause +
	step("upgrade: 100%, weight: 100") + pause + step("promote: true")

// stableService is the user's.
const stableService = "leaders"

var byRoute = withConfig("traffic: {stableService: leaders, httpRoutes: [model]}")

// newRouted is newRelease with a Service and a route.
func newRouted(t *testing.T, steps string, changes ...change) *env {
	t.Helper()
	e := newEnv(t)
	e.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: leaders}
spec:
  selector: {leaderworkerset.sigs.k8s.io/name: %s, leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: model}
spec:
  parentRefs: [{name: %s, namespace: %s}]
  hostnames: ["%s.example.com"]
  rules: [{backendRefs: [{name: leaders, port: 80}]}]
`, name, cluster.GatewayName, cluster.GatewayNamespace, e.Namespace))
	e.deploy(changes...)
	e.rollout(steps, append(changes, byRoute)...)
	e.awaitRest("v1")
	return e
}

// share is the canary's share of a route's last rule, in percent.
func share(route *unstructured.Unstructured, stable string) int64 {
	rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
	var all, canary int64
	for _, rule := range rules[len(rules)-1:] {
		refs, _, _ := unstructured.NestedSlice(rule.(map[string]any), "backendRefs")
		for _, ref := range refs {
			fields := ref.(map[string]any)
			weight, ok := fields["weight"].(int64)
			if !ok {
				weight = 1
			}
			all += weight
			if fields["name"] != stable {
				canary += weight
			}
		}
	}
	return canary * 100 / max(all, 1)
}

func (e *env) route(ctx context.Context) *unstructured.Unstructured {
	return e.routeNamed(ctx, "model")
}

func (e *env) routeNamed(ctx context.Context, route string) *unstructured.Unstructured {
	e.T.Helper()
	object := suite.GetObject(ctx, e.T, e.Objects(httpRoutes), route)
	return object
}

func (e *env) mustShare(want int64) {
	e.T.Helper()
	e.mustShareOf("model", stableService, want)
}

func (e *env) mustShareOf(route, stable string, want int64) {
	e.T.Helper()
	got := share(e.routeNamed(e.T.Context(), route), stable)
	assert.Equal(e.T, want, got, "the canary's share is %d %%, want %d", got, want)
}

// mustBeRestored waits until the route is restored and no generated Service is left. An aborted Rollout reports the abort
// before that.
func (e *env) mustBeRestored() {
	e.T.Helper()
	e.Eventually("the user's objects are restored", func(ctx context.Context) error {
		route := e.route(ctx)
		rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
		if text := asJSON(rules); len(rules) != 1 || strings.Contains(text, "canary") || share(route, stableService) != 0 {
			return fmt.Errorf("the route is %s", text)
		}
		services, err := e.Kube.CoreV1().Services(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range services.Items {
			if s := &services.Items[i]; s.Name != stableService && s.Name != name {
				return fmt.Errorf("Service %s is left", s.Name)
			}
		}
		return nil
	})
}

// Argo's own setWeight, setHeaderRoute and setMirrorRoute route requests, although Argo knows no canary pods. Each is in force before
// the next step.
//
// Proves: Argo: its own traffic steps, with requests; waiting steps leave workers for others.
func TestNativeRouting(t *testing.T) {
	t.Parallel()
	e := newRouted(t, step("upgrade: 50%")+"- setWeight: 20\n"+pause+
		"- setHeaderRoute: {name: canary, match: [{headerName: x-canary, headerValue: {exact: 'yes'}}]}\n"+
		"- setMirrorRoute: {name: copy, percentage: 10}\n"+pause+
		"- setHeaderRoute: {name: canary}\n- setMirrorRoute: {name: copy}\n- setWeight: 0\n"+pause+step("promote: true"),
		withRouting("managedRoutes: [{name: canary}, {name: copy}]"))
	e.edit("v2")
	e.awaitPause(2)
	e.mustShare(20)
	out := e.argo("get", "rollout", name)
	assert.Contains(t, strings.Join(strings.Fields(out), " "), "SetWeight: 20 ActualWeight: 0", "kubectl argo rollouts get says\n%s", out)
	e.argo("promote", name)
	e.awaitPause(5)
	routes := func() string { return asJSON(e.route(t.Context()).Object["spec"]) }
	text := routes()
	assert.True(t, strings.Contains(text, "x-canary") && strings.Contains(text, "RequestMirror"), "the route is %s", text)
	e.argo("promote", name)
	e.awaitPause(9)
	e.mustShare(0)
	text = routes()
	assert.False(t, strings.Contains(text, "x-canary") || strings.Contains(text, "RequestMirror"), "the route is %s", text)
	e.argo("promote", name)
	e.awaitRest("v2")
	e.mustBeRestored()
}

// moments records the canary's share and its pods as they change.
type moments struct {
	mu     sync.Mutex
	share  int64
	broken []string
	seen   int
}

// watch records, until the test ends, each deletion of a canary group to which requests are routed.
func (e *env) watch() *moments {
	e.T.Helper()
	m := &moments{share: share(e.route(e.T.Context()), stableService)}
	routes, err := e.Objects(httpRoutes).Watch(e.T.Context(), metav1.ListOptions{})
	require.NoError(e.T, err)
	e.T.Cleanup(routes.Stop)
	go func() {
		for event := range routes.ResultChan() {
			if route, ok := event.Object.(*unstructured.Unstructured); ok {
				m.mu.Lock()
				m.share = share(route, stableService)
				m.seen++
				m.mu.Unlock()
			}
		}
	}()
	sets, err := e.Sets().Watch(e.T.Context(), metav1.ListOptions{})
	require.NoError(e.T, err)
	e.T.Cleanup(sets.Stop)
	go func() {
		for event := range sets.ResultChan() {
			object, ok := event.Object.(metav1.Object)
			if !ok || object.GetName() == name || object.GetDeletionTimestamp() == nil {
				continue
			}
			// Read, not remembered: the two watches are not in step.
			route := e.route(context.Background())
			if now := share(route, stableService); now != 0 || !acknowledged(route) {
				m.mu.Lock()
				m.broken = append(m.broken, fmt.Sprintf("%s is deleted at a share of %d %%, acknowledged %t", object.GetName(), now, acknowledged(route)))
				m.mu.Unlock()
			}
		}
	}()
	return m
}

// acknowledged reports whether the gateway has accepted the current generation of the route.
func acknowledged(route *unstructured.Unstructured) bool {
	parents, _, _ := unstructured.NestedSlice(route.Object, "status", "parents")
	for _, parent := range parents {
		conditions, _, _ := unstructured.NestedSlice(parent.(map[string]any), "conditions")
		for _, condition := range conditions {
			if fields := condition.(map[string]any); fields["type"] == "Accepted" {
				return fields["status"] == "True" && fields["observedGeneration"] == route.GetGeneration()
			}
		}
	}
	return false
}

func (m *moments) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range slices.Compact(m.broken) {
		t.Error(text)
	}
}

// An abort withdraws the requests first, then the capacity.
//
// Proves (test): Argo: weights and header routes with requests.
func TestAbortWithTraffic(t *testing.T) {
	t.Parallel()
	for i, want := range []int64{10, 50, 100} {
		t.Run(fmt.Sprintf("at-%d", want), func(t *testing.T) {
			t.Parallel()
			e := newRouted(t, routed, slow())
			before := e.Identities()
			e.edit("v2")
			for j := range i {
				e.awaitPause(int32(2*j + 1))
				e.argo("promote", name)
			}
			e.awaitPause(int32(2*i + 1))
			e.mustShare(want)
			m := e.watch()
			e.argo("abort", name)
			e.awaitAborted("v1")
			m.check(t)
			e.same(before)
			e.mustBeRestored()
		})
	}
}

// Requests with a header reach the canary, whatever the share.
//
// Proves (test): Argo: weights and header routes with requests.
func TestHeaderRoute(t *testing.T) {
	t.Parallel()
	e := newRouted(t, step(`upgrade: 25%, headers: [{name: x-canary, exact: "yes"}]`)+pause+
		step("weight: 20, headers: []")+pause+step("promote: true"))
	e.edit("v2")
	e.awaitPause(1)
	rules, _, _ := unstructured.NestedSlice(e.route(t.Context()).Object, "spec", "rules")
	text := asJSON(rules)
	assert.True(t, len(rules) == 2 && strings.Contains(text, "x-canary"), "the route is %s", text)
	e.argo("promote", name)
	e.awaitPause(3)
	e.mustShare(20)
	assert.NotContains(t, asJSON(e.route(t.Context()).Object["spec"]), "x-canary", "the route")
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.mustBeRestored()
}

// A Rollout releases prefill and decode together: an abort removes the new groups and touches no other, a retry is promoted, and its groups
// become the set.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	e.Apply(strings.Replace(rolloutManifest(name, quarters), "workload: "+name, "workload: {kind: DisaggregatedSet, name: "+name+"}", 1))
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitPause(1)
	s.Await("v2", 1, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	s.Await("v2", 2, 1)
	s.Await("v1", 4, 2)
	e.argo("abort", name)
	e.await("the abort", func(r *v1alpha1.Rollout) bool {
		return r.Status.Abort && r.Status.Phase == v1alpha1.RolloutPhaseDegraded
	})
	s.Await("v2", 0, 0)
	s.Await("v1", 4, 2)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.argo("promote", name)
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
}
