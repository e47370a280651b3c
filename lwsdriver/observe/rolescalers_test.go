// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// llm is a DisaggregatedSet with 4 groups of prefill, unless a scaler has their number, and 2 of decode.
func llm(mode string) *unstructured.Unstructured {
	role := func(name string, replicas int64, mode string) map[string]any {
		return map[string]any{
			"name": name, "scaling": map[string]any{"mode": mode},
			"spec": map[string]any{
				"replicas":        replicas,
				"rolloutStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdateConfiguration": map[string]any{"maxUnavailable": "50%", "maxSurge": int64(0)}},
			},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": disaggregated.GroupVersion.String(), "kind": KindSet,
		"metadata": map[string]any{"namespace": lwstest.VLLM.Namespace, "name": "llm", "uid": "set", "resourceVersion": "1"},
		"spec":     map[string]any{"roles": []any{role("prefill", 4, mode), role("decode", 2, "Static")}},
	}}
}

// scalerOf6 is the scaler of role prefill with 6 groups, that an object controls.
func scalerOf6(owner string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": disaggregated.GroupVersion.String(), "kind": "DisaggregatedSetRoleScaler",
		"metadata": map[string]any{"namespace": lwstest.VLLM.Namespace, "name": "llm-prefill", "uid": "scaler", "resourceVersion": "1"},
		"spec":     map[string]any{"replicas": int64(6)},
	}}
	set := llm("External")
	set.SetUID(types.UID(owner))
	u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(set, disaggregated.GroupVersion.WithKind(KindSet))})
	return u
}

// created is a scaler as LWS creates it. Each change of its number is another generation.
func created(scaler *unstructured.Unstructured, groups int64) *unstructured.Unstructured {
	scaler.SetGeneration(1)
	_ = unstructured.SetNestedField(scaler.Object, groups, "spec", "replicas")
	return scaler
}

// childOf5 is the child of role prefill, with 5 groups.
func childOf5() *lws.LeaderWorkerSet {
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lwstest.VLLM.Namespace, Name: "llm-a-prefill", UID: "child", OwnerReferences: scalerOf6("set").GetOwnerReferences(),
			Labels: map[string]string{disaggregated.SetNameLabelKey: "llm", disaggregated.RoleLabelKey: "prefill", disaggregated.RevisionLabelKey: "a"},
		},
		Spec: lws.LeaderWorkerSetSpec{Replicas: ptr.To[int32](5)},
	}
}

// setsServed is a cluster with KEDA and DisaggregatedSets, and with scalers of roles if LWS has them.
func setsServed(scalers bool, objects ...runtime.Object) (*fake.Clientset, *dynamicfake.FakeDynamicClient) {
	core := fake.NewClientset()
	serve := func(version schema.GroupVersion, resources ...string) {
		list := &metav1.APIResourceList{GroupVersion: version.String()}
		for _, r := range resources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r})
		}
		core.Resources = append(core.Resources, list)
	}
	serve(autoscaler.ScaledObjects.GroupVersion(), autoscaler.ScaledObjects.Resource)
	serve(BoundsResource.GroupVersion(), BoundsResource.Resource)
	serve(admissionv1.SchemeGroupVersion, "validatingadmissionpolicies", "validatingadmissionpolicybindings")
	if resources := []string{SetsResource.Resource, RoleScalersResource.Resource}; scalers {
		serve(disaggregated.GroupVersion, resources...)
	} else {
		serve(disaggregated.GroupVersion, resources[0])
	}
	return core, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		autoscaler.ScaledObjects: "ScaledObjectList", SetsResource: KindSet + "List", BoundsResource: BoundsKind + "List", RoleScalersResource: "ScalerList",
		admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"):       "PolicyList",
		admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"): "BindingList",
	}, objects...)
}

// ofRole points an HPA at the scaler of role prefill.
func ofRole(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{
		APIVersion: disaggregated.GroupVersion.String(), Kind: "DisaggregatedSetRoleScaler", Name: "llm-prefill",
	}
}

