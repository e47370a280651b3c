// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func TestIsolation(t *testing.T) {
	app := map[string]string{"app": "vllm", lws.WorkerIndexLabelKey: "0"}
	named := map[string]string{"app": "vllm", lws.SetNameLabelKey: "vllm"}
	note := map[string]string{IsolationAnnotation: `{"leaderworkerset.sigs.k8s.io/name":"vllm"}`}
	for _, tt := range []struct {
		name, reason              string
		selector, annotations     map[string]string
		isolated, lifted          map[string]string // selectors
		wantNote, changed, refuse bool
	}{
		{name: "by app label", reason: "the usual selector, both sides",
			selector: app, isolated: merged(app, named), lifted: app, wantNote: true, changed: true},
		{name: "by name label", reason: "the user's label stays after the release",
			selector: named, isolated: named, lifted: named},
		{name: "isolated", reason: "the second call changes nothing",
			selector: merged(app, named), annotations: note, isolated: merged(app, named), lifted: app, wantNote: true},
		{name: "label lost, annotation kept", reason: "a manifest was applied again",
			selector: app, annotations: note, isolated: merged(app, named), lifted: app, wantNote: true, changed: true},
		{name: "annotation of another pin", reason: "an added label is replaced if the pin changes",
			selector:    merged(app, map[string]string{lws.SetNameLabelKey: "old"}),
			annotations: map[string]string{IsolationAnnotation: `{"leaderworkerset.sigs.k8s.io/name":"old"}`},
			isolated:    merged(app, named), lifted: app, wantNote: true, changed: true},
		{name: "another workload", reason: "a user's label for another workload is not overwritten",
			selector: merged(app, map[string]string{lws.SetNameLabelKey: "others"}), refuse: true},
		{name: "no selector", reason: "nothing to pin", refuse: true},
		{name: "invalid annotation", reason: "the added labels are unknown",
			selector: app, annotations: map[string]string{IsolationAnnotation: "null"}, refuse: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm", Annotations: maps.Clone(tt.annotations)}}
			svc.Spec.Selector = maps.Clone(tt.selector)
			before := svc.DeepCopy()
			got, changed, err := isolated(svc, setupOf("vllm"))
			if diff := cmp.Diff(before, svc); diff != "" {
				t.Errorf("the cached Service was modified:\n%s", diff)
			}
			if (err != nil) != tt.refuse {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			if err != nil {
				return
			}
			_, noted := got.Annotations[IsolationAnnotation]
			if changed != tt.changed || noted != tt.wantNote || !serviceSelector(got).isolated(setupOf("vllm").StablePin) {
				t.Errorf("%s: changed %t, noted %t", tt.reason, changed, noted)
			}
			if diff := cmp.Diff(tt.isolated, got.Spec.Selector); diff != "" {
				t.Errorf("%s: isolated (-want +got):\n%s", tt.reason, diff)
			}
			after, _, err := lifted(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.lifted, after.Spec.Selector); diff != "" {
				t.Errorf("%s: lifted (-want +got):\n%s", tt.reason, diff)
			}
			if _, again, _ := lifted(after); again {
				t.Error("the second call changes something")
			}
		})
	}
}

// TestLiftKeepsEditedLabels: a label that a user changed on a isolated Service is kept.
func TestLiftKeepsEditedLabels(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{IsolationAnnotation: `{"leaderworkerset.sigs.k8s.io/name":"vllm"}`},
	}}
	svc.Spec.Selector = map[string]string{lws.SetNameLabelKey: "others"}
	got, changed, err := lifted(svc)
	if err != nil || !changed || got.Spec.Selector[lws.SetNameLabelKey] != "others" {
		t.Errorf("%v, %t, %v", got, changed, err)
	}
}

func TestCanaryService(t *testing.T) {
	stable, s := readService(t, "service.yaml"), setupOf("vllm")
	pinned, _, err := isolated(stable, s)
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]*corev1.Service{"before the isolation": stable, "isolated": pinned} {
		got, err := CanaryService(from, s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(readService(t, "canary-service.yaml"), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if p := serviceDrift(got, got); len(p) > 0 {
			t.Errorf("%s: the Service drifts from itself: %v", name, p)
		}
	}
}

func TestCanaryServiceOfHeadless(t *testing.T) {
	stable := readService(t, "service.yaml")
	stable.Spec.Type, stable.Spec.ClusterIP, stable.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone, []string{"None"}
	got, err := CanaryService(stable, setupOf("vllm"))
	if err != nil || got.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("clusterIP %q, %v: a gateway that resolves names would no longer reach the pods", got.Spec.ClusterIP, err)
	}
}

