// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strconv"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

// fakeCluster is a World to which writes can be made, as an API server makes them.
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
	}
	delete(c.world.Stable.Annotations, corev1.LastAppliedConfigAnnotation) // as the informer leaves it out
	for _, r := range c.world.routes(c.setup) {
		c.accept(r)
	}
	return c
}

func (c *fakeCluster) version() string {
	c.next++
	return strconv.Itoa(c.next)
}

// apply makes a write, and fails on one that an API server would refuse.
func (c *fakeCluster) apply(write *Write) {
	c.t.Helper()
	switch {
	case write.Key.Kind != KindService:
		o := c.world.Routes[write.Key]
		content := map[string]any{}
		c.patch(o.Object, write, &content)
		next := &unstructured.Unstructured{Object: content}
		next.SetGeneration(o.GetGeneration() + 1)
		next.SetResourceVersion(c.version())
		c.world.Routes[write.Key] = next
	case write.Verb == Create:
		if c.world.Canary != nil {
			c.t.Fatalf("%s: it exists", write)
		}
		svc := &corev1.Service{}
		c.decode(write.Body, svc)
		svc.UID, svc.ResourceVersion = "canary", c.version()
		c.world.Canary = svc
	case write.Verb == Delete:
		if string(c.world.Canary.UID) != write.UID || c.world.Canary.ResourceVersion != write.ResourceVersion {
			c.t.Fatalf("%s: the precondition does not hold", write)
		}
		c.world.Canary, c.world.CanaryReady = nil, nil
	default:
		of := &c.world.Stable
		if write.Key.Name == c.setup.Policy.CanaryService {
			of = &c.world.Canary
		}
		svc := &corev1.Service{}
		c.patch(*of, write, svc)
		svc.ResourceVersion = c.version()
		*of = svc
	}
}

func (c *fakeCluster) patch(have any, write *Write, into any) {
	c.t.Helper()
	base, err := json.Marshal(have)
	if err != nil {
		c.t.Fatal(err)
	}
	var version struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(base, &version); err != nil {
		c.t.Fatal(err)
	}
	meta, _ := write.Body["metadata"].(map[string]any)
	if write.Verb != Patch || meta["resourceVersion"] != version.Metadata.ResourceVersion {
		c.t.Fatalf("%s: version %v, the object has %s", write, meta["resourceVersion"], version.Metadata.ResourceVersion)
	}
	patch, err := json.Marshal(write.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	merged, err := jsonpatch.MergePatch(base, patch)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(merged, into); err != nil {
		c.t.Fatal(err)
	}
}

func (c *fakeCluster) decode(from, into any) {
	c.t.Helper()
	raw, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// accept is a gateway that takes a route as it stands.
func (c *fakeCluster) accept(r Route) {
	c.t.Helper()
	c.world.Routes[r.Key] = withStatus(c.t, r, func(conditions []any) []any { return conditions }).Object
}

// withStatus is the route, accepted by all its parents; change may make another answer of it.
func withStatus(t testing.TB, r Route, change func([]any) []any) Route {
	t.Helper()
	o := r.Object.DeepCopy()
	parents, _, err := unstructured.NestedSlice(o.Object, "spec", "parentRefs")
	if err != nil {
		t.Fatal(err)
	}
	var answers []any
	for _, p := range parents {
		conditions := []any{}
		for _, kind := range []string{"Accepted", "ResolvedRefs"} {
			conditions = append(conditions, map[string]any{
				"type": kind, "status": "True", "observedGeneration": o.GetGeneration(),
				"reason": kind, "message": "", "lastTransitionTime": "2026-11-20T12:00:00Z",
			})
		}
		answers = append(answers, map[string]any{
			"parentRef": p, "controllerName": "example.com/gateway", "conditions": change(conditions),
		})
	}
	if err := unstructured.SetNestedSlice(o.Object, answers, "status", "parents"); err != nil {
		t.Fatal(err)
	}
	return Route{r.Key, o}
}

// settle makes writes until none is due, and returns what they were.
func (c *fakeCluster) settle(d Desired) (writes []string) {
	c.t.Helper()
	for range 12 {
		write, err := Next(c.setup, d, c.world)
		if err != nil {
			c.t.Fatal(err)
		}
		if write == nil {
			return writes
		}
		writes = append(writes, string(write.Verb)+" "+write.Key.String())
		c.apply(write)
	}
	c.t.Fatalf("12 writes and no end: %v", writes)
	return nil
}
