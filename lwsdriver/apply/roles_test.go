// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// TestDropBoundsFinalizerKeepsSpec drops the finalizer of bounds that this driver can't read: what it would write of them is empty.
func TestDropBoundsFinalizerKeepsSpec(t *testing.T) {
	spec := map[string]any{"set": "llm", "stable": "a newer driver's"}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": maps.Clone(spec)}}
	object.SetAPIVersion(observe.BoundsResource.GroupVersion().String())
	object.SetKind(observe.BoundsKind)
	object.SetNamespace("default")
	object.SetName("llm")
	object.SetUID("u")
	object.SetResourceVersion("7")
	object.SetFinalizers([]string{"other", record.Finalizer})
	generic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	if err := generic.Tracker().Create(observe.BoundsResource, object, "default"); err != nil { // Add would guess another plural
		t.Fatal(err)
	}
	b := newFixtureOn(t, fake.NewClientset(), generic)
	s := &observe.Snapshot{BoundsObject: &observe.BoundsObject{
		ObjectMeta: metav1.ObjectMeta{Name: "llm", UID: "u", ResourceVersion: "7", Finalizers: object.GetFinalizers()}, Problem: "stable is no object",
	}}
	s.Key = observe.KeyFor(observe.KindSet, "default", "llm")
	_, err := b.dropBoundsFinalizer(t.Context(), s)
	require.NoError(t, err)
	got, err := generic.Resource(observe.BoundsResource).Namespace("default").Get(t.Context(), "llm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(map[string]any{"spec": spec, "finalizers": []string{"other"}}, map[string]any{"spec": got.Object["spec"], "finalizers": got.GetFinalizers()}),
		"bounds (-want +got)")
}

// TestScaleChildPace scales children to numbers for which the role's percentages, which LWS copies to them, round to 0. LWS's webhook refuses those.
func TestScaleChildPace(t *testing.T) {
	for _, tt := range []struct {
		name, maxUnavailable string
		replicas             int
		want                 intstr.IntOrString
	}{
		{"rounds to 0", "25%", 1, intstr.FromInt32(1)},
		{"rounds to 1", "25%", 4, intstr.FromString("25%")},
		{"no groups", "25%", 0, intstr.FromString("25%")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			child := lwstest.StableWorkload()
			child.Spec.Replicas = ptr.To[int32](2)
			child.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{
				Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromString(tt.maxUnavailable), MaxSurge: intstr.FromString("0%"),
			}
			p := childPatch(observe.StripWorkload(child.DeepCopy()), tt.replicas)
			got, err := applied(t, p, child)
			require.NoError(t, err)
			if pace := got.Spec.RolloutStrategy.RollingUpdateConfiguration; int(*got.Spec.Replicas) != tt.replicas || pace.MaxUnavailable != tt.want {
				t.Errorf("%d groups, maxUnavailable %s", *got.Spec.Replicas, pace.MaxUnavailable.String())
			}
		})
	}
}
