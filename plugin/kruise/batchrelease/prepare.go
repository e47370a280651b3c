// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// prepare adopts the workload, waits for a template to release, and begins.
func (m *machine) prepare() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	switch {
	case m.context == nil:
		m.setMessage(fmt.Sprintf("%s does not exist in namespace %s; it is adopted when it is created", m.object(), m.release.Namespace))
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

// awaitPartition holds the workload for a plan without batchPartition: only after a batch its removal means the promotion.
func (m *machine) awaitPartition() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	if m.context != nil {
		m.toward(converge.Goal{Kind: converge.Hold})
	}
	m.setBlocked("NotRequested", "releasePlan.batchPartition is not set, and no batch has run: set batchPartition: 0 to release the first batch")
}

// begin adopts the workload, or begins the release of its template.
func (m *machine) begin() {
	c := m.context
	policy, err := Policy(m.plan(), c.GetReplicas())
	if err != nil {
		m.setBlocked("InvalidPlan", "spec.releasePlan."+err.Error())
		return
	}
	template := c.GetTemplateRevision()
	next := m.toward(converge.Goal{Kind: converge.Upgrade, Release: ReleaseID(m.release, template), Revision: template, Policy: policy})
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
