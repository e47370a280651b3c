// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var gatewayVersion = schema.GroupVersion{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion}

var inferencepools = schema.GroupVersionResource{Group: traffic.InferenceGroup, Version: traffic.InferenceVersion, Resource: "inferencepools"}

func setup(routes ...traffic.Key) traffic.Setup {
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: "vllm", Namespace: "default", UID: "stable"}}
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"app": "vllm"}
	return traffic.NewSetup(w, "vllm-abc123", traffic.Policy{
		StableService: "vllm", CanaryService: "vllm-canary", Routes: routes,
	}, nil)
}

func stableService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", ResourceVersion: "1"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "vllm"}},
	}
}

func slice(name, service string, family discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: family, Endpoints: endpoints,
	}
}

func endpoint(pod string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{"10.244.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod},
	}
}

func route(kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"rules": []any{map[string]any{
		"backendRefs": []any{map[string]any{"name": "vllm", "port": int64(80), "weight": int64(1)}},
	}}}}}
	o.SetAPIVersion(gatewayVersion.String())
	o.SetKind(kind)
	o.SetNamespace("default")
	o.SetName(name)
	return o
}

// world is a Router with fake clients.
type world struct {
	*Router
	core     *fake.Clientset
	dynamic  *dynamicfake.FakeDynamicClient
	reported atomic.Int64
}

// newWorld runs a Router. gateway are the installed resources of the Gateway API.
func newWorld(t *testing.T, gateway []string, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{core: fake.NewClientset()}
	var routes []runtime.Object
	for _, o := range objects {
		if u, ok := o.(*unstructured.Unstructured); ok {
			routes = append(routes, u)
		} else if err := w.core.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	w.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		gatewayVersion.WithResource("httproutes"): "HTTPRouteList",
		gatewayVersion.WithResource("grpcroutes"): "GRPCRouteList",
		inferencepools:                        "InferencePoolList",
		{Version: "v1", Resource: "services"}: "ServiceList",
	}, routes...)
	fakes.CopyWatched(&w.core.Fake, &w.dynamic.Fake)
	discovered, _ := w.core.Discovery().(*fakediscovery.FakeDiscovery)
	if len(gateway) > 0 {
		list := &metav1.APIResourceList{GroupVersion: gatewayVersion.String()}
		for _, plural := range gateway {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: plural})
		}
		discovered.Resources = append(discovered.Resources, list)
	}
	discovered.Resources = append(discovered.Resources, &metav1.APIResourceList{
		GroupVersion: inferencepools.GroupVersion().String(), APIResources: []metav1.APIResource{{Name: inferencepools.Resource}},
	})
	w.Router = New(Config{
		Core: w.core, Dynamic: w.dynamic, Log: slog.New(slog.DiscardHandler), Changed: func(string, string, string) { w.reported.Add(1) },
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return w
}

func TestObserve(t *testing.T) {
	http := traffic.Key{Kind: traffic.KindHTTPRoute, Name: "llm"}
	w := newWorld(t, []string{"httproutes"}, stableService(), route(http.Kind, http.Name),
		slice("v4", "vllm", discoveryv1.AddressTypeIPv4, endpoint("vllm-0", true), endpoint("vllm-1", false)),
		slice("v6", "vllm", discoveryv1.AddressTypeIPv6, endpoint("vllm-0", true), endpoint("vllm-2", true)),
		slice("other", "other", discoveryv1.AddressTypeIPv4, endpoint("x", true)),
	)
	assert.LessOrEqual(t, len(w.core.Actions())+len(w.dynamic.Actions()), 0, "requests before anybody asked")
	require.NoError(t, w.Check(t.Context(), setup(http)))
	v := w.Snapshot(setup(http)).Look(traffic.Desired{Isolated: true})
	assert.True(t, v.StableEndpoints == 2 && v.CanaryEndpoints == 0 && !v.Pinned && v.Stage == traffic.Drifted && v.Write != nil,
		"view %+v: want the two ready pods, each once", v)
	for _, action := range append(w.dynamic.Actions(), w.core.Actions()...) {
		assert.False(t, slices.Contains([]string{"grpcroutes", "inferencepools", "ingresses"}, action.GetResource().Resource),
			"%v: no release has one", action)
	}
	assert.NotZero(t, w.reported.Load(), "no change was reported")
}

// TestPortsByName: a pod without the container port that the Service names is a ready endpoint without it, and serves no request
// to that port.
func TestPortsByName(t *testing.T) {
	http := traffic.Key{Kind: traffic.KindHTTPRoute, Name: "llm"}
	ports := func(s *discoveryv1.EndpointSlice, names ...string) *discoveryv1.EndpointSlice {
		for _, name := range names {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To[int32](8000)})
		}
		return s
	}
	canary := stableService()
	canary.Name = "vllm-canary"
	canary.Spec.Ports = []corev1.ServicePort{
		{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}, {Name: "metrics", Port: 9090, TargetPort: intstr.FromString("metrics")},
	}
	w := newWorld(t, []string{"httproutes"}, stableService(), canary, route(http.Kind, http.Name),
		ports(slice("both", canary.Name, discoveryv1.AddressTypeIPv4, endpoint("vllm-abc123-0", true)), "http", "metrics"),
		ports(slice("routed", canary.Name, discoveryv1.AddressTypeIPv4, endpoint("vllm-abc123-1", true)), "http"),
		ports(slice("other", canary.Name, discoveryv1.AddressTypeIPv4, endpoint("vllm-abc123-2", true)), "metrics"),
		ports(slice("none", canary.Name, discoveryv1.AddressTypeIPv4, endpoint("vllm-abc123-3", true))),
	)
	_ = w.Check(t.Context(), setup(http)) // waits for the caches
	v := w.Snapshot(setup(http)).Look(traffic.Desired{Prepared: true})
	assert.Empty(t, cmp.Diff([]string{"vllm-abc123-0", "vllm-abc123-1"}, v.CanaryPods), "ready at the port of the route (-want +got)")
}

