// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// An observation that panics is an error of its workload, and others are served.
func TestPoisonousObservation(t *testing.T) {
	other := lwstest.Unrecorded()
	other.Name, other.UID = "other", "other"
	b := newFixture(t, lwstest.Unrecorded(), other)
	b.config.Decided = func(o plan.Observation, _ plan.Intent, _ plan.Decision, _ error) {
		if o.Key == lwstest.VLLM {
			panic("a defect")
		}
	}
	b.workOn(t.Context(), lwstest.VLLM)
	if err := b.LastError(lwstest.VLLM); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL || !strings.Contains(err.Error(), lwstest.VLLM.String()) {
		t.Errorf("its error is %v", err)
	}
	_, _, err := b.Look(lwstest.VLLM)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_INTERNAL, drivererr.Reason(err), "a call gets %v", err)
	_, _, err = b.Look(types.NamespacedName{Namespace: other.Namespace, Name: other.Name})
	assert.NoError(t, err, "another workload")
}
