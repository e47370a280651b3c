// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package batchrelease executes Kruise Rollouts' BatchRelease objects over the driver's contract, with Kruise's state machine and
// status fields. It is a library for hosts: [Next] is a pure function of a BatchRelease and the driver's BatchContext, which returns
// the BatchRelease's new status and the next call of the driver. It reads no clock and keeps no state: all that a decision
// needs of the past is in the status.
//
// # A host
//
// A host runs this whenever the BatchRelease or the BatchContext changes:
//
//	status, call := batchrelease.Next(release, context, time.Now())
//	// Write status if it differs from release.Status, with the resourceVersion of release as its precondition.
//	if call.Request != nil {
//		_, err := driver.Call(ctx, call.Request)
//	}
//	// Repeat until there is neither a new status nor a call.
//
// The status is written before the call is made, so that no step is unrecorded. [Blocked] records in the status why the driver
// refused a call. A host also keeps [Finalizer] on the BatchRelease until it is [Over]. Package host is such a host, for a
// cluster without Kruise's own manager.
//
// # The state machine
//
//   - Preparing: the workload is adopted, and the release begins once its template differs from that of its groups.
//   - Progressing: for one batch after the other, Upgrading (the batch is requested), Verifying (its groups are not ready yet),
//     Ready (batchPartition forbids the next batch, or it is the last one).
//   - Finalizing: batchPartition was removed, so the release is promoted; or the BatchRelease is being deleted, so the release is
//     rolled back; or another host has ended it.
//   - Completed is final. With finalizingPolicy Immediate the driver may still work on the release, which the host follows to its
//     end.
package batchrelease

import (
	"errors"
	"slices"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Next returns the new status of a BatchRelease, and the next call of the driver. c is the state of its workload, nil if it does not
// exist; its groups are not needed. now is used for times in the status only. Neither r nor c is changed.
//
// Write the status before making the call. The work is complete, for now, if the status is unchanged and there is no call.
func Next(r *v1beta1.BatchRelease, c *pb.BatchContext, now time.Time) (v1beta1.BatchReleaseStatus, converge.Move) {
	m := &machine{release: r, context: c, status: *r.Status.DeepCopy(), now: metav1.NewTime(now)}
	if m.status.Phase == "" {
		m.status = resetStatus()
	}
	m.status.ObservedGeneration = r.Generation
	if m.status.Phase == v1beta1.RolloutPhaseCompleted {
		m.followCompleted()
	} else {
		m.observe()
		m.step()
	}
	if m.call.Request != nil {
		// Why the driver refused the last call is kept until the next one succeeds.
		m.status.Message, m.status.Conditions = r.Status.Message, r.Status.DeepCopy().Conditions
	}
	return m.status, m.call
}

// machine makes one decision. Its methods read release and context, and set status and call.
type machine struct {
	release *v1beta1.BatchRelease
	context *pb.BatchContext
	now     metav1.Time

	status v1beta1.BatchReleaseStatus
	call   converge.Move
	// restarted is true once this decision has begun the current batch, or begun it again.
	restarted bool
}

// step makes the decision of the current phase. The order is Kruise's: the plan before the workload.
func (m *machine) step() {
	switch {
	case m.release.DeletionTimestamp != nil:
		m.finalize()
	case m.plan().BatchPartition == nil && !m.begun() && !m.inFlight():
		m.awaitPartition()
	case m.plan().BatchPartition == nil:
		m.finalize()
	case m.status.Phase == v1beta1.RolloutPhaseFinalizing && !m.continues():
		m.finalize()
	case m.context == nil && m.begun():
		m.finalize()
	case m.finalized():
		m.noteRollback()
		m.finalize()
	case m.status.Phase == v1beta1.RolloutPhasePreparing:
		m.prepare()
	default:
		// Kruise starts over from an unknown phase; here it counts as Progressing.
		m.progress()
	}
}

func (m *machine) plan() *v1beta1.ReleasePlan { return &m.release.Spec.ReleasePlan }

// callToward takes the call towards a goal, and returns the move.
func (m *machine) callToward(g converge.Goal) converge.Move {
	g.Workload, g.Owner = Workload(m.release), Owner(m.release)
	if m.inFlight() {
		g.Release = m.context.GetReleaseId()
	}
	m.call = converge.Next(g, m.context)
	return m.call
}

// policy returns the driver's policy for the plan. If the plan is invalid, it returns nil and sets the condition.
func (m *machine) policy() *pb.ReleasePolicy {
	p, err := Policy(m.plan(), m.context.GetReplicas())
	if err == nil && m.plan().RolloutID != "" && Workload(m.release).GetKind() == plugin.KindDisaggregatedSet {
		err = errors.New("rolloutID: the pods of a DisaggregatedSet get no labels of batches: remove it")
	}
	if err != nil {
		m.setBlocked("InvalidPlan", "spec.releasePlan."+err.Error())
		return nil
	}
	return p
}

// ours reports whether this BatchRelease began the last release.
func (m *machine) ours() bool { return Began(m.release, m.context) }

// begun reports whether this BatchRelease has ever begun a release.
func (m *machine) begun() bool { return m.status.UpdateRevision != "" }

// inState reports whether our release is in one of the states.
func (m *machine) inState(states ...pb.State) bool {
	return m.ours() && slices.Contains(states, m.context.GetState())
}

// inFlight reports whether our release is in flight.
func (m *machine) inFlight() bool { return m.ours() && plugin.InFlight(m.context) }

// finalized reports whether our release is being promoted or rolled back, or has ended.
func (m *machine) finalized() bool { return m.ending() || m.ended() }

// ending reports whether the promotion or rollback of our release was requested.
func (m *machine) ending() bool { return m.ours() && plugin.Ending(m.context) }

// ended reports whether our release has ended.
func (m *machine) ended() bool {
	return m.inState(pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK)
}

// continues reports whether a release that was to be finalized continues, because batchPartition was set again before the driver was
// called.
func (m *machine) continues() bool { return m.inFlight() && !m.ending() }

// observe sets the fields of the status that every phase has.
func (m *machine) observe() {
	s, c := &m.status, m.context
	if s.ObservedReleasePlanHash == "" {
		s.ObservedReleasePlanHash = HashPlan(m.plan())
	}
	if !m.ours() || c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		return
	}
	s.CanaryStatus.UpdatedReplicas, s.CanaryStatus.UpdatedReadyReplicas = c.GetUpdated(), c.GetUpdatedReady()
	if m.stableRestored() {
		s.CanaryStatus.UpdatedReplicas, s.CanaryStatus.UpdatedReadyReplicas = m.stableGroups()
	}
}
