// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
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

// Refused returns the status of a BatchRelease whose call the driver has refused for a reason that a user must resolve.
func Refused(r *v1beta1.BatchRelease, err error, now time.Time) v1beta1.BatchReleaseStatus {
	m := machine{release: r, status: *r.Status.DeepCopy(), now: metav1.NewTime(now)}
	text := err.Error()
	if s, ok := grpcstatus.FromError(err); ok && s.Code() != codes.Unknown {
		text = s.Message()
	}
	m.setBlocked(plugin.CamelCase(strings.TrimPrefix(plugin.Reason(err).String(), "ERROR_REASON_")), text)
	return m.status
}

// reset returns the status of a BatchRelease that has not begun.
func reset() v1beta1.BatchReleaseStatus {
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
