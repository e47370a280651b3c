// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// budgetOf is somebody's PodDisruptionBudget over all pods of an app.
func budgetOf(namespace, name, maxUnavailable, app string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.Parse(maxUnavailable)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
}

// What budgets mean for groups is said in every style, and by the user's own maxUnavailable, which is saved under hold.
func TestPreviewOfBudgets(t *testing.T) {
	d, s, _ := aboutToRelease(
		budgetOf("default", "none", "0", "vllm"), budgetOf("default", "pods", "2", "vllm"), budgetOf("default", "one", "1", "vllm"),
		budgetOf("default", "web", "0", "web"), budgetOf("elsewhere", "none", "0", "vllm"),
	)
	got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "50%"))
	if err != nil || codesOf(got) != "BudgetBlocksEviction BudgetCountsPods" {
		t.Fatalf("warnings %q, %v", codesOf(got), err)
	}
	says(t, textOf(got), "PodDisruptionBudget default/none", "PodDisruptionBudget default/pods", "maxUnavailable: 1", "group of 2")
	s.Stable.Rolling = settings(0, "50%", "0")
	if got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "50%")); err != nil || codesOf(got) != "BudgetBlocksEviction" {
		t.Errorf("with two groups that may be away: %q, %v", codesOf(got), err)
	}
	s.Stable.Revision = "old"
	if got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "50%")); err != nil || len(got) > 0 {
		t.Errorf("with nothing to release: %q, %v", codesOf(got), err)
	}
}

func TestPreviewWithoutBudgets(t *testing.T) {
	d, s, core := aboutToRelease()
	core.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", errors.New("no"))
	})
	if got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "1")); err != nil || codesOf(got) != "BudgetsUnknown" {
		t.Errorf("%q, %v", codesOf(got), err)
	}
}