// The groups of a role are those of its scaler, and its autoscalers those of the scaler and those that are held for the set.
func TestRoleScalers(t *testing.T) {
	key := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm")
	both := autoscaler.Directions{Up: true, Down: true}
	hpa := plan.Autoscaler{Kind: autoscaler.KindHPA, Name: "scale", Targets: true, Directions: both, Max: 4}
	ofKEDA := scaledObjectOf("llm-prefill", nil)
	ref := map[string]any{"apiVersion": disaggregated.GroupVersion.String(), "kind": "DisaggregatedSetRoleScaler", "name": "llm-prefill"}
	require.NoError(t, unstructured.SetNestedMap(ofKEDA.Object, ref, "spec", "scaleTargetRef"))
	for _, test := range []struct {
		name, reason string
		objects      []runtime.Object
		hpa          *autoscalingv2.HorizontalPodAutoscaler
		lws9         bool
		replicas     int
		unsized      string
		want         []plan.Autoscaler
		autoscaled   string
	}{
		{name: "hpa", objects: []runtime.Object{llm("External"), scalerOf6("set")}, hpa: lwstest.HPA("", ofRole), replicas: 6, want: []plan.Autoscaler{hpa}},
		{
			name: "held", objects: []runtime.Object{llm("External"), scalerOf6("set")}, hpa: lwstest.HPA("", ofRole, lwstest.HeldFor("disaggregatedset/llm")), replicas: 6,
			reason: "by its target and its note, once", want: []plan.Autoscaler{{Kind: autoscaler.KindHPA, Name: "scale", Targets: true, Held: autoscaler.HoldAll, Max: 4}},
		},
		{
			name: "keda", objects: []runtime.Object{llm("External"), scalerOf6("set"), ofKEDA}, replicas: 6,
			want: []plan.Autoscaler{{Kind: autoscaler.KindScaledObject, Name: "keda", Targets: true, Directions: both, ToZero: true, Max: 100}},
		},
		{
			name: "pointed elsewhere", objects: []runtime.Object{llm("External"), scalerOf6("set")}, hpa: lwstest.HPA("another", lwstest.HeldFor("disaggregatedset/llm")), replicas: 6,
			reason: "the note finds it", want: []plan.Autoscaler{{Kind: autoscaler.KindHPA, Name: "scale", Held: autoscaler.HoldAll, Max: 4}},
		},
		{
			name: "not created yet", objects: []runtime.Object{llm("External")}, hpa: lwstest.HPA("", ofRole), replicas: 5, unsized: "has not created",
			reason: "it scales the set as soon as the scaler exists", want: []plan.Autoscaler{hpa},
		},
		{
			name: "forged", objects: []runtime.Object{llm("External"), scalerOf6("other")}, hpa: lwstest.HPA("", ofRole), replicas: 5, unsized: "is not one of DisaggregatedSet llm",
			reason: "neither the scaler nor its autoscaler counts",
		},
		{
			name: "first number", objects: []runtime.Object{llm("External"), created(scalerOf6("set"), 6)}, hpa: lwstest.HPA("", ofRole), replicas: 5,
			unsized: "has 6 groups, as LeaderWorkerSet counted them", reason: "it was created in mid-release, and its autoscaler is held", want: []plan.Autoscaler{hpa},
		},
		{
			name: "first number of one revision", objects: []runtime.Object{llm("External"), created(scalerOf6("set"), 5)}, hpa: lwstest.HPA("", ofRole),
			replicas: 5, want: []plan.Autoscaler{hpa},
		},
		{name: "static", objects: []runtime.Object{llm("Static"), scalerOf6("set")}, hpa: lwstest.HPA("", ofRole), replicas: 4, reason: "the spec has the number"},
		{
			name: "of a child", objects: []runtime.Object{llm("External"), scalerOf6("set")}, hpa: lwstest.HPA("llm-a-prefill"), replicas: 6,
			reason: "it scales no role", autoscaled: "HorizontalPodAutoscaler scale",
		},
		{name: "without the API", objects: []runtime.Object{llm("External")}, lws9: true, replicas: 5, unsized: "has not created"},
	} {
		t.Run(test.name, func(t *testing.T) {
			core, generic := setsServed(!test.lws9, test.objects...)
			if test.hpa != nil {
				require.NoError(t, core.Tracker().Add(test.hpa))
			}
			b := newFixtureOn(t, core, generic, childOf5())
			b.run()
			var s *Snapshot
			b.eventually("the caches are filled", func() (done bool) {
				done = b.Caches.Synced() && !b.Autoscalers.Pending() && b.Disaggregated.bounds.Started() && !b.Disaggregated.Pending()
				s, _ = b.Observe(key)
				return s != nil && done
			})
			role := s.Roles[0]
			assert.True(t, role.Replicas == test.replicas && role.MaxUnavailable == test.replicas/2 && s.Roles[1].Replicas == 2 && (role.Unsized == "") == (test.unsized == "") && strings.Contains(role.Unsized, test.unsized),
				"the roles are %+v, want %d groups: %s", s.Roles, test.replicas, test.reason)
			assert.Empty(t, cmp.Diff(test.want, s.Autoscalers), "%s (-want +got)", test.reason)
			by := s.Children[0].Autoscaler
			assert.Equal(t, test.autoscaled, by, "%q scales the child, want %q", by, test.autoscaled)
			assert.Equal(t, test.name != "static", b.Disaggregated.scalers.Started(), "the informer of scalers is started")
		})
	}
}

// Each change of a scaler, and of an autoscaler of it, is one of its set.
func TestRoleScalerChanges(t *testing.T) {
	core, generic := setsServed(true, llm("External"), scalerOf6("set"))
	b := newFixtureOn(t, core, generic)
	key := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm")
	b.run()
	scaler := generic.Resource(RoleScalersResource).Namespace(lwstest.VLLM.Namespace)
	b.eventually("the number of the scaler", func() bool {
		s, err := b.Observe(key)
		return err == nil && s.Roles[0].Replicas == 6
	})
	changed, stop := b.Changes.Subscribe(key)
	defer stop()
	_, err := scaler.Patch(t.Context(), "llm-prefill", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	<-changed
	b.eventually("the new number", func() bool {
		s, err := b.Observe(key)
		return err == nil && s.Roles[0].Replicas == 3
	})
	select {
	case <-changed: // another event of the scaler
	default:
	}
	_, err = core.AutoscalingV2().HorizontalPodAutoscalers(lwstest.VLLM.Namespace).Create(t.Context(), lwstest.HPA("", ofRole), metav1.CreateOptions{})
	require.NoError(t, err)
	<-changed
}

// LWS v0.9.0 accepts negative numbers of groups. No child can have them, and a rollback must not fail by them.
func TestNegativeGroupsAreNone(t *testing.T) {
	t.Parallel()
	u := llm("Static")
	roles, _, _ := unstructured.NestedSlice(u.Object, "spec", "roles")
	roles[0].(map[string]any)["spec"].(map[string]any)["replicas"] = int64(-1)
	require.NoError(t, unstructured.SetNestedSlice(u.Object, roles, "spec", "roles"))
	set, err := stripSet(u)
	require.NoError(t, err)
	scaler := scalerOf6("set")
	require.NoError(t, unstructured.SetNestedField(scaler.Object, int64(-1), "spec", "replicas"))
	scaled, err := stripRoleScaler(scaler)
	require.NoError(t, err)
	assert.Zero(t, set.Roles[0].Replicas)
	assert.Zero(t, scaled.replicas)
}