// TestObserveProviders: each object of the policy is in its field of the World.
func TestObserveProviders(t *testing.T) {
	http := traffic.Key{Kind: traffic.KindHTTPRoute, Name: "llm"}
	picker := stableService()
	picker.Name = "epp"
	pools := make([]*unstructured.Unstructured, 2)
	for i, name := range []string{"pool", "pool-canary"} {
		pools[i] = route(traffic.KindInferencePool, name)
		pools[i].SetAPIVersion(inferencepools.GroupVersion().String())
	}
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "llm"}}
	w := newWorld(t, []string{"httproutes"}, stableService(), picker, pools[0], pools[1], ingress, route(http.Kind, http.Name),
		slice("picker", "epp", discoveryv1.AddressTypeIPv4, endpoint("epp-0", true)))
	s := setup(http)
	s.Policy.Ingresses = []string{"llm"}
	s.Policy.Pool = &traffic.Pool{Stable: "pool", Canary: "pool-canary", Picker: "epp"}
	var got traffic.World
	await.Nil(t, "the caches are filled", func(context.Context) (err error) {
		got, err = w.look(s)
		return err
	})
	names := []string{got.Stable.Name, got.Picker.Name, got.StablePool.GetName(), got.CanaryPool.GetName(), got.Routes[http].GetName(), got.Ingresses["llm"].Name}
	assert.Empty(t, cmp.Diff([]string{"vllm", "epp", "pool", "pool-canary", "llm", "llm"}, names), "(-want +got)")
	assert.True(t, got.Canary == nil && len(got.Ingresses) == 1 && len(got.PickerReady) == 1,
		"canary %v, Ingresses %v, picker %v", got.Canary, got.Ingresses, got.PickerReady)
}

// TestJustWritten: a route that was created a moment ago is not reported as missing.
func TestJustWritten(t *testing.T) {
	http := traffic.Key{Kind: traffic.KindHTTPRoute, Name: "llm"}
	w := newWorld(t, []string{"httproutes"}, stableService())
	err := w.Check(t.Context(), setup(http))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, drivererr.Reason(err), "Check: %v, want that the route is missing", err)
	made := make(chan error, 1)
	time.AfterFunc(cacheLag/50, func() {
		_, err := w.dynamic.Resource(gatewayVersion.WithResource("httproutes")).Namespace("default").
			Create(context.Background(), route(http.Kind, http.Name), metav1.CreateOptions{})
		made <- err
	})
	assert.NoError(t, w.Check(t.Context(), setup(http)), "Check")
	require.NoError(t, <-made)
}

