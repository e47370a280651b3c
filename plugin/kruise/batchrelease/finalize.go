// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"github.com/openkruise/rollouts/api/v1beta1"

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
		m.complete(m.outcome())
	case m.leaving() && m.immediate():
		m.complete("the driver goes on with what was asked for: " + c.GetMessage())
	case m.leaving():
		m.say(c.GetMessage())
	case m.flying():
		m.end()
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

// immediate says whether the end is not waited for. The driver finishes what it was told, host or no host. A BatchRelease that is
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

// afterwards is what is left to be done once the phase is Completed: the release that Immediate did not wait for is seen
// to its end. A new template in mid-promotion has the driver start over, and is promoted like the one before.
func (m *machine) afterwards() {
	switch {
	case m.flying():
		m.observe()
		if !m.leaving() && (m.deleted() || m.plan().BatchPartition == nil) {
			m.end()
		}
	case m.ended() && m.status.Message != m.outcome():
		m.observe()
		m.complete(m.outcome())
	}
}

// Over says whether nothing is to be done for a BatchRelease any more, whatever becomes of its workload.
func Over(r *v1beta1.BatchRelease) bool {
	waited := r.Spec.ReleasePlan.BatchPartition != nil || r.Spec.ReleasePlan.FinalizingPolicy == v1beta1.WaitResumeFinalizingPolicyType
	return r.Status.Phase == v1beta1.RolloutPhaseCompleted && r.DeletionTimestamp == nil && waited
}

// Released says whether a BatchRelease that is being deleted has nothing left that its finalizer guards.
func Released(r *v1beta1.BatchRelease, c *pb.BatchContext) bool {
	m := machine{release: r, context: c}
	return r.Status.Phase == v1beta1.RolloutPhaseCompleted && !m.flying()
}

func (m *machine) complete(message string) {
	m.status.Phase = v1beta1.RolloutPhaseCompleted
	m.say(message)
}

// end tells the driver. Without batchPartition all groups are to follow; a BatchRelease that is deleted before leaves the
// stable groups as they were.
func (m *machine) end() {
	c := m.context
	request := &pb.FinalizeRequest{Workload: Workload(m.release), ReleaseId: c.GetReleaseId()}
	switch {
	case m.plan().BatchPartition != nil:
		request.Intent = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
		m.call = Call{request, "the BatchRelease is being deleted in mid-release: rolling back"}
	case c.GetTemplateRevision() != c.GetUpdateRevision():
		m.say("the template has changed; waiting until the driver is at it")
	default:
		request.Intent, request.UpdateRevision = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, c.GetUpdateRevision()
		m.call = Call{request, "batchPartition is gone: promoting revision " + c.GetUpdateRevision()}
	}
}
