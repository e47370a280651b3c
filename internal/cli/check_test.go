// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// deployment runs an image, in two pods of which one is ready.
func deployment(image string) *appsv1.Deployment {
	app, _, _ := strings.Cut(image, ":")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: app + "-system", Name: app, Labels: map[string]string{"app.kubernetes.io/name": app}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "registry.example.com/" + image}}}},
		},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 1},
	}
}

// newCheckedCluster serves APIs to a user with some rights.
func newCheckedCluster(may func(*authorizationv1.ResourceAttributes) bool, served ...string) *fake.Clientset {
	core := fake.NewClientset(deployment("lws:v0.9.0"))
	for _, gv := range served {
		core.Resources = append(core.Resources, &metav1.APIResourceList{GroupVersion: gv, APIResources: []metav1.APIResource{{Name: "any"}}})
	}
	fakes.React(&core.Fake, "create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review, _ := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		review.Status.Allowed = may(review.Spec.ResourceAttributes)
		return true, review, nil
	})
	return core
}

// admissionPolicies returns the policies that config has, and their bindings.
func admissionPolicies(t *testing.T) (all []runtime.Object) {
	t.Helper()
	objects, err := config.Objects("admission/policy", "admission/binding", "permissions/marks",
		"disaggregated/bounds", "disaggregated/children", "disaggregated/deletions", "disaggregated/scale")
	require.NoError(t, err)
	for _, u := range objects {
		all = append(all, u)
	}
	return all
}

// A policy is in force only with its binding, and if neither leaves anything out.
func TestCheckPolicies(t *testing.T) {
	t.Parallel()
	selector := map[string]any{"matchLabels": map[string]any{"team": "a"}}
	for _, tt := range []struct {
		kind, name string
		// field of the spec gets a value. Without one, the object is missing.
		field []string
		value any
		want  string
	}{
		{"MutatingAdmissionPolicyBinding", "lockstep-hold", nil, nil, "- lockstep-hold only a driver"},
		{"MutatingAdmissionPolicyBinding", "lockstep-hold", []string{"matchResources", "namespaceSelector"}, selector, "- lockstep-hold MutatingAdmissionPolicyBinding lockstep-hold"},
		{"MutatingAdmissionPolicy", "lockstep-hold", []string{"failurePolicy"}, "Ignore", "- lockstep-hold MutatingAdmissionPolicy lockstep-hold"},
		{"ValidatingAdmissionPolicyBinding", "lockstep-marks", []string{"validationActions"}, []any{"Audit"}, "- lockstep-marks ValidatingAdmissionPolicyBinding lockstep-marks"},
		{"ValidatingAdmissionPolicy", "lockstep-bounds-scale", nil, nil, "- lockstep-bounds no DisaggregatedSet"},
		{"ValidatingAdmissionPolicyBinding", "lockstep-bounds-deletions", nil, nil, "- lockstep-bounds no DisaggregatedSet"},
		{"ValidatingAdmissionPolicy", "lockstep-bounds", []string{"validations"}, []any{map[string]any{"expression": "true"}}, "- lockstep-bounds ValidatingAdmissionPolicy lockstep-bounds is not that of this version"},
		{"MutatingAdmissionPolicy", "lockstep-hold", []string{"matchConditions"}, []any{map[string]any{"name": "never", "expression": "false"}}, "- lockstep-hold MutatingAdmissionPolicy lockstep-hold is not"},
		{"ValidatingAdmissionPolicyBinding", "lockstep-bounds-writers", []string{"validationActions"}, []any{"Warn"}, "- lockstep-bounds ValidatingAdmissionPolicyBinding lockstep-bounds-writers"},
	} {
		policies := slices.DeleteFunc(admissionPolicies(t), func(o runtime.Object) bool {
			u, _ := o.(*unstructured.Unstructured)
			if u.GetKind() != tt.kind || u.GetName() != tt.name {
				return false
			}
			if tt.field != nil {
				require.NoError(t, unstructured.SetNestedField(u.Object, tt.value, append([]string{"spec"}, tt.field...)...))
			}
			return tt.field == nil
		})
		core := newCheckedCluster(func(*authorizationv1.ResourceAttributes) bool { return true }, "leaderworkerset.x-k8s.io/v1", "disaggregatedset.x-k8s.io/v1")
		c := &checker{core: core, objects: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), policies...), namespace: "serving"}
		require.NoError(t, c.run(t.Context()))
		found := slices.ContainsFunc(c.rows, func(r checked) bool { return strings.HasPrefix(r.verdict+" "+r.what+" "+r.text, tt.want) })
		assert.True(t, found, "%s %s with %v: %v: %+v", tt.kind, tt.name, tt.field, tt.value, c.rows)
		assert.False(t, c.missing(), "%+v", c.rows)
	}
}

