// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"
	"slices"

	"github.com/openkruise/rollouts/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// finalize ends the release, in the direction that was requested first.
func (m *machine) finalize() {
	c := m.context
	m.status.Phase = v1beta1.RolloutPhaseFinalizing
	switch {
	case c == nil:
		m.complete("the workload is gone")
	case m.ended():
		m.end()
	case m.ending() && m.immediate():
		m.followEnd()
	case m.ending() && m.inState(pb.State_STATE_FAILED):
		m.setMessage(c.GetReason() + ": " + c.GetMessage())
	case m.inState(pb.State_STATE_PROMOTING):
		m.setMessage("waiting until the driver has promoted all groups")
	case m.ending():
		m.setMessage("waiting until the driver has rolled back")
	case m.inFlight():
		m.callEnd()
	case m.deleted():
		m.complete("there was no release")
	default:
		m.complete("another release has taken this one's place")
	}
}

func (m *machine) deleted() bool { return m.release.DeletionTimestamp != nil }

// immediate reports whether the host does not wait for the end: the driver completes it without the host. A BatchRelease that is being
// deleted waits, and so does one that another host has ended: neither was requested to be immediate.
func (m *machine) immediate() bool {
	return !m.deleted() && m.plan().BatchPartition == nil && m.plan().FinalizingPolicy != v1beta1.WaitResumeFinalizingPolicyType
}

// outcome describes how our release has ended.
func (m *machine) outcome() string {
	if m.inState(pb.State_STATE_COMPLETED) {
		return "promoted: every group is at revision " + m.context.GetUpdateRevision()
	}
	return "rolled back: every group is at revision " + m.context.GetStableRevision()
}

// followCompleted follows the release once the phase is Completed: one for which Immediate did not wait. A new template during the
// promotion makes the driver start over, and is promoted, too.
func (m *machine) followCompleted() {
	switch {
	case Over(m.release):
	case m.context == nil:
		m.complete("the workload is gone")
	case m.inFlight():
		m.observe()
		if m.ending() {
			m.followEnd()
		} else {
			m.promote()
		}
	case m.ended():
		m.observe()
		m.end()
	default:
		m.complete("another release has taken this one's place")
	}
}

// conditionFollowing is the type of the condition of a completed BatchRelease whose workload the host still follows.
const conditionFollowing v1beta1.RolloutConditionType = "Following"

// Over reports whether a BatchRelease and the driver's work for it are complete. The host does nothing more for it.
func Over(r *v1beta1.BatchRelease) bool {
	return r.Status.Phase == v1beta1.RolloutPhaseCompleted &&
		!slices.ContainsFunc(r.Status.Conditions, func(c v1beta1.RolloutCondition) bool { return c.Type == conditionFollowing })
}

func (m *machine) complete(message string) {
	m.status.Phase = v1beta1.RolloutPhaseCompleted
	m.removeCondition(conditionFollowing)
	m.setMessage(message)
}

// end completes a BatchRelease whose release has ended. A group that is unready at that moment, for example because LWS recreates it,
// would be missing in the status for good, so the host follows the workload until every group is ready.
func (m *machine) end() {
	ready, all := m.status.CanaryStatus.UpdatedReadyReplicas, m.context.GetReplicas()
	counted := m.inState(pb.State_STATE_COMPLETED) || m.stableRestored()
	// A deletion must not wait for a group that may never be ready again.
	if counted && ready < all && !m.deleted() {
		m.keepFollowing("GroupsNotReady", fmt.Sprintf("%s; %d of %d are ready", m.outcome(), ready, all))
		return
	}
	m.complete(m.outcome())
}

// followEnd follows a release whose end was requested, and says why that fails: also a deletion waits for it.
func (m *machine) followEnd() {
	reason, message := "Immediate", "the driver completes what was requested"
	if c := m.context; m.inState(pb.State_STATE_FAILED) {
		reason, message = c.GetReason(), c.GetMessage()
	}
	m.keepFollowing(reason, message)
}

// keepFollowing completes the BatchRelease for those who wait for it, while the host still follows its workload.
func (m *machine) keepFollowing(reason, message string) {
	m.removeCondition(v1beta1.RolloutConditionProgressing)
	m.status.Phase = v1beta1.RolloutPhaseCompleted
	m.setCondition(conditionFollowing, corev1.ConditionTrue, reason, message)
}

// callEnd requests the end: without batchPartition the promotion, at a deletion the rollback.
func (m *machine) callEnd() {
	if m.plan().BatchPartition == nil {
		m.promote()
		return
	}
	m.callToward(converge.Goal{Kind: converge.RollBack, Why: "the BatchRelease was deleted during its release"})
}

// promote completes the release of the revision whose batches ran. A newer template has none: it waits, and if batchPartition can't
// request its batches any more, the release is rolled back.
func (m *machine) promote() {
	revision := m.status.UpdateRevision
	why := "batchPartition was removed: promoting revision " + revision
	if revision == "" {
		why = "no batch of revision " + m.context.GetUpdateRevision() + " has run"
	}
	next := m.callToward(converge.Goal{Kind: converge.Promote, Revision: revision, Why: why})
	switch {
	case next.Outcome != converge.Held:
	case m.deleted() || m.status.Phase == v1beta1.RolloutPhaseCompleted:
		// batchPartition of these can no longer be set again.
		m.callToward(converge.Goal{Kind: converge.RollBack, Why: next.Why})
	default:
		m.setBlocked("NotRequested", next.Why+": set batchPartition again to release it")
	}
}

// stableRestored reports whether our release is rolled back because the workload has the stable template again.
func (m *machine) stableRestored() bool {
	return m.inState(pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK) &&
		m.context.GetTemplateRevision() == m.context.GetStableRevision()
}

// noteRollback records a rollback by template. In it, the stable revision is the update revision, and groups that still had it need no
// update.
func (m *machine) noteRollback() {
	s := &m.status
	// The count is that of the moment at which the rollback was noticed. Later ones would be smaller.
	if !m.stableRestored() || s.CanaryStatus.NoNeedUpdateReplicas != nil {
		return
	}
	s.CanaryStatus.NoNeedUpdateReplicas = ptr.To(m.notUpdated())
	s.StableRevision, s.UpdateRevision = m.context.GetStableRevision(), m.context.GetStableRevision()
	s.ObservedWorkloadReplicas = m.context.GetReplicas()
}

// notUpdated returns how many groups the release had not updated. The driver may have rolled back groups already, so the last status
// counts, too.
func (m *machine) notUpdated() int32 {
	c := m.context
	if c.GetStyle() != pb.Style_STYLE_PARTITION {
		return c.GetReplicas()
	}
	updated := max(c.GetUpdated(), m.release.Status.CanaryStatus.UpdatedReplicas)
	return max(c.GetReplicas()-updated, 0)
}

// stableGroups returns how many groups are at the stable revision, and how many of them are ready.
func (m *machine) stableGroups() (exist, ready int32) {
	c := m.context
	return min(max(c.GetTotal()-c.GetUpdated(), 0), c.GetReplicas()), min(c.GetStableReady(), c.GetReplicas())
}
