// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"
	"strings"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// progress moves the release to batchPartition, batch by batch.
func (m *machine) progress() {
	m.status.Phase = v1beta1.RolloutPhaseProgressing
	if !m.ours() {
		// The workload was recreated, or another release has replaced this one.
		m.status = resetStatus()
		m.status.ObservedGeneration = m.release.Generation
		m.prepare()
		return
	}
	policy := m.policy()
	if policy == nil {
		return
	}
	m.recordChanges()
	c := m.context
	switch {
	case policy.GetStyle() != c.GetStyle():
		m.setBlocked("StyleChanged", fmt.Sprintf("the release was begun in style %s, which can't change: restore the style, or delete the BatchRelease, "+
			"which rolls back, and create another one", plugin.CamelCase(strings.TrimPrefix(c.GetStyle().String(), "STYLE_"))))
		return
	case c.GetTemplateRevision() != c.GetUpdateRevision():
		m.restartBatch()
		m.setMessage("the template has changed; the driver deletes the groups of revision " + c.GetUpdateRevision())
		return
	case c.GetState() == pb.State_STATE_FAILED && !m.tolerated():
		m.setBlocked(c.GetReason(), c.GetMessage())
	default:
		m.setMessage("")
	}
	m.batch()
}

// recordChanges records changes of the plan, the number of groups and the template.
func (m *machine) recordChanges() {
	m.followPlan()
	s, c := &m.status, m.context
	// With the number of groups, a percentage asks for another number of them.
	if s.ObservedWorkloadReplicas != c.GetReplicas() {
		s.ObservedWorkloadReplicas = c.GetReplicas()
		m.restartBatch()
	}
	if s.UpdateRevision != c.GetUpdateRevision() {
		s.StableRevision, s.UpdateRevision = c.GetStableRevision(), c.GetUpdateRevision()
		s.CanaryStatus.NoNeedUpdateReplicas = nil // A newer template ends a rollback.
		m.beginBatch(0)
	}
}

func (m *machine) followPlan() {
	s, plan := &m.status, m.plan()
	last := int32(len(plan.Batches)) - 1 //nolint:gosec // An object of the API holds less.
	if hash := HashPlan(plan); s.ObservedReleasePlanHash != hash {
		// As in Kruise, a new plan starts at the batch of batchPartition, and one with a new rolloutID at its first.
		batch := min(*plan.BatchPartition, last)
		if plan.RolloutID != s.ObservedRolloutID {
			batch = 0
		}
		s.ObservedReleasePlanHash, s.ObservedRolloutID = hash, plan.RolloutID
		m.beginBatch(batch)
	}
	if b := s.CanaryStatus.CurrentBatch; b < 0 || b > last {
		m.beginBatch(0) // The status was edited.
	}
}

// batch moves the current batch to its next state.
func (m *machine) batch() {
	s, plan := &m.status.CanaryStatus, m.plan()
	requested := m.targetRequested()
	switch s.CurrentBatchState {
	case v1beta1.VerifyingBatchState:
		switch {
		case !requested:
			// The number of groups or the template has changed, so the target is requested again.
			m.restartBatch()
		case m.ready():
			s.CurrentBatchState = v1beta1.ReadyBatchState
			s.BatchReadyTime = &m.now
		}
	case v1beta1.ReadyBatchState:
		switch {
		case !requested || !m.ready():
			m.restartBatch()
		case *plan.BatchPartition > s.CurrentBatch && int(s.CurrentBatch) < len(plan.Batches)-1:
			m.beginBatch(s.CurrentBatch + 1)
			requested = m.targetRequested()
		}
	default:
		s.CurrentBatchState = v1beta1.UpgradingBatchState
		if requested && !m.restarted {
			s.CurrentBatchState = v1beta1.VerifyingBatchState
		}
	}
	if !requested {
		m.upgrade()
	}
}

// currentBatch returns the current batch.
func (m *machine) currentBatch() v1beta1.ReleaseBatch {
	return m.plan().Batches[m.status.CanaryStatus.CurrentBatch]
}

// targetRequested reports whether the driver's target is at least that of the current batch: targets never decrease, even if the plan does.
// Fewer groups may be planned: the last units of a DisaggregatedSet that are replaced follow in the promotion.
func (m *machine) targetRequested() bool {
	target, replicas := m.context.GetTarget(), m.context.GetReplicas()
	return target != "" && plannedGroups(v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(target)}, replicas) >= plannedGroups(m.currentBatch(), replicas)
}

