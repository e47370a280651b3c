// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// routedBed is a driver of a cluster in which a release of default/vllm routes its requests: the stable Service is fenced,
// the canary Service is there, and the route gives the canary a share that its gateway has taken.
type routedBed struct {
	*bed

	routes *dynamicfake.FakeDynamicClient
	canary *lws.LeaderWorkerSet
}

var (
	routedPolicy = &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"llm"}}
	gatewayAPI   = schema.GroupVersion{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion}
)

// routedPhase is inPhase with a policy that routes requests.
func routedPhase(t *testing.T, phase record.Phase, wish *record.Traffic) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%"}, Traffic: routedPolicy})
	if err != nil {
		t.Fatal(err)
	}
	return withRecord(t, stableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: phase, StartedAt: noon, PhaseAt: noon, Traffic: wish,
	}})
}

// newRoutedBed makes one of a workload and its canary, with a share of weight in the route.
func newRoutedBed(t *testing.T, stable *lws.LeaderWorkerSet, weight int) *routedBed {
	t.Helper()
	canary := routedCanary(t, stable)
	core, routes := routedObjects(t, routedSetup(t, stable, canary), weight, canary.Name+"-0")
	for _, worker := range []string{"0", "0-1"} {
		if err := core.Tracker().Add(canaryPod(canary.Name, worker)); err != nil {
			t.Fatal(err)
		}
	}
	return &routedBed{bed: newBedOn(t, core, routes, stable, canary), routes: routes, canary: canary}
}

// routedObjects are the objects of a release that routes requests, one of whose canary's leaders serves.
func routedObjects(t *testing.T, setup traffic.Setup, weight int, leader string) (*fake.Clientset, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	user := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "vllm", lws.WorkerIndexLabelKey: "0"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	fenced, _, err := traffic.Fence(user, setup)
	if err != nil {
		t.Fatal(err)
	}
	second, err := traffic.CanaryService(fenced, setup)
	if err != nil {
		t.Fatal(err)
	}
	core := fake.NewClientset(fenced, second, endpoints("vllm", "vllm-0", "vllm-1"), endpoints("vllm-canary", leader))
	if d, ok := core.Discovery().(*fakediscovery.FakeDiscovery); ok {
		d.Resources = append(d.Resources, &metav1.APIResourceList{
			GroupVersion: gatewayAPI.String(), APIResources: []metav1.APIResource{{Name: "httproutes"}},
		})
	}
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	return core, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{
		gatewayAPI.WithResource("httproutes"): "HTTPRouteList",
	}, routeOf(t, setup, weight), fenced, second)
}

func routedCanary(t *testing.T, stable *lws.LeaderWorkerSet) *lws.LeaderWorkerSet {
	t.Helper()
	c := canaryOf(t, stable)
	c.OwnerReferences[0].UID = stable.UID
	value, err := record.EncodeTraffic(routedPolicy)
	if err != nil {
		t.Fatal(err)
	}
	c.Annotations[record.TrafficAnnotation] = value
	return c
}

func routedSetup(t *testing.T, stable, canary *lws.LeaderWorkerSet) traffic.Setup {
	t.Helper()
	policy, bad := traffic.ParsePolicy(routedPolicy)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	return newSetup(stable, canary.Name, policy, nil)
}

// routeOf is a route that gives the canary a share and whose gateway has taken it.
func routeOf(t *testing.T, setup traffic.Setup, weight int) *unstructured.Unstructured {
	t.Helper()
	key := setup.Policy.Routes[0]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"parentRefs": []any{map[string]any{"name": "gateway"}},
		"rules":      []any{map[string]any{"backendRefs": []any{map[string]any{"name": "vllm", "port": int64(80), "weight": int64(1)}}}},
	}}}
	o.SetAPIVersion(gatewayAPI.String())
	o.SetKind(key.Kind)
	o.SetNamespace("default")
	o.SetName(key.Name)
	rules, _, err := traffic.RouteRules(traffic.Route{Key: key, Object: o}, setup, traffic.Desired{Weight: weight})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["spec"].(map[string]any)["rules"] = rules //nolint:forcetypeassert // made above
	condition := func(name string) any {
		return map[string]any{"type": name, "status": "True", "observedGeneration": int64(0), "reason": name}
	}
	o.Object["status"] = map[string]any{"parents": []any{map[string]any{
		"parentRef": map[string]any{"name": "gateway"}, "conditions": []any{condition("Accepted"), condition("ResolvedRefs")},
	}}}
	return o
}

