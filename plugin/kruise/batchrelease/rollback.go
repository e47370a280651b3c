// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// stableRestored reports whether our release is rolled back because the workload has the stable template again.
func (m *machine) stableRestored() bool {
	return m.inState(pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK) &&
		m.context.GetTemplateRevision() == m.context.GetStableRevision()
}

// noteRollback records a rollback by template. In it, the stable revision is the update revision, and groups that still had it need no
// update.
func (m *machine) noteRollback() {
	s := &m.status
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

// restored returns how many groups are at the stable revision, and how many of them are ready.
func (m *machine) restored() (exist, ready int32) {
	c := m.context
	return min(max(c.GetTotal()-c.GetUpdated(), 0), c.GetReplicas()), min(c.GetStableReady(), c.GetReplicas())
}
