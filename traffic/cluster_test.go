// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

// fakeCluster is a World to which writes are applied as by an API server.
type fakeCluster struct {
	t     testing.TB
	setup Setup
	world World
	next  int
}

func newFakeCluster(t testing.TB) *fakeCluster {
	http, grpc := readRoute(t, "httproute.yaml"), readRoute(t, "grpcroute.yaml")
	c := &fakeCluster{t: t, setup: setupOf("vllm", http.Key, grpc.Key), next: 100}
	c.world = World{
		Stable:      readService(t, "service.yaml"),
		StableReady: []string{"vllm-0", "vllm-1"},
		Routes:      map[Key]*unstructured.Unstructured{http.Key: http.Object, grpc.Key: grpc.Object},
		Ingresses:   map[string]*networkingv1.Ingress{},
	}
	delete(c.world.Stable.Annotations, corev1.LastAppliedConfigAnnotation) // as the informer drops it
	c.acceptAll()
	return c
}

// withoutRoutes removes the routes from policy and cluster.
func (c *fakeCluster) withoutRoutes() *fakeCluster {
	c.setup.Policy.Routes, c.world.Routes = nil, map[Key]*unstructured.Unstructured{}
	return c
}

// withIngress adds an Ingress to policy and cluster.
func (c *fakeCluster) withIngress() *fakeCluster {
	c.setup.Policy.Ingresses = []string{"llm"}
	c.world.Ingresses["llm"] = readIngress(c.t, "ingress.yaml")
	return c
}

// withPool replaces the routes with one to an InferencePool.
func (c *fakeCluster) withPool() *fakeCluster {
	r := readRoute(c.t, "poolroute.yaml")
	c.setup.Policy.Routes, c.world.Routes = []Key{r.Key}, map[Key]*unstructured.Unstructured{r.Key: r.Object}
	c.setup.Policy.Pool = &Pool{Stable: "vllm", Canary: "vllm-canary", Picker: "vllm-canary-epp"}
	c.world.StablePool = readRoute(c.t, "pool.yaml").Object
	c.world.Picker = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm-canary-epp"}}
	c.world.Picker.Spec.Ports = []corev1.ServicePort{{Port: 9002}}
	c.world.PickerReady = []string{"vllm-canary-epp-0"}
	c.acceptAll()
	return c
}

func (c *fakeCluster) version() string {
	c.next++
	return strconv.Itoa(c.next)
}

// find returns an object that a write may change, nil if it does not exist.
func (c *fakeCluster) find(key Key) metav1.Object {
	w := c.world
	switch {
	case key == (Key{KindService, c.setup.Policy.StableService}):
		return w.Stable
	case c.setup.Policy.Pool != nil && key == (Key{KindService, c.setup.Policy.Pool.Picker}):
		return w.Picker
	case key.Kind == KindService && w.Canary != nil:
		return w.Canary
	case key.Kind == KindIngress && w.Ingresses[key.Name] != nil:
		return w.Ingresses[key.Name]
	case key.Kind == KindInferencePool && key.Name == c.setup.Policy.Pool.Stable:
		return w.StablePool
	case key.Kind == KindInferencePool && w.CanaryPool != nil:
		return w.CanaryPool
	case w.Routes[key] != nil:
		return w.Routes[key]
	}
	return nil
}

// store sets or removes an object. Earlier copies of the World are not modified.
func (c *fakeCluster) store(key Key, content map[string]any) {
	w := &c.world
	generic := &unstructured.Unstructured{Object: content}
	switch key.Kind {
	case KindService:
		svc := decoded(c, content, &corev1.Service{})
		switch pool := c.setup.Policy.Pool; {
		case key.Name == c.setup.Policy.StableService:
			w.Stable = svc
		case pool != nil && key.Name == pool.Picker:
			w.Picker = svc
		default:
			if w.Canary = svc; svc == nil {
				w.CanaryReady = nil
			}
		}
	case KindIngress:
		w.Ingresses = maps.Clone(w.Ingresses)
		w.Ingresses[key.Name] = decoded(c, content, &networkingv1.Ingress{})
	case KindInferencePool:
		if content == nil {
			generic = nil
		}
		if key.Name == c.setup.Policy.Pool.Stable {
			w.StablePool = generic
		} else {
			w.CanaryPool = generic
		}
	default:
		w.Routes = maps.Clone(w.Routes)
		if w.Routes[key] = generic; content == nil {
			delete(w.Routes, key)
		}
	}
}

// apply makes a write, and fails on one that an API server would reject or that changes a user's Ingress.
func (c *fakeCluster) apply(write *Write) {
	c.t.Helper()
	if write.Key.Kind == KindIngress && slices.Contains(c.setup.Policy.Ingresses, write.Key.Name) {
		c.t.Fatalf("%s: it is the user's", write)
	}
	have := c.find(write.Key)
	content := map[string]any{}
	switch write.Verb {
	case Create:
		if have != nil {
			c.t.Fatalf("%s: it exists", write)
		}
		c.decode(write.Body, &content)
		meta := &unstructured.Unstructured{Object: content}
		meta.SetUID("canary")
		meta.SetGeneration(1)
	case Delete:
		if string(have.GetUID()) != write.UID || have.GetResourceVersion() != write.ResourceVersion {
			c.t.Fatalf("%s: the precondition does not hold", write)
		}
		c.store(write.Key, nil)
		return
	default:
		c.patch(have, write, &content)
		meta := &unstructured.Unstructured{Object: content}
		meta.SetGeneration(have.GetGeneration() + 1)
		if len(meta.GetAnnotations()) == 0 {
			meta.SetAnnotations(nil) // as the API server writes none
		}
		if r := (Route{write.Key, meta}); c.world.Routes[write.Key] != nil {
			var fields []metav1.ManagedFieldsEntry
			if RouteUses(r, c.setup) { // as if its fields were relinquished with the last backendRef
				fields = []metav1.ManagedFieldsEntry{{Manager: FieldManager}}
			}
			meta.SetManagedFields(fields)
		}
	}
	(&unstructured.Unstructured{Object: content}).SetResourceVersion(c.version())
	c.store(write.Key, content)
}

