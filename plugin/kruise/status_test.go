// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
)

func TestEventOf(t *testing.T) {
	t.Parallel()
	status := func(state string, ready metav1.ConditionStatus, reason string) v1alpha1.RolloutTargetStatus {
		return v1alpha1.RolloutTargetStatus{State: state, Conditions: []metav1.Condition{{Type: ConditionReady, Status: ready, Reason: reason, Message: "why"}}}
	}
	upgrading := status("Upgrading", metav1.ConditionTrue, "GroupsNotReady")
	failed := status("Failed", metav1.ConditionFalse, "ProgressDeadlineExceeded")
	for _, c := range []struct {
		name     string
		was, now v1alpha1.RolloutTargetStatus
		want     string
	}{
		{"a batch is ready", upgrading, status("Ready", metav1.ConditionTrue, "BatchReady"), "Normal BatchReady why"},
		{"the release ends", upgrading, status("Completed", metav1.ConditionTrue, "Promoted"), "Normal Promoted why"},
		{"a step towards a state", status("Preparing", metav1.ConditionTrue, "CreatingCanary"), upgrading, ""},
		{"the same state with another reason", status("Ready", metav1.ConditionTrue, "BatchReady"), status("Ready", metav1.ConditionTrue, "Other"), ""},
		{"it fails", upgrading, failed, "Warning ProgressDeadlineExceeded why"},
		{"it still fails", failed, failed, ""},
		{"it fails for another reason", failed, status("Failed", metav1.ConditionFalse, "Unsupported"), "Warning Unsupported why"},
		{"refused from the beginning", v1alpha1.RolloutTargetStatus{}, status("", metav1.ConditionFalse, "WorkloadNotFound"), "Warning WorkloadNotFound why"},
		{"revisions are awaited", upgrading, status("Upgrading", metav1.ConditionFalse, reasonWaiting), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kind, reason, note := eventOf(c.was, c.now)
			got := kind + " " + reason + " " + note
			assert.False(t, got != c.want && (c.want != "" || kind != ""), "got %q, want %q", got, c.want)
		})
	}
}
