// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ConditionReady is the type of the one condition.
const ConditionReady = "Ready"

// reasonWaiting is the condition's reason until the revisions are known.
const reasonWaiting = "WaitingForRevision"

// reasonNotRequested is a template that waits, or a batch, for which Kruise's objects have no evidence.
const reasonNotRequested = "NotRequested"

// notReady changes the condition only: Kruise waits while observedGeneration lags or the counts stay the same.
func notReady(v View, reason, message string) move {
	s := v.Target.Status.DeepCopy()
	s.State = stateOf(v.Context)
	setReady(s, v.Target, metav1.ConditionFalse, reason, message)
	return move{status: *s}
}

// statusOf counts groups as Kruise counts the pods of a StatefulSet.
func statusOf(v View) v1alpha1.RolloutTargetStatus {
	t, c := v.Target, v.Context
	current, known := v.Revisions[plugin.Serving(c)]
	update, also := v.Revisions[templateOf(t)]
	if !known || !also {
		wanted := slices.DeleteFunc([]string{plugin.Serving(c), templateOf(t)}, func(revision string) bool { return revision == "" })
		return notReady(v, reasonWaiting, fmt.Sprintf("the leader StatefulSet of %s has no revision yet for %s",
			nameOf(t), strings.Join(wanted, " or "))).status
	}
	s := t.Status.DeepCopy()
	s.ObservedGeneration = t.Generation
	s.CurrentRevision, s.UpdateRevision = current, update
	s.State = stateOf(c)
	countGroups(s, c, templateOf(t), isSet(t))
	if rollbackUnnoticed(v, s) {
		s.UpdatedReplicas = s.Replicas - 1
		s.UpdatedReadyReplicas = min(s.UpdatedReadyReplicas, s.UpdatedReplicas)
	}
	ready := metav1.ConditionTrue
	if c.GetState() == pb.State_STATE_FAILED {
		ready = metav1.ConditionFalse
	}
	message := c.GetMessage()
	rollback := c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_ROLLED_BACK
	if rollback && isOwnRelease(v) && t.Annotations[annotationProgressing] != "" && s.CurrentRevision == s.UpdateRevision {
		message += "; the steps of the Rollout do not delay a rollback"
	}
	setReady(s, t, ready, c.GetReason(), message)
	return *s
}

// countGroups counts the workload's own groups. The units of a DisaggregatedSet's update revision are beside the stable ones, and count in
// their place.
func countGroups(s *v1alpha1.RolloutTargetStatus, c *pb.BatchContext, template string, units bool) {
	s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas = 0, 0, 0, 0
	for _, g := range c.GetGroups() {
		if !units && g.GetRole() != pb.GroupRole_GROUP_ROLE_STABLE || g.GetRevision() == "" {
			continue
		}
		updated := g.GetRevision() == template
		s.Replicas++
		if updated {
			s.UpdatedReplicas++
		}
		if g.GetReady() {
			s.ReadyReplicas++
		}
		if updated && g.GetReady() {
			s.UpdatedReadyReplicas++
		}
	}
	if units {
		s.Replicas, s.ReadyReplicas = min(s.Replicas, c.GetReplicas()), min(s.ReadyReplicas, c.GetReplicas())
	}
	s.AvailableReplicas = s.ReadyReplicas
	if plugin.InFlight(c) && c.GetUpdateRevision() == template {
		s.UpdatedReadyReplicas = min(s.UpdatedReadyReplicas, c.GetUpdatedReady()) // only the driver knows for how long
	}
}

// rollbackUnnoticed reports whether Kruise has not yet noticed that the workload has the stable template again. Kruise tells a
// rollback from a new release by groups that are still updated, and polls every 2 seconds, in which the driver may have rolled
// back all groups. So one group is left out of the count until Kruise has noticed, and removed its hold.
func rollbackUnnoticed(v View, s *v1alpha1.RolloutTargetStatus) bool {
	groups, promote := allowedGroups(v)
	return v.Target.Annotations[annotationProgressing] != "" && groups == 0 && !promote && s.CurrentRevision == s.UpdateRevision &&
		s.UpdatedReplicas > 0 && s.UpdatedReplicas == s.Replicas
}

// stateOf returns the driver's state in the form of condition reasons, for example RollingBack.
func stateOf(c *pb.BatchContext) string {
	if c == nil {
		return ""
	}
	return plugin.CamelCase(strings.TrimPrefix(c.GetState().String(), "STATE_"))
}

// setReady sets the condition. The API server requires a reason, which a driver may leave empty.
func setReady(s *v1alpha1.RolloutTargetStatus, t *v1alpha1.RolloutTarget, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: ConditionReady, Status: status, Reason: cmp.Or(reason, "Unknown"), Message: message, ObservedGeneration: t.Generation,
	})
}

// announced are the states that are recorded as events. Other states are steps towards one of them.
var announced = []string{"Holding", "Ready", "Promoting", "RollingBack", "Completed", "RolledBack"}

// eventOf returns the event for a change of the status. An empty kind: none.
func eventOf(was, now v1alpha1.RolloutTargetStatus) (kind, reason, note string) {
	before, after := meta.FindStatusCondition(was.Conditions, ConditionReady), meta.FindStatusCondition(now.Conditions, ConditionReady)
	switch {
	case after == nil, after.Reason == reasonWaiting:
		return "", "", ""
	case after.Status == metav1.ConditionFalse && (before == nil || before.Status != after.Status || before.Reason != after.Reason):
		return corev1.EventTypeWarning, after.Reason, after.Message
	case after.Status == metav1.ConditionTrue && was.State != now.State && slices.Contains(announced, now.State):
		return corev1.EventTypeNormal, after.Reason, after.Message
	default:
		return "", "", ""
	}
}
