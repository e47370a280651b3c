// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestPreviewWithoutBudgets(t *testing.T) {
	d, s := aboutToReleaseWithout(t, "poddisruptionbudgets", apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", errors.New("no")))
	if _, got, err := d.preview(t.Context(), s, inBatches(pb.Style_STYLE_PARTITION, "1")); err != nil || codesOf(got) != "BudgetsUnknown" {
		t.Errorf("%q, %v", codesOf(got), err)
	}
}
