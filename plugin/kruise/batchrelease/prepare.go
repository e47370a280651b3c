// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// prepare adopts the workload, waits for a template to release, and begins.
func (m *machine) prepare() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	switch {
	case m.context == nil:
		m.setMessage(fmt.Sprintf("LeaderWorkerSet %s does not exist in namespace %s; it is adopted when it is created",
			m.release.Spec.WorkloadRef.Name, m.release.Namespace))
	case !m.valid():
	case m.inState(pb.State_STATE_PREPARING):
		m.setMessage("the driver prepares the release")
	case m.inFlight():
		m.start()
		m.progress()
	default:
		m.begin()
	}
}

// begin begins a release if the template differs from that of the groups and no other host releases the workload. It returns false if
// the groups have the template.
func (m *machine) begin() bool {
	c := m.context
	name := m.release.Spec.WorkloadRef.Name
	switch {
	case c.GetState() == pb.State_STATE_UNMANAGED:
		m.call = Call{&pb.AdoptRequest{Workload: Workload(m.release)}, "adopting the workload"}
	case plugin.InFlight(c):
		m.setBlocked("ReleaseOfAnother", fmt.Sprintf("release %s of %q holds LeaderWorkerSet %s: finalize it, or wait for its end",
			c.GetReleaseId(), c.GetOwner(), name))
	case c.GetTemplateRevision() == "", c.GetTotal() == 0:
		m.setMessage(fmt.Sprintf("LeaderWorkerSet %s does not have a group, or a revision of its template, yet", name))
	case !plugin.Waits(c):
		m.setMessage(fmt.Sprintf("LeaderWorkerSet %s is under hold and runs its template; the release begins when the template changes", name))
		return false
	default:
		m.initialize()
	}
	return true
}

func (m *machine) initialize() {
	revision := m.context.GetTemplateRevision()
	policy, err := Policy(m.plan(), m.context.GetReplicas())
	if err != nil {
		m.setBlocked("InvalidPlan", "spec.releasePlan."+err.Error())
		return
	}
	m.call = Call{&pb.InitializeRequest{
		Workload: Workload(m.release), ReleaseId: ReleaseID(m.release, revision), Owner: Owner(m.release), Policy: policy,
	}, "releasing revision " + revision}
}

// start records the initial state of the release.
func (m *machine) start() {
	s, c := &m.status, m.context
	s.Phase = v1beta1.RolloutPhaseProgressing
	s.StableRevision, s.UpdateRevision = c.GetStableRevision(), c.GetUpdateRevision()
	s.ObservedWorkloadReplicas = c.GetReplicas()
	s.ObservedReleasePlanHash, s.ObservedRolloutID = HashPlan(m.plan()), m.plan().RolloutID
	m.enter(0)
}

// enter begins a batch, or restarts it.
func (m *machine) enter(batch int32) {
	m.status.CanaryStatus.CurrentBatch = batch
	m.restart()
}

// restart makes the current batch be requested and verified again.
func (m *machine) restart() {
	m.restarted = true
	m.status.CanaryStatus.CurrentBatchState = v1beta1.UpgradingBatchState
	m.status.CanaryStatus.BatchReadyTime = nil
}