func endpoints(service string, pods ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	for _, pod := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod},
		})
	}
	return s
}

// canaryPod is a ready pod of the canary's group 0: the leader "0" or its worker "0-1".
func canaryPod(canary, pod string) *corev1.Pod {
	p := testPod(canary + "-" + pod)
	p.UID = types.UID("pod-" + pod)
	p.Annotations[lws.SizeAnnotationKey] = "2"
	p.Labels = map[string]string{
		lws.SetNameLabelKey: canary, lws.GroupIndexLabelKey: "0", lws.WorkerIndexLabelKey: "1", lws.RevisionKey: "new+",
	}
	if pod == "0" {
		p.Labels[lws.WorkerIndexLabelKey], p.Labels[record.ServingLabel] = "0", record.Serving
	}
	return p
}

// synced runs the driver and returns once it sees the route.
func (b *routedBed) synced() *routedBed {
	b.t.Helper()
	b.run()
	b.eventually("the driver serves", b.Synced)
	b.eventually("the routes are seen", func() bool {
		s, err := b.engine.Observer.Observe(vllm)
		return err == nil && s.Traffic != nil && s.Traffic.Look(traffic.Desired{}).Reason != traffic.ReasonNotSynced
	})
	return b
}

// caughtUp waits until the driver sees what it wrote: these objects have no resourceVersion by which it could tell.
func (b *routedBed) caughtUp() {
	b.t.Helper()
	b.eventually("the record is seen", func() bool {
		live, err := b.sets.LeaderworkersetV1().LeaderWorkerSets("default").Get(b.t.Context(), "vllm", metav1.GetOptions{})
		seen := b.engine.Observer.Caches.Workload(vllm)
		return err == nil && seen != nil && live.Annotations[record.RecordAnnotation] == seen.Annotations[record.RecordAnnotation]
	})
}

// wish is what the record of default/vllm asks for.
func (b *routedBed) wish() *record.Traffic {
	b.t.Helper()
	return b.look().Record.Release.Traffic
}

// Where the requests go is found by their objects: by the record's policy, and by the canary's where the record is gone.
func TestCarried(t *testing.T) {
	stable := routedPhase(t, record.Progressing, nil)
	other := stable.DeepCopy()
	other.Namespace = "other"
	b := newRoutedBed(t, stable, 0)
	b.cache(other)
	is := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, key := range b.engine.Observer.Caches.carried("default", traffic.KindHTTPRoute, "llm") {
			got = append(got, key.String())
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	is("record and canary", "default/vllm")
	if n := len(b.engine.Observer.Caches.carried("default", traffic.KindService, "vllm-canary")); n == 0 {
		t.Error("nobody is told of the canary Service")
	}
	if n := len(b.engine.Observer.Caches.carried("default", traffic.KindService, "another")); n > 0 {
		t.Error("somebody is told of another's Service")
	}
	if n := len(b.engine.Observer.Caches.carried("", traffic.KindHTTPRoute, "")); n < 2 {
		t.Errorf("%d are told that the cache of routes was filled, want all", n)
	}
	b.cache(unrecorded())
	is("canary alone", "default/vllm")
	if err := b.engine.Observer.Caches.Workloads.GetIndexer().Delete(stable); err != nil {
		t.Fatal(err)
	}
	is("orphan", "default/vllm")
	if err := b.engine.Observer.Caches.Workloads.GetIndexer().Delete(b.canary); err != nil {
		t.Fatal(err)
	}
	is("nothing")
}

// The policy that a canary carries counts only where the record tells none.
func TestAddedPolicy(t *testing.T) {
	withDrain := `{"stableService": "vllm", "httpRoutes": ["llm"], "drain": {"period": "7s"}}`
	for _, tc := range []struct {
		name, reason string
		stable       *lws.LeaderWorkerSet
		annotation   string
		want         string // the stable Service; empty: no traffic
		bad          bool
	}{
		{"record", "what the record says holds", routedPhase(t, record.Progressing, nil), `{"stableService": "another", "httpRoutes": ["x"]}`, "vllm", false},
		{"record without", "a release that routes nothing", inPhase(t, record.Progressing), withDrain, "", false},
		{"no record", "somebody removed it", unrecorded(), withDrain, "vllm", false},
		{"neither", "a canary that was never routed to", unrecorded(), "", "", false},
		{"edited", "what can't be read must not be guessed", unrecorded(), "{", "", true},
		{"unusable", "no driver wrote that", unrecorded(), `{"stableService": "vllm"}`, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			canary := routedCanary(t, tc.stable)
			canary.Annotations[record.TrafficAnnotation] = tc.annotation
			b := newBed(t, tc.stable, canary)
			s, err := b.engine.Observer.Observe(vllm)
			if (err != nil) != tc.bad {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if tc.bad {
				says(t, err, record.TrafficAnnotation, canary.Name)
				return
			}
			got := ""
			if s.Setup != nil {
				got = s.Setup.Policy.StableService
			}
			if got != tc.want || (s.Traffic != nil) != (tc.want != "") {
				t.Errorf("%s: Service %q, want %q", tc.reason, got, tc.want)
			}
			if tc.name == "no record" && s.Policy.Drain.Period == 0 {
				t.Error("the drain is forgotten")
			}
		})
	}
}

// The workload is gone: what it had borrowed is given back, then what its release added goes, held or not.
func TestOrphansGiveBack(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held %t", held), func(t *testing.T) {
			stable := routedPhase(t, record.Progressing, nil)
			b := newRoutedBed(t, stable, 30)
			if !held {
				b.canary.Finalizers = nil
				b.canary.DeletionTimestamp = &metav1.Time{Time: noon}
			}
			if err := b.sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), "default", "vllm"); err != nil {
				t.Fatal(err)
			}
			if err := b.sets.Tracker().Update(lws.GroupVersion.WithResource("leaderworkersets"), b.canary, "default"); err != nil {
				t.Fatal(err)
			}
			b.mirrorServices()
			b.run()
			b.mustGiveBack()
		})
	}
}