func TestNotSynced(t *testing.T) {
	w := newWorld(t, nil, stableService())
	s := setup(traffic.Key{Kind: traffic.KindGRPCRoute, Name: "llm"})
	v := w.Snapshot(s).Look(traffic.Desired{})
	assert.True(t, v.Reason == traffic.ReasonNotSynced && v.Stage == traffic.Unread, "view %+v", v)
	err := w.Check(t.Context(), s)
	assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND && strings.Contains(err.Error(), "grpcroutes"),
		"Check: %v, want that the API is missing", err)
	v = w.Snapshot(s).Look(traffic.Desired{})
	assert.True(t, v.Reason == traffic.ReasonBlocked && v.Stage == traffic.Blocked, "view %+v", v)
	v = w.Snapshot(s).Look(traffic.Desired{Isolated: true})
	assert.Nil(t, v.Write, "%s is due with unsynced caches", v.Write)
}

// TestBeforeRun: Observe never blocks, not even before Run.
func TestBeforeRun(t *testing.T) {
	r := New(Config{
		Core: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
		Log: slog.New(slog.DiscardHandler), Changed: func(string, string, string) {},
	})
	for range 10 {
		v := r.Snapshot(setup()).Look(traffic.Desired{})
		require.Equal(t, traffic.ReasonNotSynced, v.Reason, "view %+v", v)
	}
	// The first call starts all caches that the release needs: each fills while others do.
	r.Snapshot(setup(traffic.Key{Kind: traffic.KindHTTPRoute, Name: "vllm"})).Look(traffic.Desired{})
	for _, kind := range []string{traffic.KindService, kindSlice, traffic.KindHTTPRoute} {
		assert.True(t, r.Cache(kind).Started(), "the cache of %s is not started", kind)
	}
}

func TestServes(t *testing.T) {
	for _, tt := range []struct {
		name                        string
		ready, serving, terminating *bool
		want                        bool
	}{
		{"unknown counts as ready", nil, nil, nil, true},
		{"ready", ptr.To(true), ptr.To(true), ptr.To(false), true},
		{"not ready", ptr.To(false), nil, nil, false},
		{"published but not ready", ptr.To(true), ptr.To(false), nil, false},
		{"terminating", ptr.To(true), ptr.To(true), ptr.To(true), false},
	} {
		assert.Equal(t, tt.want, mayServe(discoveryv1.EndpointConditions{Ready: tt.ready, Serving: tt.serving, Terminating: tt.terminating}), tt.name)
	}
}

// TestStrip: fields that are not read are dropped, and stripping is idempotent.
func TestStrip(t *testing.T) {
	svc := stableService()
	svc.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "owner": "ml"}
	svc.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	stripFields(svc)
	assert.True(t, svc.ManagedFields == nil && len(svc.Annotations) == 1, "%v, %v", svc.ManagedFields, svc.Annotations)
	selected := metav1.ManagedFieldsEntry{
		Manager: "kustomize-controller", Time: &metav1.Time{Time: time.Unix(1, 0)}, FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:selector":{}}}`)},
	}
	svc.ManagedFields = []metav1.ManagedFieldsEntry{selected, {Manager: "kubectl"}}
	for range 2 {
		stripFields(svc)
		assert.True(t, len(svc.ManagedFields) == 1 && svc.ManagedFields[0].Manager == selected.Manager && svc.ManagedFields[0].FieldsV1 == nil,
			"%v: the name of who changed the selector is kept", svc.ManagedFields)
	}
	svc.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}, {Manager: traffic.FieldManager}}
	stripFields(svc)
	assert.Len(t, svc.ManagedFields, 2, "they are needed to remove Lockstep's entries")
	unready := endpoint("vllm-1", false)
	once := stripFields(slice("a", "vllm", discoveryv1.AddressTypeIPv4, endpoint("vllm-0", true), unready,
		discoveryv1.Endpoint{Addresses: []string{"192.0.2.1"}}))
	v, _ := once.(*endpointSlice)
	diff := cmp.Diff([]string{"vllm-0", "192.0.2.1"}, v.ready)
	assert.True(t, diff == "" && v.service == "vllm", "%q (-want +got):\n%s", v.service, diff)
	assert.True(t, stripFields(once) == once, "a second pass returns another object")
}
