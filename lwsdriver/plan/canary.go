// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// advanceCanary grows a second workload to the target. The user's workload is not touched.
func advanceCanary(o Observation, s Progress) Decision {
	r := o.Record.Release
	c := o.canary()
	state := pb.State_STATE_UPGRADING
	if c == nil || c.Deleting {
		state = pb.State_STATE_PREPARING
	}
	v, d := routeCanary(o, s.Planned, state)
	switch {
	case d != nil:
		return *d
	case c == nil && !fenced(v):
		return *awaitTraffic(v, pb.State_STATE_PREPARING)
	case c == nil:
		return Decision{
			State: pb.State_STATE_PREPARING, Reason: ReasonCreatingCanary, Message: "the canary is being created",
			Action: CreateCanary{
				Name: record.CanaryName(o.knownAs(), o.Stable.Name, r.UpdateRevision), Revision: r.UpdateRevision,
				Replicas: s.Planned, Target: r.Target.Renewed(o.Now),
			},
		}
	case c.Deleting:
		return replaceCanary(o, *c)
	case c.Drifted:
		return Decision{
			Action: RepairCanary{Name: c.Name}, State: pb.State_STATE_UPGRADING, Reason: ReasonCanaryDrifted,
			Message: fmt.Sprintf("somebody edited %s; it is being put back", c.Name),
		}
	}
	target := o.Target()
	if d := scalable(o, v, *c, s.Planned); d != nil {
		return *d
	}
	if c.Replicas != s.Planned || (c.Target == nil && target != nil) {
		if c.Replicas < s.Planned {
			target = target.Renewed(o.Now)
		}
		return Decision{
			Action: ScaleCanary{Name: c.Name, Replicas: s.Planned, Target: target}, State: pb.State_STATE_UPGRADING,
			Reason: ReasonScaling, Message: fmt.Sprintf("%s is being scaled to %d groups", c.Name, s.Planned),
		}
	}
	if target == nil && !o.completesSecondSet() {
		return Decision{
			State: pb.State_STATE_HOLDING, Reason: ReasonNoBatch,
			Message: fmt.Sprintf("%s is prepared with 0 groups; the host starts the first batch", c.Name),
		}
	}
	return judgeBatch(o, s, v, c.Groups)
}

// scalable says what has to be waited for before the canary is scaled: a fence before there are more groups, and that
// those that go get no requests and have finished theirs.
func scalable(o Observation, v traffic.View, c Workload, planned int) *Decision {
	switch {
	case planned > c.Replicas && !fenced(v),
		planned < c.Replicas && !follows(v):
		return awaitTraffic(v, pb.State_STATE_UPGRADING)
	case planned < c.Replicas && c.reached(v, planned):
		return &Decision{
			State: pb.State_STATE_UPGRADING, Reason: ReasonDraining,
			Message: fmt.Sprintf("%s is scaled to %d groups once requests no longer go to the others", c.Name, planned),
		}
	case planned < c.Replicas:
		return drained(o, pb.State_STATE_UPGRADING)
	}
	return nil
}

// replaceCanary: somebody deleted the canary in mid-release. Its target is saved before it goes, so that the next one
// has as many groups.
func replaceCanary(o Observation, c Workload) Decision {
	d := Decision{
		State: pb.State_STATE_PREPARING, Reason: ReasonCanaryDeleted,
		Message: fmt.Sprintf("somebody deleted %s; it will be created again once it is gone", c.Name),
	}
	saved, target := o.Record.Release.Target, o.Target()
	withdrawn := withdraw(o, pb.State_STATE_PREPARING)
	switch {
	case target != nil && (saved == nil || saved.Groups != target.Groups || !saved.At.Equal(target.At)):
		next := withRelease(o, func(r *record.Release) { r.Target = target })
		next.Release.PhaseAt = o.Record.Release.PhaseAt
		d.Action = SetStable{Record: next, Why: "save the target of the deleted canary"}
	case c.HasFinalizer && withdrawn != nil:
		return *withdrawn
	case c.HasFinalizer:
		d.Action = RemoveFinalizer{Name: c.Name}
	}
	return d
}

// judgeBatch says how far the batch is, once the cluster has been asked for it; groups are those that it is about.
func judgeBatch(o Observation, s Progress, v traffic.View, groups []Group) Decision {
	need := s.Planned - s.Threshold
	d := Decision{Message: fmt.Sprintf("%d of %d groups ready%s", s.available, s.Planned, obstacles(groups))}
	switch {
	case s.available >= need && !follows(v):
		d.State, d.Reason = pb.State_STATE_VERIFYING, v.Reason
		d.Message += ", but requests do not go where they should yet: " + v.Message
		return d
	case s.available >= need:
		d.State, d.Reason = pb.State_STATE_READY, ReasonBatchReady
		return d
	case s.ready >= need:
		d.State, d.Reason = pb.State_STATE_VERIFYING, ReasonMinReady
		d.Message = fmt.Sprintf("%d of %d groups ready for %s", s.available, s.Planned, o.Policy.MinReady)
	default:
		d.State, d.Reason = pb.State_STATE_UPGRADING, ReasonGroupsNotReady
	}
	return underDeadline(o, s, d, s.Threshold)
}