// ready reports whether the current batch is complete.
func (m *machine) ready() bool { return m.context.GetState() == pb.State_STATE_READY || m.tolerated() }

// tolerated reports whether the driver waits only for groups that Kruise's failureThreshold allows to be unready. Kruise rounds its
// percentage of the updated groups up, the driver rounds down. Both require one ready group.
func (m *machine) tolerated() bool {
	c, threshold := m.context, m.plan().FailureThreshold
	switch c.GetState() {
	case pb.State_STATE_UPGRADING:
	case pb.State_STATE_FAILED:
		// Any other failure is not one of groups that are not ready.
		if c.GetReason() != "ProgressDeadlineExceeded" {
			return false
		}
	default:
		return false
	}
	if threshold == nil || c.GetUpdatedReady() == 0 || c.GetUpdated() < c.GetPlanned() {
		return false
	}
	allowed, err := Scaled(*threshold, c.GetUpdated())
	return err == nil && int(c.GetUpdatedReady())+allowed >= int(c.GetPlanned())
}

func (m *machine) upgrade() {
	groups := m.currentBatch().CanaryReplicas
	target := groups.String()
	m.callToward(converge.Goal{
		Kind: converge.Upgrade, Revision: m.status.UpdateRevision,
		Target: &pb.UpgradeBatchRequest{Target: &pb.UpgradeBatchRequest_Groups{Groups: target}},
		Why:    fmt.Sprintf("batch %d: %s of the groups", m.status.CanaryStatus.CurrentBatch, target),
	})
}

// prepare adopts the workload, waits for a template to release, and begins.
func (m *machine) prepare() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	if m.context == nil {
		m.setMessage(fmt.Sprintf("%s does not exist in namespace %s; it is adopted when it is created", m.object(), m.release.Namespace))
		return
	}
	policy := m.policy()
	switch {
	case policy == nil:
	case m.inState(pb.State_STATE_PREPARING):
		m.setMessage("the driver prepares the release")
	case m.inFlight():
		m.recordStart()
		m.progress()
	default:
		m.begin(policy)
	}
}

// awaitPartition holds the workload for a plan without batchPartition: only after a batch its removal means the promotion.
func (m *machine) awaitPartition() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	if m.context != nil {
		m.callToward(converge.Goal{Kind: converge.Hold})
	}
	m.setBlocked("NotRequested", "releasePlan.batchPartition is not set, and no batch has run: set batchPartition: 0 to release the first batch")
}

// begin adopts the workload, or begins the release of its template.
func (m *machine) begin(policy *pb.ReleasePolicy) {
	c := m.context
	template := c.GetTemplateRevision()
	next := m.callToward(converge.Goal{Kind: converge.Upgrade, Release: ReleaseID(m.release, template), Revision: template, Policy: policy})
	switch {
	case next.Outcome == converge.Foreign:
		m.setBlocked("ReleaseOfAnother", next.Why)
	case next.Outcome == converge.Reached:
		m.setMessage(m.object() + " is under hold and runs its template; the release begins when the template changes")
	case next.Outcome != converge.Call:
		m.setMessage(next.Why)
	case c.GetState() != pb.State_STATE_UNMANAGED && c.GetTotal() == 0:
		m.call = converge.Move{}
		m.setMessage(m.object() + " does not have a group yet")
	}
}

// object returns the kind and the name of the workload, for messages.
func (m *machine) object() string { return plugin.ObjectOf(Workload(m.release)) }

// recordStart records the initial state of the release.
func (m *machine) recordStart() {
	s, c := &m.status, m.context
	s.Phase = v1beta1.RolloutPhaseProgressing
	s.StableRevision, s.UpdateRevision = c.GetStableRevision(), c.GetUpdateRevision()
	s.ObservedWorkloadReplicas = c.GetReplicas()
	s.ObservedReleasePlanHash, s.ObservedRolloutID = HashPlan(m.plan()), m.plan().RolloutID
	m.beginBatch(0)
}

// beginBatch begins a batch, or restarts it.
func (m *machine) beginBatch(batch int32) {
	m.status.CanaryStatus.CurrentBatch = batch
	m.restartBatch()
}

// restartBatch has the current batch requested and verified again.
func (m *machine) restartBatch() {
	m.restarted = true
	m.status.CanaryStatus.CurrentBatchState = v1beta1.UpgradingBatchState
	m.status.CanaryStatus.BatchReadyTime = nil
}
