// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Next decides what becomes of a BatchRelease. c is where its workload stands, nil if there is none; its groups are not
// needed. now goes into times of the status and into nothing else. Neither r nor c is changed.
//
// The status is to be written before the call is made. Nothing is left to be done while the status is what it was and there is no
// call.
func Next(r *v1beta1.BatchRelease, c *pb.BatchContext, now time.Time) (v1beta1.BatchReleaseStatus, Call) {
	m := &machine{release: r, context: c, status: *r.Status.DeepCopy(), now: metav1.NewTime(now)}
	if m.status.Phase == "" {
		m.status = reset()
	}
	m.status.ObservedGeneration = r.Generation
	if m.status.Phase == v1beta1.RolloutPhaseCompleted {
		m.afterwards()
	} else {
		m.observe()
		m.step()
	}
	if !m.call.None() {
		// What the last call was refused for stands until the next one has gone through.
		m.status.Message, m.status.Conditions = r.Status.Message, r.Status.DeepCopy().Conditions
	}
	return m.status, m.call
}

// machine is one decision. Its methods read release and context, and write status and call.
type machine struct {
	release *v1beta1.BatchRelease
	context *pb.BatchContext
	now     metav1.Time

	status v1beta1.BatchReleaseStatus
	call   Call
	// again is true once the current batch has been begun, or begun again, in this decision.
	again bool
}

// step finds out which phase it is and goes on in it. The order is Kruise's: the plan before the workload.
func (m *machine) step() {
	switch {
	case m.release.DeletionTimestamp != nil, m.plan().BatchPartition == nil:
		m.finalize()
	case m.status.Phase == v1beta1.RolloutPhaseFinalizing && !m.unfinished():
		m.finalize()
	case m.context == nil && m.begun():
		m.finalize()
	case m.rollback():
	case m.ending():
		m.finalize()
	case m.status.Phase == v1beta1.RolloutPhasePreparing:
		m.prepare()
	default:
		// Kruise begins an unknown phase from the start; to be in a release is to progress.
		m.progress()
	}
}

func (m *machine) plan() *v1beta1.ReleasePlan { return &m.release.Spec.ReleasePlan }

// valid reports whether the plan is one, and else what is wrong with it.
func (m *machine) valid() bool {
	if err := check(m.plan(), m.context.GetReplicas()); err != nil {
		m.stuck("InvalidPlan", "spec.releasePlan."+err.Error())
		return false
	}
	return true
}

// ours reports whether the release in the context is one that this BatchRelease has begun.
func (m *machine) ours() bool { return Began(m.release, m.context) }

// begun reports whether this BatchRelease has ever begun a release.
func (m *machine) begun() bool { return m.status.UpdateRevision != "" }

// inState reports whether the driver's release is ours and in one of these states.
func (m *machine) inState(states ...pb.State) bool {
	if !m.ours() {
		return false
	}
	for _, s := range states {
		if m.context.GetState() == s {
			return true
		}
	}
	return false
}

// flying reports whether a release of ours is in flight.
func (m *machine) flying() bool { return m.ours() && plugin.InFlight(m.context) }

// ending reports whether the release is on its way to an end, or there: somebody else has decided.
func (m *machine) ending() bool { return m.leaving() || m.ended() }

// leaving reports whether it is on its way.
func (m *machine) leaving() bool {
	return m.inState(pb.State_STATE_PROMOTING, pb.State_STATE_ROLLING_BACK)
}

// ended reports whether it is over.
func (m *machine) ended() bool {
	return m.inState(pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK)
}

// unfinished reports whether a release that was to be finalized goes on after all: batchPartition is back, and the driver was
// told nothing yet.
func (m *machine) unfinished() bool { return m.flying() && !m.leaving() }

// observe copies what the status shows of every release.
func (m *machine) observe() {
	s, c := &m.status, m.context
	if s.ObservedReleasePlanHash == "" {
		s.ObservedReleasePlanHash = HashPlan(m.plan())
	}
	if !m.ours() || c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		return
	}
	s.CanaryStatus.UpdatedReplicas, s.CanaryStatus.UpdatedReadyReplicas = c.GetUpdated(), c.GetUpdatedReady()
	if m.returned() {
		s.CanaryStatus.UpdatedReplicas, s.CanaryStatus.UpdatedReadyReplicas = m.back()
	}
}
