// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// returned reports whether the stable template is there again, which the driver takes as the sign to roll back.
func (m *machine) returned() bool {
	return m.inState(pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK) &&
		m.context.GetTemplateRevision() == m.context.GetStableRevision()
}

// rollback follows a rollback by template, and reports whether it is one that is counted in batches. From then on the stable
// revision is the one that groups are updated to, and those that never left it need no update.
func (m *machine) rollback() bool {
	if !m.returned() {
		return false
	}
	s := &m.status
	first := s.CanaryStatus.NoNeedUpdateReplicas == nil
	if first {
		s.CanaryStatus.NoNeedUpdateReplicas = ptr.To(m.spared())
		s.StableRevision, s.UpdateRevision = m.context.GetStableRevision(), m.context.GetStableRevision()
		s.ObservedWorkloadReplicas = m.context.GetReplicas()
	}
	if m.release.Annotations[RollbackInBatchAnnotation] == "" || s.Phase == v1beta1.RolloutPhaseFinalizing {
		return false
	}
	m.say("rolling back; the driver does not wait for batches")
	if first {
		s.Phase = v1beta1.RolloutPhasePreparing
		m.restart()
		return true
	}
	s.Phase = v1beta1.RolloutPhaseProgressing
	if m.valid() {
		m.followPlan()
		m.returnBatch()
	}
	return true
}

// spared is how many groups the release has not updated. The driver may have brought groups back since the last look, so the
// status is asked as well.
func (m *machine) spared() int32 {
	c := m.context
	if c.GetStyle() != pb.Style_STYLE_PARTITION {
		return c.GetReplicas()
	}
	updated := max(c.GetUpdated(), m.release.Status.CanaryStatus.UpdatedReplicas)
	return max(c.GetReplicas()-updated, 0)
}

// back counts the groups at the stable revision, and those that are ready.
func (m *machine) back() (exist, ready int32) {
	c := m.context
	return min(max(c.GetTotal()-c.GetUpdated(), 0), c.GetReplicas()), min(c.GetStableReady(), c.GetReplicas())
}

// returnBatch counts a rollback in batches, as Kruise does: a batch's share is one of the groups that need to return. The driver
// brings all back, at the workload's own pace; batchPartition holds up the count, not the groups.
func (m *machine) returnBatch() {
	s, plan := &m.status.CanaryStatus, m.plan()
	need := max(m.context.GetReplicas()-ptr.Deref(s.NoNeedUpdateReplicas, 0), 0)
	exist, ready := m.back()
	want := m.context.GetReplicas() - need + planned(m.current(), need)
	switch s.CurrentBatchState {
	case v1beta1.VerifyingBatchState:
		if ready >= want {
			s.CurrentBatchState = v1beta1.ReadyBatchState
			s.BatchReadyTime = &m.now
		}
	case v1beta1.ReadyBatchState:
		switch {
		case ready < want:
			m.restart()
		case *plan.BatchPartition > s.CurrentBatch && int(s.CurrentBatch) < len(plan.Batches)-1:
			m.enter(s.CurrentBatch + 1)
		}
	default:
		s.CurrentBatchState = v1beta1.UpgradingBatchState
		if exist >= want && !m.again {
			s.CurrentBatchState = v1beta1.VerifyingBatchState
		}
	}
}
