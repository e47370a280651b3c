// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// newSetFixture is a driver of a cluster with DisaggregatedSet default/llm, its children, and the policies that enforce their bounds.
func newSetFixture(t *testing.T) (*fixture, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	core, kinds, served := fake.NewClientset(), map[schema.GroupVersionResource]string{}, map[string]*metav1.APIResourceList{}
	policies, bindings := admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"), admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings")
	for r, kind := range map[schema.GroupVersionResource]string{
		observe.SetsResource: observe.KindSet, observe.BoundsResource: observe.BoundsKind, policies: "ValidatingAdmissionPolicy", bindings: "ValidatingAdmissionPolicyBinding",
	} {
		kinds[r] = kind + "List"
		version := r.GroupVersion().String()
		if served[version] == nil {
			served[version] = &metav1.APIResourceList{GroupVersion: version}
			core.Resources = append(core.Resources, served[version])
		}
		served[version].APIResources = append(served[version].APIResources, metav1.APIResource{Name: r.Resource})
	}
	set := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": disaggregated.GroupVersion.String(), "kind": observe.KindSet,
		"metadata": map[string]any{"namespace": "default", "name": "llm", "uid": "set", "resourceVersion": "1"},
		"spec": map[string]any{"roles": []any{
			map[string]any{"name": "prefill", "spec": map[string]any{"replicas": int64(4)}}, map[string]any{"name": "decode", "spec": map[string]any{"replicas": int64(2)}},
		}},
	}}
	objects := []runtime.Object{set}
	for i := range 4 {
		for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
			p := &unstructured.Unstructured{Object: map[string]any{"apiVersion": admissionv1.SchemeGroupVersion.String(), "kind": kind}}
			p.SetName(fmt.Sprint("bounds-", i))
			p.SetLabels(map[string]string{"lockstep.dev/enforces": "bounds"})
			objects = append(objects, p)
		}
	}
	var children []*lws.LeaderWorkerSet
	for role, groups := range map[string]int32{"prefill": 4, "decode": 2} {
		child := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "llm-0123abcd-" + role, UID: "child",
			Labels:          map[string]string{disaggregated.SetNameLabelKey: "llm", disaggregated.RoleLabelKey: role, disaggregated.RevisionLabelKey: "0123abcd"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, disaggregated.GroupVersion.WithKind(observe.KindSet))},
		}}
		child.Spec.Replicas = ptr.To(groups)
		children = append(children, child)
	}
	generic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	return newFixtureOn(t, core, generic, children...), generic
}

// Without the permission to read the admission policies, a set is not adopted, and the error names that permission, not what is to be installed.
func TestBoundsNotReadable(t *testing.T) {
	b, generic := newSetFixture(t)
	fakes.React(&generic.Fake, "list", "validatingadmissionpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		policies := schema.GroupResource{Group: admissionv1.GroupName, Resource: "validatingadmissionpolicies"}
		return true, nil, apierrors.NewForbidden(policies, "", fmt.Errorf("User %q cannot list resource %q in API group %q at the cluster scope", "driver", policies.Resource, policies.Group))
	})
	b.run()
	adopt := func() error {
		_, err := b.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Kind: observe.KindSet, Namespace: "default", Name: "llm"}})
		return err
	}
	b.eventually("the adoption is refused", func() bool { return drivererr.Reason(adopt()) == pb.ErrorReason_ERROR_REASON_FORBIDDEN })
	err := adopt()
	lwstest.ErrorContains(t, err, "cannot list resource", "lockstep-driver-disaggregated", "config/namespaced")
	assert.NotContains(t, err.Error(), "kubectl apply", err)
}

// A call writes the bounds of a DisaggregatedSet before its record. It gives up if the API server accepts them and they have no effect.
func TestBoundsWithoutEffect(t *testing.T) {
	b, generic := newSetFixture(t)
	var writes atomic.Int32
	// A webhook removes the owner, so the bounds are not those of the set.
	fakes.React(&generic.Fake, "create", "replicabounds", func(a clienttesting.Action) (bool, runtime.Object, error) {
		bounds, _ := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
		bounds.SetUID("bounds")
		bounds.SetResourceVersion("1")
		bounds.SetOwnerReferences(nil)
		return false, nil, nil
	})
	fakes.React(&generic.Fake, "patch", "replicabounds", func(clienttesting.Action) (bool, runtime.Object, error) {
		if writes.Add(1) == 100 {
			return true, nil, errors.New("the writes have no end")
		}
		left, err := generic.Tracker().Get(observe.BoundsResource, "default", "llm")
		return true, left, err
	})
	b.run()
	b.eventually("the set is found", func() bool {
		s, err := b.engine.Observe(observe.KeyFor(observe.KindSet, "default", "llm"))
		return b.Synced() && err == nil && s.BoundsEnforced && len(s.Children) == 2
	})
	_, err := b.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Kind: observe.KindSet, Namespace: "default", Name: "llm"}})
	n := writes.Load()
	assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REJECTED && n <= 10, "after %d writes: %v", n, err)
	lwstest.ErrorContains(t, err, "has no effect", "webhook")
}
