// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HashPlan returns the status.observedReleasePlanHash of a plan, computed as Kruise does.
func HashPlan(plan *v1beta1.ReleasePlan) string {
	raw, err := json.Marshal(plan)
	if err != nil {
		return "" // Strings and numbers are always encoded.
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Blocked returns the status of a BatchRelease whose call the driver has refused, for a reason that a user must resolve.
func Blocked(r *v1beta1.BatchRelease, reason, message string, now time.Time) v1beta1.BatchReleaseStatus {
	m := machine{release: r, status: *r.Status.DeepCopy(), now: metav1.NewTime(now)}
	m.setBlocked(reason, message)
	return m.status
}

// resetStatus returns the status of a BatchRelease that has not begun.
func resetStatus() v1beta1.BatchReleaseStatus {
	return v1beta1.BatchReleaseStatus{Phase: v1beta1.RolloutPhasePreparing, ObservedWorkloadReplicas: -1}
}

// setMessage sets the message, and removes the condition of setBlocked.
func (m *machine) setMessage(message string) {
	m.status.Message = message
	m.removeCondition(v1beta1.RolloutConditionProgressing)
}

// removeCondition removes a condition.
func (m *machine) removeCondition(kind v1beta1.RolloutConditionType) {
	m.status.Conditions = slices.DeleteFunc(m.status.Conditions, func(c v1beta1.RolloutCondition) bool { return c.Type == kind })
	if len(m.status.Conditions) == 0 {
		m.status.Conditions = nil
	}
}

// setBlocked sets message and condition to what blocks the release until a user resolves it.
func (m *machine) setBlocked(reason, message string) {
	m.setCondition(v1beta1.RolloutConditionProgressing, corev1.ConditionFalse, reason, message)
}

// blockedReason returns the reason of setBlocked. Empty means nothing blocks the release.
func blockedReason(s v1beta1.BatchReleaseStatus) string {
	for _, c := range s.Conditions {
		if c.Type == v1beta1.RolloutConditionProgressing && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
}

// Event returns the event for a change of the status: what blocks the release, a batch that begins or is ready, and its end. An empty
// kind: none.
func Event(was, now v1beta1.BatchReleaseStatus) (kind, reason, note string) {
	batch, state := now.CanaryStatus.CurrentBatch, now.CanaryStatus.CurrentBatchState
	switch phase := string(now.Phase); {
	case blockedReason(now) != "" && blockedReason(now) != blockedReason(was):
		return corev1.EventTypeWarning, blockedReason(now), now.Message
	case now.Phase == v1beta1.RolloutPhaseProgressing && state != v1beta1.VerifyingBatchState && state != "" &&
		(was.CanaryStatus.CurrentBatch != batch || was.CanaryStatus.CurrentBatchState != state || was.Phase != now.Phase):
		return corev1.EventTypeNormal, "Batch" + string(state), strings.TrimSuffix(fmt.Sprintf("batch %d is %s: %s", batch+1, strings.ToLower(string(state)), now.Message), ": ")
	case was.Phase != now.Phase && (now.Phase == v1beta1.RolloutPhaseFinalizing || now.Phase == v1beta1.RolloutPhaseCompleted):
		return corev1.EventTypeNormal, phase, cmp.Or(now.Message, phase)
	default:
		return "", "", ""
	}
}

// setCondition sets message and condition.
func (m *machine) setCondition(kind v1beta1.RolloutConditionType, status corev1.ConditionStatus, reason, message string) {
	m.status.Message = message
	want := v1beta1.RolloutCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastUpdateTime: m.now, LastTransitionTime: m.now,
	}
	for i, c := range m.status.Conditions {
		if c.Type != want.Type {
			continue
		}
		// An equal condition keeps its times, so that no write is due.
		if c.Status == want.Status && c.Reason == reason && c.Message == message {
			return
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
		m.status.Conditions[i] = want
		return
	}
	m.status.Conditions = append(m.status.Conditions, want)
}
