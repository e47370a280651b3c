// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"fmt"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// prepare holds the workload, waits for a template to release, and begins.
func (m *machine) prepare() {
	m.status.Phase = v1beta1.RolloutPhasePreparing
	switch {
	case m.context == nil:
		m.say(fmt.Sprintf("there is no LeaderWorkerSet %s in namespace %s; it is taken up when it appears",
			m.release.Spec.WorkloadRef.Name, m.release.Namespace))
	case !m.valid():
	case m.inState(pb.State_STATE_PREPARING):
		m.say("the driver prepares the release")
	case m.flying():
		m.start()
		m.progress()
	default:
		m.begin()
	}
}

// begin asks the driver for a release, as soon as there is something to release and nobody else releases it.
// It says false if there is nothing.
func (m *machine) begin() bool {
	c := m.context
	name := m.release.Spec.WorkloadRef.Name
	switch {
	case c.GetState() == pb.State_STATE_UNMANAGED:
		m.call = Call{&pb.AdoptRequest{Workload: Workload(m.release)}, "holding the workload from now on"}
	case plugin.InFlight(c):
		m.stuck("ReleaseOfAnother", fmt.Sprintf("release %s of %q holds LeaderWorkerSet %s: finalize it, or wait until it is over",
			c.GetReleaseId(), c.GetOwner(), name))
	case c.GetTemplateRevision() == "", c.GetTotal() == 0:
		m.say(fmt.Sprintf("LeaderWorkerSet %s has no group, or no revision of its template, yet", name))
	case c.GetTemplateRevision() == plugin.Serving(c):
		m.say(fmt.Sprintf("LeaderWorkerSet %s is held and runs its template; the release begins when the template changes", name))
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
		m.stuck("InvalidPlan", "spec.releasePlan."+err.Error())
		return
	}
	m.call = Call{&pb.InitializeRequest{
		Workload: Workload(m.release), ReleaseId: ReleaseID(m.release, revision), Owner: Owner(m.release), Policy: policy,
	}, "releasing revision " + revision}
}

// start records what the release was begun with.
func (m *machine) start() {
	s, c := &m.status, m.context
	s.Phase = v1beta1.RolloutPhaseProgressing
	s.StableRevision, s.UpdateRevision = c.GetStableRevision(), c.GetUpdateRevision()
	s.ObservedWorkloadReplicas = c.GetReplicas()
	s.ObservedReleasePlanHash, s.ObservedRolloutID = HashPlan(m.plan()), m.plan().RolloutID
	m.enter(0)
}

// enter begins a batch, or begins it again.
func (m *machine) enter(batch int32) {
	m.status.CanaryStatus.CurrentBatch = batch
	m.restart()
}

// restart has the current batch asked for and verified again.
func (m *machine) restart() {
	m.again = true
	m.status.CanaryStatus.CurrentBatchState = v1beta1.UpgradingBatchState
	m.status.CanaryStatus.BatchReadyTime = nil
}
