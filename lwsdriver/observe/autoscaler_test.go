// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func ofKEDA(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.OwnerReferences = []metav1.OwnerReference{{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "keda", Controller: ptr.To(true)}}
}

func scaledObjectOf(target string, annotations map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"namespace": lwstest.VLLM.Namespace, "name": "keda", "uid": "keda", "resourceVersion": "1", "annotations": annotations},
		"spec":     map[string]any{"scaleTargetRef": map[string]any{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": target}},
	}}
}

// kedaServed is discovery and a client of a cluster with KEDA.
func kedaServed(core *fake.Clientset, objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	core.Resources = []*metav1.APIResourceList{{GroupVersion: "keda.sh/v1alpha1", APIResources: []metav1.APIResource{{Name: "scaledobjects"}}}}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{autoscaler.ScaledObjects: "ScaledObjectList"}, objects...)
}

// What is found, in a cluster with KEDA.
func TestAutoscalersOf(t *testing.T) {
	paused := map[string]any{"autoscaling.keda.sh/paused": "true", autoscaler.NoteAnnotation: `{"workload":"vllm","hold":"all"}`}
	for _, test := range []struct {
		name, reason string
		hpa          *autoscalingv2.HorizontalPodAutoscaler
		scaledObject *unstructured.Unstructured
		want         []plan.Autoscaler
		unscanned    bool
	}{
		{name: "own", hpa: lwstest.HPA("vllm"), want: []plan.Autoscaler{{Kind: autoscaler.KindHPA, Name: "scale", Targets: true, Directions: autoscaler.Directions{Up: true, Down: true}, Max: 4}}},
		{name: "other", hpa: lwstest.HPA("another")},
		{name: "held", hpa: lwstest.HPA("vllm", lwstest.HeldFor("vllm")), want: []plan.Autoscaler{{Kind: autoscaler.KindHPA, Name: "scale", Targets: true, Held: autoscaler.HoldAll, Max: 4}}},
		{
			name: "pointed-elsewhere", reason: "the note finds it", hpa: lwstest.HPA("another", lwstest.HeldFor("vllm")),
			want: []plan.Autoscaler{{Kind: autoscaler.KindHPA, Name: "scale", Held: autoscaler.HoldAll, Max: 4}},
		},
		{
			name: "keda", hpa: lwstest.HPA("vllm", ofKEDA), scaledObject: scaledObjectOf("vllm", nil), reason: "KEDA's own is the ScaledObject's",
			want: []plan.Autoscaler{{Kind: autoscaler.KindScaledObject, Name: "keda", Targets: true, Directions: autoscaler.Directions{Up: true, Down: true}, ToZero: true, Max: 100}},
		},
		{
			name: "keda-lingers", hpa: lwstest.HPA("vllm", ofKEDA), scaledObject: scaledObjectOf("vllm", paused), reason: "KEDA has not deleted its own yet",
			want: []plan.Autoscaler{{
				Kind: autoscaler.KindScaledObject, Name: "keda", Targets: true, ToZero: true, Held: autoscaler.HoldAll, Max: 100, Lingers: "HorizontalPodAutoscaler scale, which KEDA made for it,",
			}},
		},
		{
			name: "keda-paused", scaledObject: scaledObjectOf("vllm", paused),
			want: []plan.Autoscaler{{Kind: autoscaler.KindScaledObject, Name: "keda", Targets: true, ToZero: true, Held: autoscaler.HoldAll, Max: 100}},
		},
		{name: "keda-unseen", hpa: lwstest.HPA("vllm", ofKEDA), unscanned: true, reason: "its ScaledObject must be somewhere"},
	} {
		t.Run(test.name, func(t *testing.T) {
			core := fake.NewClientset()
			var scaled []runtime.Object
			if test.hpa != nil {
				require.NoError(t, core.Tracker().Add(test.hpa))
			}
			if test.scaledObject != nil {
				scaled = append(scaled, test.scaledObject)
			}
			keda := kedaServed(core, scaled...)
			b := newFixtureOn(t, core, keda)
			b.run()
			b.eventually("the caches are filled", func() bool {
				return b.Autoscalers.hpas.Synced() && b.Autoscalers.scaled.Synced()
			})
			got, err := b.Autoscalers.scaling(lwstest.VLLM, lwstest.VLLM.Name)
			assert.Equal(t, test.unscanned, err != nil, "unscanned: %v", err)
			assert.Empty(t, cmp.Diff(test.want, got), "%s (-want +got)", test.reason)
		})
	}
}

// Without KEDA nothing is missing; without the right to read what every cluster has, that is said, and only to releases that
// need it.
func TestAutoscalersUnread(t *testing.T) {
	core := fake.NewClientset()
	fakes.React(&core.Fake, "list", "horizontalpodautoscalers", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}, "",
			errors.New(`User "lockstep" cannot list resource "horizontalpodautoscalers"`))
	})
	b := newFixtureOn(t, core, lwstest.NoRoutes(), lwstest.Unrecorded())
	b.run()
	b.eventually("it is known why", func() bool {
		return drivererr.Reason(ContractError(b.Autoscalers.hpas.Err())) == pb.ErrorReason_ERROR_REASON_FORBIDDEN
	})
	s := b.look()
	lwstest.ErrorContains(t, s.Unscanned, "cannot list resource", "horizontalpodautoscalers")
	for style, want := range map[pb.Style]bool{
		pb.Style_STYLE_BLUE_GREEN: true, pb.Style_STYLE_CANARY: false, pb.Style_STYLE_PARTITION: false,
	} {
		refused := slices.ContainsFunc(plan.Begin{Policy: &pb.ReleasePolicy{Style: style}}.Obstacles(s.Observation), func(err error) bool {
			return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_FORBIDDEN
		})
		assert.Equal(t, want, refused, "%v: refused", style)
	}
}

// KEDA may be installed while the driver runs: the HorizontalPodAutoscaler that it creates shows it.
func TestKEDAInstalledLater(t *testing.T) {
	core := fake.NewClientset()
	client := kedaServed(core, scaledObjectOf("vllm", nil))
	var installed atomic.Bool
	fakes.React(&core.Fake, "get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !installed.Load(), nil, apierrors.NewNotFound(autoscaler.ScaledObjects.GroupResource(), "")
	})
	b := newFixtureOn(t, core, client)
	b.run()
	known := func() bool {
		return b.Autoscalers.scaled.Err() == nil && b.Autoscalers.hpas.Err() == nil
	}
	b.eventually("it is known that there is none", known)
	found, err := b.Autoscalers.scaling(lwstest.VLLM, lwstest.VLLM.Name)
	require.True(t, err == nil && len(found) == 0, "without KEDA: %v, %v", found, err)
	installed.Store(true)
	require.NoError(t, core.Tracker().Add(lwstest.HPA("vllm", ofKEDA)))
	b.eventually("its objects are known", func() bool {
		found, err := b.Autoscalers.scaling(lwstest.VLLM, lwstest.VLLM.Name)
		return err == nil && len(found) == 1 && found[0].Kind == autoscaler.KindScaledObject
	})
}
