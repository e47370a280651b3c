// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestEvent(t *testing.T) {
	t.Parallel()
	status := func(phase v1beta1.RolloutPhase, batch int32, state v1beta1.BatchReleaseBatchStateType, blockedBy string) v1beta1.BatchReleaseStatus {
		s := v1beta1.BatchReleaseStatus{Phase: phase, Message: "why"}
		s.CanaryStatus.CurrentBatch, s.CanaryStatus.CurrentBatchState = batch, state
		if blockedBy != "" {
			s.Conditions = []v1beta1.RolloutCondition{{Type: v1beta1.RolloutConditionProgressing, Status: corev1.ConditionFalse, Reason: blockedBy}}
		}
		return s
	}
	progressing := v1beta1.RolloutPhaseProgressing
	verifying := status(progressing, 0, v1beta1.VerifyingBatchState, "")
	blocked := status(progressing, 0, v1beta1.VerifyingBatchState, "Forbidden")
	for _, c := range []struct {
		name     string
		was, now v1beta1.BatchReleaseStatus
		want     string
	}{
		{"the first batch begins", status(v1beta1.RolloutPhasePreparing, 0, "", ""), status(progressing, 0, v1beta1.UpgradingBatchState, ""), "Normal BatchUpgrading batch 1 is upgrading: why"},
		{"a batch is verified", status(progressing, 0, v1beta1.UpgradingBatchState, ""), verifying, ""},
		{"a batch is ready", verifying, status(progressing, 0, v1beta1.ReadyBatchState, ""), "Normal BatchReady batch 1 is ready: why"},
		{"the next batch begins", status(progressing, 0, v1beta1.ReadyBatchState, ""), status(progressing, 1, v1beta1.UpgradingBatchState, ""), "Normal BatchUpgrading batch 2 is upgrading: why"},
		{"nothing changes", verifying, verifying, ""},
		{"it is blocked", verifying, blocked, "Warning Forbidden why"},
		{"it is still blocked", blocked, blocked, ""},
		{"it is blocked by something else", blocked, status(progressing, 0, v1beta1.VerifyingBatchState, "NameTaken"), "Warning NameTaken why"},
		{"it ends", verifying, status(v1beta1.RolloutPhaseCompleted, 0, v1beta1.VerifyingBatchState, ""), "Normal Completed why"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kind, reason, note := Event(c.was, c.now)
			got := kind + " " + reason + " " + note
			assert.False(t, got != c.want && (c.want != "" || kind != ""), "got %q, want %q", got, c.want)
		})
	}
}
