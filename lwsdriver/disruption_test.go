// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestPreviewWithoutBudgets(t *testing.T) {
	d, s := aboutToReleaseWithout(t, "poddisruptionbudgets", apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", errors.New("no")))
	if _, got, err := d.preview(s, inBatches(pb.Style_STYLE_PARTITION, "1")); err != nil || codesOf(got) != "BudgetsUnknown" {
		t.Errorf("%q, %v", codesOf(got), err)
	}
}

// A budget too large to keep is named, whatever the others say.
func TestPreviewWithLargeBudget(t *testing.T) {
	selects := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{strings.Repeat("x", 20<<10)},
	}}}
	d, s := aboutToRelease(t, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "wide"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selects},
	})
	_, got, err := d.preview(s, inBatches(pb.Style_STYLE_PARTITION, "1"))
	assert.True(t, err == nil && codesOf(got) == "BudgetsUnknown" && strings.Contains(got[0].GetMessage(), "PodDisruptionBudget wide is larger than 16 KiB"),
		"%v, %v", got, err)
}
