// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"
	"strings"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// progress brings the release to batchPartition, batch by batch.
func (m *machine) progress() {
	m.status.Phase = v1beta1.RolloutPhaseProgressing
	if !m.ours() {
		// The workload was made again, or another release has taken this one's place.
		m.status = reset()
		m.status.ObservedGeneration = m.release.Generation
		m.prepare()
		return
	}
	if !m.valid() {
		return
	}
	m.follow()
	c := m.context
	style, err := Style(m.plan())
	switch {
	case err != nil, style != c.GetStyle():
		m.stuck("StyleChanged", fmt.Sprintf("the release was begun in style %s, which can't change: set it back, or delete the BatchRelease, "+
			"which rolls back, and make another", plugin.CamelCase(strings.TrimPrefix(c.GetStyle().String(), "STYLE_"))))
		return
	case c.GetTemplateRevision() != c.GetUpdateRevision():
		m.restart()
		m.say("the template has changed; the driver gives up the groups of revision " + c.GetUpdateRevision())
		return
	case c.GetState() == pb.State_STATE_FAILED:
		m.stuck(c.GetReason(), c.GetMessage())
	default:
		m.say("")
	}
	m.batch()
}

// follow notices what has changed since the last look: the plan, the number of groups, the template.
func (m *machine) follow() {
	m.followPlan()
	s, c := &m.status, m.context
	if s.ObservedWorkloadReplicas != c.GetReplicas() {
		s.ObservedWorkloadReplicas = c.GetReplicas()
		m.restart()
	}
	if s.UpdateRevision != c.GetUpdateRevision() {
		s.StableRevision, s.UpdateRevision = c.GetStableRevision(), c.GetUpdateRevision()
		s.CanaryStatus.NoNeedUpdateReplicas = nil // A rollback that a newer template has overtaken is none any more.
		m.enter(0)
	}
}

func (m *machine) followPlan() {
	s, plan := &m.status, m.plan()
	last := int32(len(plan.Batches)) - 1 //nolint:gosec // An object of the API holds less.
	if hash := HashPlan(plan); s.ObservedReleasePlanHash != hash {
		// As with Kruise, a new plan is at once at the batch that batchPartition names, and one with a new rolloutID at its first.
		batch := min(*plan.BatchPartition, last)
		if plan.RolloutID != s.ObservedRolloutID {
			batch = 0
		}
		s.ObservedReleasePlanHash, s.ObservedRolloutID = hash, plan.RolloutID
		m.enter(batch)
	}
	if b := s.CanaryStatus.CurrentBatch; b < 0 || b > last {
		m.enter(0) // Somebody edited the status.
	}
}

// batch moves the batch's own state by one.
func (m *machine) batch() {
	s, plan := &m.status.CanaryStatus, m.plan()
	asked := m.asked()
	switch s.CurrentBatchState {
	case v1beta1.VerifyingBatchState:
		switch {
		case !asked:
			m.restart()
		case m.ready():
			s.CurrentBatchState = v1beta1.ReadyBatchState
			s.BatchReadyTime = &m.now
		}
	case v1beta1.ReadyBatchState:
		switch {
		case !asked || !m.ready():
			m.restart()
		case *plan.BatchPartition > s.CurrentBatch && int(s.CurrentBatch) < len(plan.Batches)-1:
			m.enter(s.CurrentBatch + 1)
			asked = m.asked()
		}
	default:
		s.CurrentBatchState = v1beta1.UpgradingBatchState
		if asked && !m.again {
			s.CurrentBatchState = v1beta1.VerifyingBatchState
		}
	}
	if !asked {
		m.upgrade()
	}
}

// current is the batch that the release is at.
func (m *machine) current() v1beta1.ReleaseBatch {
	return m.plan().Batches[m.status.CanaryStatus.CurrentBatch]
}

// asked reports whether the driver was asked for as many groups as the current batch means, or for more: batches never
// decrease, whatever becomes of the plan.
func (m *machine) asked() bool {
	return m.context.GetTarget() != "" && m.context.GetPlanned() >= planned(m.current(), m.context.GetReplicas())
}

// ready reports whether the driver's batch is complete.
func (m *machine) ready() bool { return m.context.GetState() == pb.State_STATE_READY }

func (m *machine) upgrade() {
	c, target := m.context, m.current().CanaryReplicas
	m.call = Call{&pb.UpgradeBatchRequest{
		Workload: Workload(m.release), ReleaseId: c.GetReleaseId(), UpdateRevision: c.GetUpdateRevision(),
		Target: &pb.UpgradeBatchRequest_Groups{Groups: target.String()},
	}, fmt.Sprintf("batch %d: %s of the groups", m.status.CanaryStatus.CurrentBatch, target.String())}
}
