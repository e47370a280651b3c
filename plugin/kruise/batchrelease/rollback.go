// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// stableRestored reports whether our release is rolled back because the workload has the stable template again.
func (m *machine) stableRestored() bool {
	return m.inState(pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK) &&
		m.context.GetTemplateRevision() == m.context.GetStableRevision()
}

// rollback follows a rollback by template, and reports whether it is counted in batches. In it, the stable revision is the update
// revision, and groups that still had it need no update.
func (m *machine) rollback() bool {
	if !m.stableRestored() {
		return false
	}
	s := &m.status
	first := s.CanaryStatus.NoNeedUpdateReplicas == nil
	if first {
		s.CanaryStatus.NoNeedUpdateReplicas = ptr.To(m.notUpdated())
		s.StableRevision, s.UpdateRevision = m.context.GetStableRevision(), m.context.GetStableRevision()
		s.ObservedWorkloadReplicas = m.context.GetReplicas()
	}
	if m.release.Annotations[RollbackInBatchAnnotation] == "" || s.Phase == v1beta1.RolloutPhaseFinalizing {
		return false
	}
	m.setMessage("rolling back; the driver does not wait for batches")
	if first {
		s.Phase = v1beta1.RolloutPhasePreparing
		m.restart()
		return true
	}
	s.Phase = v1beta1.RolloutPhaseProgressing
	if m.valid() {
		m.followPlan()
		m.rollbackBatch()
	}
	return true
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

// restored returns how many groups are at the stable revision, and how many of them are ready.
func (m *machine) restored() (exist, ready int32) {
	c := m.context
	return min(max(c.GetTotal()-c.GetUpdated(), 0), c.GetReplicas()), min(c.GetStableReady(), c.GetReplicas())
}

// rollbackBatch counts a rollback in batches, as Kruise does: a batch is a share of the groups that need to be rolled back. The driver
// rolls back all groups without waiting, so batchPartition delays the count, not the groups.
func (m *machine) rollbackBatch() {
	s, plan := &m.status.CanaryStatus, m.plan()
	need := max(m.context.GetReplicas()-ptr.Deref(s.NoNeedUpdateReplicas, 0), 0)
	exist, ready := m.restored()
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
		if exist >= want && !m.restarted {
			s.CurrentBatchState = v1beta1.VerifyingBatchState
		}
	}
}