// TestServiceDrift: a change of the canary Service, or of the stable one, is repaired; foreign labels and annotations are kept.
func TestServiceDrift(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		want   map[string]any
	}{
		{"foreign metadata", func(c *corev1.Service) {
			c.Labels["cost"], c.Annotations["tool"] = "x", "y"
			c.Spec.ClusterIP, c.Spec.ClusterIPs = "10.0.0.9", []string{"10.0.0.9"}
		}, nil},
		{"selector", func(c *corev1.Service) {
			delete(c.Spec.Selector, lws.SetNameLabelKey)
			c.Spec.Selector["extra"] = "x"
		}, map[string]any{"spec": map[string]any{"selector": map[string]any{lws.SetNameLabelKey: "vllm-abc123", "extra": nil}}}},
		{"unready leaders published", func(c *corev1.Service) { c.Spec.PublishNotReadyAddresses = true },
			map[string]any{"spec": map[string]any{"publishNotReadyAddresses": nil}}},
		{"label", func(c *corev1.Service) { delete(c.Labels, "team") },
			map[string]any{"metadata": map[string]any{"labels": map[string]any{"team": "serving"}}}},
		{"annotation", func(c *corev1.Service) { c.Annotations["owner"] = "x" },
			map[string]any{"metadata": map[string]any{"annotations": map[string]any{"owner": "ml"}}}},
		{"affinity", func(c *corev1.Service) { c.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			map[string]any{"spec": map[string]any{
				"sessionAffinity": corev1.ServiceAffinityNone, "sessionAffinityConfig": (*corev1.SessionAffinityConfig)(nil),
			}}},
		{"timeout of the affinity", func(c *corev1.Service) {
			c.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
		}, map[string]any{"spec": map[string]any{
			"sessionAffinity": corev1.ServiceAffinityNone, "sessionAffinityConfig": (*corev1.SessionAffinityConfig)(nil),
		}}},
		{"policies", func(c *corev1.Service) {
			c.Spec.InternalTrafficPolicy, c.Spec.TrafficDistribution = ptr.To(corev1.ServiceInternalTrafficPolicyLocal), nil
		}, map[string]any{"spec": map[string]any{
			"internalTrafficPolicy": ptr.To(corev1.ServiceInternalTrafficPolicyCluster), "trafficDistribution": ptr.To("PreferSameZone"),
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := readService(t, "canary-service.yaml")
			have := want.DeepCopy()
			tt.change(have)
			if diff := cmp.Diff(tt.want, map[string]any(serviceDrift(have, want)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
	want := readService(t, "canary-service.yaml")
	have := want.DeepCopy()
	have.Spec.Ports[0].Port = 81
	if len(serviceDrift(have, want)) == 0 {
		t.Error("a changed port is no drift")
	}
}

func TestWithoutToolMetadata(t *testing.T) {
	got := WithoutToolMetadata(map[string]string{
		"team": "x", "argocd.argoproj.io/tracking-id": "x", "meta.helm.sh/release-name": "x", "app.kubernetes.io/instance": "x",
		"app.kubernetes.io/name": "vllm", "lockstep.dev/isolation": "x", "applyset.kubernetes.io/part-of": "x",
	})
	if diff := cmp.Diff(map[string]string{"team": "x", "app.kubernetes.io/name": "vllm"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if WithoutToolMetadata(nil) == nil {
		t.Error("nil, which a caller can't add to")
	}
}

// TestRelinquish: at the end no managedFields entry of Lockstep is left.
func TestRelinquish(t *testing.T) {
	c := newFakeCluster(t)
	ours := metav1.ManagedFieldsEntry{Manager: FieldManager, Operation: metav1.ManagedFieldsOperationUpdate}
	theirs := metav1.ManagedFieldsEntry{Manager: "argocd", Operation: metav1.ManagedFieldsOperationApply}
	key := c.setup.Policy.Routes[0]
	for _, tt := range []struct{ have, want []metav1.ManagedFieldsEntry }{
		{[]metav1.ManagedFieldsEntry{theirs, ours}, []metav1.ManagedFieldsEntry{theirs}},
		{[]metav1.ManagedFieldsEntry{ours}, []metav1.ManagedFieldsEntry{{}}},
	} {
		c.world.Routes[key].SetManagedFields(tt.have)
		write, err := Next(c.setup, Desired{}, c.world)
		if err != nil || write == nil {
			t.Fatalf("next is %v, %v", write, err)
		}
		meta, _ := write.Body["metadata"].(map[string]any)
		if diff := cmp.Diff(tt.want, meta["managedFields"]); diff != "" || write.Key != key || write.Body["spec"] != nil {
			t.Errorf("%v (-want +got):\n%s", write, diff)
		}
		if write, _ := Next(c.setup, Desired{Isolated: true, Prepared: true}, c.world); write != nil && write.Key == key {
			t.Errorf("%v during the release", write)
		}
	}
	c.world.Routes[key].SetManagedFields([]metav1.ManagedFieldsEntry{theirs})
	if write, err := Next(c.setup, Desired{}, c.world); write != nil || err != nil {
		t.Errorf("%v, %v: no entry is Lockstep's", write, err)
	}
	pool := newFakeCluster(t).withPool()
	pool.world.StablePool.SetManagedFields([]metav1.ManagedFieldsEntry{theirs, ours})
	write, err := Next(pool.setup, Desired{}, pool.world)
	if err != nil || write == nil || write.Key != (Key{KindInferencePool, "vllm"}) {
		t.Errorf("pool: %v, %v", write, err)
	}
}

// TestRoutedPorts: of the canary Service's ports those count to which routes or Ingresses send requests, by number or by name.
func TestRoutedPorts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cluster *fakeCluster
		want    []string
	}{
		{"routes", newFakeCluster(t), []string{"http"}},
		{"ingress", newFakeCluster(t).withoutRoutes().withIngress(), []string{"http", "metrics"}},
		{"pool", newFakeCluster(t).withPool(), nil},
		{"nothing", newFakeCluster(t).withoutRoutes(), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.cluster
			if got := c.world.RoutedPorts(c.setup); got != nil {
				t.Errorf("%v without a canary Service", got)
			}
			c.applyAll(Desired{Prepared: true})
			if diff := cmp.Diff(tt.want, c.world.RoutedPorts(c.setup)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
