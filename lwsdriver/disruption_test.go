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
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// budgetOf returns a user's PodDisruptionBudget over all pods of an app.
func budgetOf(namespace, name, maxUnavailable, app string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.Parse(maxUnavailable)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
}

func TestPreviewWithoutBudgets(t *testing.T) {
	d, s := aboutToReleaseWithout(t, "poddisruptionbudgets", apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", errors.New("no")))
	if _, got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "1")); err != nil || codesOf(got) != "BudgetsUnknown" {
		t.Errorf("%q, %v", codesOf(got), err)
	}
}

// A pod with two budgets can't be evicted, so the release does not add one to a user's.
func TestPreviewOfBudgetConflicts(t *testing.T) {
	p := inBatches(pb.Style_STYLE_CANARY, "50%")
	p.GroupDisruptionBudget = true
	p.CanaryLeaderMetadata = &pb.PodMetadata{Labels: map[string]string{"app": "vllm", "track": "canary"}}
	canaries := budgetOf("default", "canaries", "1", "vllm")
	canaries.Spec.Selector.MatchLabels["track"] = "canary"
	ours := disruption.Object(lwstest.StableWorkload(), plan.Budget{Name: "vllm-lockstep-leaders", Workloads: []string{"vllm"}, MaxUnavailable: 1})
	for _, tt := range []struct {
		name, reason string
		object       runtime.Object
		want         pb.ErrorReason
	}{
		{"same pods", "of the workload", budgetOf("default", "pods", "1", "vllm"), pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT},
		{"canary's pods", "that are yet to come", canaries, pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT},
		{"other pods", "no concern", budgetOf("default", "web", "0", "web"), 0},
		{"name", "the name is taken", budgetOf("default", "vllm-lockstep-workers", "1", "web"), pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"ours", "left by a release before", ours, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, s := aboutToRelease(t, tt.object)
			if _, _, err := d.preview(t.Context(), s, p); drivererr.Reason(err) != tt.want {
				t.Errorf("%s: %v, want %v", tt.reason, err, tt.want)
			} else if tt.want != 0 {
				lwstest.ErrorContains(t, err, "PodDisruptionBudget default/")
			}
		})
	}
	d, s := aboutToReleaseWithout(t, "poddisruptionbudgets", apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "",
		errors.New(`User "x" cannot list resource "poddisruptionbudgets"`)))
	if _, _, err := d.preview(t.Context(), s, p); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("without the right to read them: %v", err)
	}
}