// The workload is being deleted in the foreground, and a write on its routes is refused: a person must act, and the deletion
// does not wait for that.
func TestDeletionDoesNotWaitForRoutes(t *testing.T) {
	stable := routedPhase(t, record.Progressing, nil)
	stable.DeletionTimestamp = &metav1.Time{Time: noon}
	b := newRoutedBed(t, stable, 30)
	b.routes.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "llm", errors.New("a policy says no"))
	})
	b.run()
	b.engine.queue.Add(vllm)
	b.eventually("what it added is let go of", func() bool {
		c, err := b.sets.LeaderworkersetV1().LeaderWorkerSets("default").Get(t.Context(), b.canary.Name, metav1.GetOptions{})
		return err == nil && !HasFinalizer(c)
	})
}

// mustGiveBack waits until nothing of the release is left on the user's objects.
func (b *routedBed) mustGiveBack() {
	b.t.Helper()
	b.eventually("the route leads to the stable Service alone", func() bool {
		got, err := b.routes.Resource(gatewayAPI.WithResource("httproutes")).Namespace("default").Get(b.t.Context(), "llm", metav1.GetOptions{})
		if err != nil {
			return false
		}
		raw, _ := json.Marshal(got.Object["spec"])
		return !strings.Contains(string(raw), "vllm-canary")
	})
	b.eventually("the fence is lifted", func() bool {
		got, err := b.core.CoreV1().Services("default").Get(b.t.Context(), "vllm", metav1.GetOptions{})
		return err == nil && got.Spec.Selector[lws.SetNameLabelKey] == "" && got.Spec.Selector[lws.RevisionKey] == "" &&
			got.Annotations[traffic.FenceAnnotation] == ""
	})
	b.eventually("the canary Service is gone", func() bool {
		_, err := b.core.CoreV1().Services("default").Get(b.t.Context(), "vllm-canary", metav1.GetOptions{})
		return err != nil
	})
}

// mirrorServices has writes of Services, which the generic client makes, show up in the cache, which the typed one fills.
func (b *routedBed) mirrorServices() {
	b.routes.PrependReactor("*", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch t := a.(type) {
		case clienttesting.PatchAction:
			got, err := b.core.CoreV1().Services("default").Patch(b.t.Context(), t.GetName(), t.GetPatchType(), t.GetPatch(), metav1.PatchOptions{})
			if err != nil {
				return true, nil, err
			}
			raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
			return true, &unstructured.Unstructured{Object: raw}, err
		case clienttesting.DeleteAction:
			return true, nil, b.core.CoreV1().Services("default").Delete(b.t.Context(), t.GetName(), metav1.DeleteOptions{})
		}
		return false, nil, nil
	})
}
