// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"
	"slices"

	"github.com/openkruise/rollouts/api/v1beta1"
	corev1 "k8s.io/api/core/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// finalize ends the release, the way that was asked for first.
func (m *machine) finalize() {
	c := m.context
	m.status.Phase = v1beta1.RolloutPhaseFinalizing
	switch {
	case c == nil && (m.begun() || m.deleted()):
		m.complete("the workload is gone")
	case c == nil:
		m.prepare() // batchPartition is not there, and neither is the workload yet.
	case m.ended():
		m.end()
	case m.leaving() && m.immediate():
		m.keepFollowing("Immediate", "the driver finishes what was requested")
	case m.inState(pb.State_STATE_PROMOTING):
		m.say("waiting until the driver has promoted all groups")
	case m.leaving():
		m.say("waiting until the driver has rolled back")
	case m.flying():
		m.tell()
	case m.deleted():
		m.complete("there was no release")
	case m.begun():
		m.complete("another release has taken this one's place")
	case !m.valid():
	case !m.begin():
		m.complete("there was nothing to release")
	}
}

func (m *machine) deleted() bool { return m.release.DeletionTimestamp != nil }

// immediate reports whether the end is not waited for. The driver finishes what it was told, host or no host. A BatchRelease that is
// being deleted waits, as one does that others have ended: nobody has asked them not to.
func (m *machine) immediate() bool {
	return !m.deleted() && m.plan().BatchPartition == nil && m.plan().FinalizingPolicy != v1beta1.WaitResumeFinalizingPolicyType
}

// outcome is how a release of ours has ended.
func (m *machine) outcome() string {
	if m.inState(pb.State_STATE_COMPLETED) {
		return "promoted: every group is at revision " + m.context.GetUpdateRevision()
	}
	return "rolled back: every group is at revision " + m.context.GetStableRevision()
}

// afterwards is what is left to be done once the phase is Completed: a release that Immediate did not wait for is seen to its
// end. A new template in mid-promotion has the driver start over, and is promoted like the one before.
func (m *machine) afterwards() {
	switch {
	case Over(m.release):
	case m.context == nil:
		m.complete("the workload is gone")
	case m.flying():
		m.observe()
		if !m.leaving() {
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

// Over reports whether a BatchRelease is completed, and so is all that it had the driver do. Nothing is done for it any more,
// whatever becomes of it and its workload.
func Over(r *v1beta1.BatchRelease) bool {
	return r.Status.Phase == v1beta1.RolloutPhaseCompleted &&
		!slices.ContainsFunc(r.Status.Conditions, func(c v1beta1.RolloutCondition) bool { return c.Type == conditionFollowing })
}

func (m *machine) complete(message string) {
	m.status.Phase = v1beta1.RolloutPhaseCompleted
	m.drop(conditionFollowing)
	m.say(message)
}

// end completes a release that is over. A group that stops being ready at that moment, as when LWS recreates one, would be missing
// from the status for good: the host follows the workload until every group is ready again.
func (m *machine) end() {
	ready, all := m.status.CanaryStatus.UpdatedReadyReplicas, m.context.GetReplicas()
	counted := m.inState(pb.State_STATE_COMPLETED) || m.returned()
	if counted && ready < all && !m.deleted() {
		m.keepFollowing("GroupsNotReady", fmt.Sprintf("%s; %d of %d are ready", m.outcome(), ready, all))
		return
	}
	m.complete(m.outcome())
}

// keepFollowing completes the BatchRelease for all who wait for it, and has the host follow its workload.
func (m *machine) keepFollowing(reason, message string) {
	m.status.Phase = v1beta1.RolloutPhaseCompleted
	m.condition(conditionFollowing, corev1.ConditionTrue, reason, message)
}

// tell tells the driver. Without batchPartition all groups are to follow; a BatchRelease that is deleted before leaves the
// stable groups as they were.
func (m *machine) tell() {
	if m.plan().BatchPartition == nil {
		m.promote()
		return
	}
	m.call = Call{&pb.FinalizeRequest{
		Workload: Workload(m.release), ReleaseId: m.context.GetReleaseId(), Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
	}, "the BatchRelease is being deleted in mid-release: rolling back"}
}

// promote has all groups follow to the template as it is.
func (m *machine) promote() {
	c := m.context
	if c.GetTemplateRevision() != c.GetUpdateRevision() {
		if m.status.Phase == v1beta1.RolloutPhaseFinalizing {
			m.say("the template has changed; waiting until the driver is at it")
		}
		return
	}
	m.call = Call{&pb.FinalizeRequest{
		Workload: Workload(m.release), ReleaseId: c.GetReleaseId(), Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
		UpdateRevision: c.GetUpdateRevision(),
	}, "batchPartition is gone: promoting revision " + c.GetUpdateRevision()}
}