// decoded returns a typed object, nil for no content.
func decoded[T any](c *fakeCluster, content map[string]any, into *T) *T {
	c.t.Helper()
	if content == nil {
		return nil
	}
	c.decode(content, into)
	return into
}

func (c *fakeCluster) patch(have any, write *Write, into any) {
	c.t.Helper()
	base, err := json.Marshal(have)
	require.NoError(c.t, err)
	var version struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	require.NoError(c.t, json.Unmarshal(base, &version))
	meta, _ := write.Body["metadata"].(map[string]any)
	if write.Verb != Patch || meta["resourceVersion"] != version.Metadata.ResourceVersion {
		c.t.Fatalf("%s: version %v, the object has %s", write, meta["resourceVersion"], version.Metadata.ResourceVersion)
	}
	patch, err := json.Marshal(write.Body)
	require.NoError(c.t, err)
	merged, err := jsonpatch.MergePatch(base, patch)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(merged, into))
}

func (c *fakeCluster) decode(from, into any) {
	c.t.Helper()
	raw, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	require.NoError(c.t, err)
}

// accept sets the status of a gateway that accepts the route.
func (c *fakeCluster) accept(r Route) {
	c.t.Helper()
	c.world.Routes = maps.Clone(c.world.Routes)
	c.world.Routes[r.Key] = withStatus(c.t, r, func(conditions []any) []any { return conditions }).Object
}

// acceptAll sets the status of gateways that accept all routes and pools.
func (c *fakeCluster) acceptAll() {
	for _, r := range c.world.routes(c.setup) {
		c.accept(r)
	}
	if c.setup.Policy.Pool == nil {
		return
	}
	c.world.StablePool = c.accepted(c.world.StablePool, c.setup.backend().isStable)
	c.world.CanaryPool = c.accepted(c.world.CanaryPool, c.setup.backend().isCanary)
}

// accepted returns a pool with the status of its gateways: they report only on pools that routes lead to.
func (c *fakeCluster) accepted(pool *unstructured.Unstructured, side func(object) bool) *unstructured.Unstructured {
	if pool == nil {
		return nil
	}
	if len(c.world.gateways(c.setup, side)) > 0 {
		return poolWithStatus(c.t, pool, "public", func(conditions []any) []any { return conditions })
	}
	pool = pool.DeepCopy()
	delete(pool.Object, "status")
	return pool
}

func conditions(generation int64) []any {
	out := []any{}
	for _, kind := range []string{"Accepted", "ResolvedRefs"} {
		out = append(out, map[string]any{
			"type": kind, "status": "True", "observedGeneration": generation,
			"reason": kind, "message": "", "lastTransitionTime": "2026-11-20T12:00:00Z",
		})
	}
	return out
}

// poolWithStatus returns the pool, accepted by a gateway; change may modify the conditions.
func poolWithStatus(t testing.TB, pool *unstructured.Unstructured, gateway string, change func([]any) []any) *unstructured.Unstructured {
	t.Helper()
	o := pool.DeepCopy()
	parent := map[string]any{
		"parentRef":  map[string]any{"group": GatewayGroup, "kind": "Gateway", "name": gateway},
		"conditions": change(conditions(o.GetGeneration())),
	}
	require.NoError(t, unstructured.SetNestedSlice(o.Object, []any{parent}, "status", "parents"))
	return o
}

// withStatus returns the route, accepted by all its parents; change may modify the conditions.
func withStatus(t testing.TB, r Route, change func([]any) []any) Route {
	t.Helper()
	o := r.Object.DeepCopy()
	parents, _, err := unstructured.NestedSlice(o.Object, "spec", "parentRefs")
	require.NoError(t, err)
	var statuses []any
	for _, p := range parents {
		statuses = append(statuses, map[string]any{
			"parentRef": p, "controllerName": "example.com/gateway", "conditions": change(conditions(o.GetGeneration())),
		})
	}
	require.NoError(t, unstructured.SetNestedSlice(o.Object, statuses, "status", "parents"))
	return Route{r.Key, o}
}

// applyAll makes writes until none is due, and returns them.
func (c *fakeCluster) applyAll(d Desired) (writes []string) {
	c.t.Helper()
	for range 20 {
		write, err := Next(c.setup, d, c.world)
		require.NoError(c.t, err)
		if write == nil {
			return writes
		}
		writes = append(writes, string(write.Verb)+" "+write.Key.String())
		c.apply(write)
	}
	c.t.Fatalf("no end after 20 writes: %v", writes)
	return nil
}