// TestCheck checks a cluster with everything, one without LeaderWorkerSet and policies, and one in which the user may only read.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		served   []string
		policies []runtime.Object
		may      func(*authorizationv1.ResourceAttributes) bool
		want     []string
		missing  bool
	}{
		"everything": {
			[]string{"leaderworkerset.x-k8s.io/v1", "disaggregatedset.x-k8s.io/v1"}, admissionPolicies(t),
			func(*authorizationv1.ResourceAttributes) bool { return true },
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet lws:v0.9.0 in lws-system/lws, 1 of 2 ready", "ok lockstep-hold", "ok lockstep-marks", "ok lockstep-bounds",
				"- server no Deployment", "ok rights to read in namespace serving", "ok rights to release in namespace serving", "ok drive you may",
			}, false,
		},
		"nothing": {
			nil, nil, func(*authorizationv1.ResourceAttributes) bool { return true },
			[]string{
				"ok Kubernetes ", "MISSING LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- DisaggregatedSet", "- server", "ok rights", "ok rights", "ok drive",
			}, true,
		},
		"an old LeaderWorkerSet": {
			[]string{"leaderworkerset.x-k8s.io/v1"}, nil, func(*authorizationv1.ResourceAttributes) bool { return true },
			[]string{
				"ok Kubernetes ", "MISSING LeaderWorkerSet lws:v0.8.0 in lws-system/lws, 1 of 2 ready: install v0.9.0 or later", "- lockstep-hold", "- lockstep-marks",
				"- DisaggregatedSet", "- server", "ok rights", "ok rights", "ok drive",
			}, true,
		},
		"a reader": {
			[]string{"leaderworkerset.x-k8s.io/v1", "disaggregatedset.x-k8s.io/v1"}, nil,
			func(r *authorizationv1.ResourceAttributes) bool {
				return r.Verb == "get" || r.Verb == "list" || r.Verb == "watch"
			},
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- lockstep-bounds", "- server", "ok rights to read",
				"MISSING rights to release in namespace serving you may not create leaderworkersets, patch leaderworkersets, delete leaderworkersets, update leaderworkersets/finalizers",
				"MISSING drive you may not",
			}, true,
		},
		"without drive": {
			[]string{"leaderworkerset.x-k8s.io/v1"}, nil, func(r *authorizationv1.ResourceAttributes) bool { return r.Verb != "drive" },
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- DisaggregatedSet", "- server", "ok rights to read",
				"ok rights to release", "MISSING drive you may not drive releases.lockstep.dev, which servers and the admission policies require: ask for ClusterRole lockstep-operator",
			}, true,
		},
		"a user of a server": {
			[]string{"leaderworkerset.x-k8s.io/v1"}, nil, func(r *authorizationv1.ResourceAttributes) bool { return r.Group == "lockstep.dev" },
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- DisaggregatedSet", "ok server lockstep:v1 in lockstep-system/lockstep",
				"- rights to read in namespace serving you may not get", "- rights to release in namespace serving you may not", "ok drive you may",
			}, false,
		},
		"a user of one namespace": {
			[]string{"leaderworkerset.x-k8s.io/v1"}, nil, func(r *authorizationv1.ResourceAttributes) bool { return r.Group == "lockstep.dev" },
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- DisaggregatedSet", "- server you may not list",
				"- rights to read", "- rights to release", "ok drive you may",
			}, false,
		},
		"a user of a server that is not installed": {
			[]string{"leaderworkerset.x-k8s.io/v1"}, nil, func(r *authorizationv1.ResourceAttributes) bool { return r.Group == "lockstep.dev" },
			[]string{
				"ok Kubernetes ", "ok LeaderWorkerSet", "- lockstep-hold", "- lockstep-marks", "- DisaggregatedSet", "- server no Deployment",
				"MISSING rights to read", "MISSING rights to release", "ok drive you may",
			}, true,
		},
	} {
		core := newCheckedCluster(tt.may, tt.served...)
		switch name {
		case "an old LeaderWorkerSet":
			require.NoError(t, core.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"), deployment("lws:v0.8.0"), "lws-system"))
		case "a user of a server":
			require.NoError(t, core.Tracker().Add(deployment("lockstep:v1")))
		case "a user of one namespace":
			fakes.React(&core.Fake, "list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", nil)
			})
		}
		c := &checker{core: core, objects: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), tt.policies...), namespace: "serving"}
		require.NoError(t, c.run(t.Context()), name)
		if len(c.rows) != len(tt.want) || c.missing() != tt.missing {
			t.Errorf("%s: missing %t: %+v", name, c.missing(), c.rows)
			continue
		}
		for i, row := range c.rows {
			text := fmt.Sprintf("%s %s %s", row.verdict, row.what, row.text)
			assert.True(t, strings.HasPrefix(text, tt.want[i]), "%s: row %d is %q, want %q", name, i, text, tt.want[i])
			// Objects that kubectl applied block an upgrade of the chart that has them, too.
			assert.False(t, strings.Contains(row.text, "kubectl apply -k") && !strings.Contains(row.text, "Helm: policies."),
				"%s: row %d does not name the chart's value: %q", name, i, row.text)
		}
	}
}

// An answer that says nothing of what is installed fails the check: it advises no installation.
func TestCheckOfBusyServer(t *testing.T) {
	t.Parallel()
	for verb, resource := range map[string]string{"list": "deployments", "get": "resource"} {
		core := fake.NewClientset()
		fakes.React(&core.Fake, verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewTooManyRequestsError("later")
		})
		fakes.React(&core.Fake, "create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return true, a.(clienttesting.CreateAction).GetObject(), nil //nolint:forcetypeassert // It is a creation.
		})
		c := &checker{core: core, objects: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), namespace: "serving"}
		err := c.run(t.Context())
		assert.True(t, apierrors.IsTooManyRequests(err), "%s %s: %v", verb, resource, err)
	}
}
