// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"encoding/json"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

var (
	// TrafficPolicy routes requests by one HTTPRoute.
	TrafficPolicy = &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"llm"}}
	// GatewayAPI is the API of routes.
	GatewayAPI = schema.GroupVersion{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion}
)

// RoutedPhase returns InPhase with a policy that routes requests.
func RoutedPhase(t testing.TB, phase record.Phase, requested *record.Traffic) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%"}, Traffic: TrafficPolicy})
	if err != nil {
		t.Fatal(err)
	}
	return WithRecord(t, StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: phase, StartedAt: Noon, PhaseAt: Noon, Traffic: requested,
	}})
}

// RoutedInPlace returns StableWorkload with a release that replaces its groups and routes their requests.
func RoutedInPlace(t testing.TB, change func(*record.Release)) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%", "100%"}, Traffic: TrafficPolicy})
	if err != nil {
		t.Fatal(err)
	}
	r := &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: Noon, PhaseAt: Noon,
	}
	change(r)
	return WithRecord(t, StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: r})
}

// Unchanged changes nothing of a release.
func Unchanged(*record.Release) {}

// RoutedCanary returns the Canary of a workload whose release routes requests by TrafficPolicy.
func RoutedCanary(t testing.TB, stable *lws.LeaderWorkerSet) *lws.LeaderWorkerSet {
	t.Helper()
	c := Canary(t, stable)
	c.OwnerReferences[0].UID = stable.UID
	value, err := record.EncodeTraffic(TrafficPolicy)
	if err != nil {
		t.Fatal(err)
	}
	c.Annotations[record.TrafficAnnotation] = value
	return c
}

// RoutedSetup returns the traffic of a release by TrafficPolicy.
func RoutedSetup(t testing.TB, stable, canary *lws.LeaderWorkerSet) traffic.Setup {
	t.Helper()
	policy, bad := traffic.ParsePolicy(TrafficPolicy)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	setup := traffic.NewSetup(stable, canary.Name, policy, nil)
	setup.CanaryPin[record.ServingLabel] = record.Serving
	return setup
}

// RoutedObjects returns clients with the objects of a release that routes requests; the canary's endpoint is the leader.
func RoutedObjects(t testing.TB, setup traffic.Setup, weight int, leader string) (*fake.Clientset, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	user := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "vllm", lws.WorkerIndexLabelKey: "0"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	isolated := isolate(t, user, setup)
	second, err := traffic.CanaryService(isolated, setup)
	if err != nil {
		t.Fatal(err)
	}
	core := fake.NewClientset(isolated, second, endpoints("vllm", "vllm-0", "vllm-1"), endpoints("vllm-canary", leader))
	if d, ok := core.Discovery().(*fakediscovery.FakeDiscovery); ok {
		d.Resources = append(d.Resources, &metav1.APIResourceList{
			GroupVersion: GatewayAPI.String(), APIResources: []metav1.APIResource{{Name: "httproutes"}},
		})
	}
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	return core, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{
		GatewayAPI.WithResource("httproutes"): "HTTPRouteList",
	}, Route(t, setup, weight), isolated, second)
}

// isolate returns the Service as a release has isolated it.
func isolate(t testing.TB, user *corev1.Service, setup traffic.Setup) *corev1.Service {
	t.Helper()
	note, err := json.Marshal(setup.StablePin)
	if err != nil {
		t.Fatal(err)
	}
	isolated := user.DeepCopy()
	maps.Copy(isolated.Spec.Selector, setup.StablePin)
	isolated.Annotations = map[string]string{traffic.IsolationAnnotation: string(note)}
	return isolated
}

// Route returns a route with the canary's weight, acknowledged by its gateway.
func Route(t testing.TB, setup traffic.Setup, weight int) *unstructured.Unstructured {
	t.Helper()
	key := setup.Policy.Routes[0]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"parentRefs": []any{map[string]any{"name": "gateway"}},
		"rules":      []any{map[string]any{"backendRefs": []any{map[string]any{"name": "vllm", "port": int64(80), "weight": int64(1)}}}},
	}}}
	o.SetAPIVersion(GatewayAPI.String())
	o.SetKind(key.Kind)
	o.SetNamespace("default")
	o.SetName(key.Name)
	p, err := traffic.RoutePatch(traffic.Route{Key: key, Object: o}, setup, traffic.Desired{Weight: weight}, false)
	if err == nil && len(p) > 0 {
		o.Object, err = model.Merge(o.Object, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	condition := func(name string) any {
		return map[string]any{"type": name, "status": "True", "observedGeneration": int64(0), "reason": name}
	}
	o.Object["status"] = map[string]any{"parents": []any{map[string]any{
		"controllerName": "example.com/gateway",
		"parentRef":      map[string]any{"name": "gateway"}, "conditions": []any{condition("Accepted"), condition("ResolvedRefs")},
	}}}
	return o
}

func endpoints(service string, pods ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8000)}}}
	for _, pod := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod},
		})
	}
	return s
}

// RoutedRelease returns clients with the objects of a release that routes requests by TrafficPolicy, and its canary: the
// stable Service is isolated, the canary Service exists, and the gateway has acknowledged the weight of the route.
func RoutedRelease(t testing.TB, stable *lws.LeaderWorkerSet, weight int) (core *fake.Clientset, routes *dynamicfake.FakeDynamicClient, canary *lws.LeaderWorkerSet) {
	t.Helper()
	canary = RoutedCanary(t, stable)
	core, routes = RoutedObjects(t, RoutedSetup(t, stable, canary), weight, canary.Name+"-0")
	for _, worker := range []string{"0", "0-1"} {
		if err := core.Tracker().Add(CanaryPod(canary.Name, worker)); err != nil {
			t.Fatal(err)
		}
	}
	return core, routes, canary
}

// RoutedSetupInPlace returns the traffic of a release by TrafficPolicy that replaces the workload's groups.
func RoutedSetupInPlace(t testing.TB, stable *lws.LeaderWorkerSet) traffic.Setup {
	t.Helper()
	policy, bad := traffic.ParsePolicy(TrafficPolicy)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	setup := traffic.NewSetupInPlace(stable, "old", "new", policy, nil)
	setup.CanaryPin[record.ServingLabel] = record.Serving
	return setup
}
