// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

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
	if _, err := b.dropBoundsFinalizer(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	got, err := generic.Resource(observe.BoundsResource).Namespace("default").Get(t.Context(), "llm", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"spec": spec, "finalizers": []string{"other"}}, map[string]any{"spec": got.Object["spec"], "finalizers": got.GetFinalizers()}); diff != "" {
		t.Errorf("bounds (-want +got):\n%s", diff)
	}
}
