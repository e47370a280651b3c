// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"iter"
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// advanceCanary scales a second workload to the target. The user's workload is not touched.
func advanceCanary(o Observation, s Progress) Decision {
	r := o.Record.Release
	c := o.canary()
	v, d := routeCanary(o, s.Planned)
	switch {
	case d != nil:
		return *d
	// The Service selects by labels that the canary's pods have too: without isolation its first group would serve unasked.
	case c == nil && !isIsolated(v):
		return *awaitTraffic(v)
	case c == nil:
		if d := awaitLeftover(o); d != nil {
			return *d
		}
		return Decision{
			Reason: ReasonCreatingCanary, Message: "the canary is being created",
			Action: CreateCanary{
				Name: record.CanaryName(o.knownAs(), o.Stable.Name, r.UpdateRevision), Revision: r.UpdateRevision,
				Replicas: s.Planned, Target: r.Target.Renewed(o.Now),
			},
		}
	case c.Deleting:
		return replaceCanary(o, *c)
	}
	if d := repairAdded(o); d != nil {
		return *d
	}
	target := o.Target()
	if d := awaitScalable(o, v, *c, s.Planned); d != nil {
		return *d
	}
	if c.Replicas != s.Planned || (c.Target == nil && target != nil) {
		// A larger batch begins now, and so does its deadline.
		if c.Replicas < s.Planned {
			target = target.Renewed(o.Now)
		}
		return scaleAdded(*c, s.Planned, target)
	}
	switch {
	case target != nil || o.completesSecondSet():
		return judgeBatch(o, s, v, c.All())
	case !isIsolated(v):
		return *awaitTraffic(v)
	}
	return Decision{
		State: pb.State_STATE_HOLDING, Reason: ReasonNoBatch,
		Message: fmt.Sprintf("%s is prepared with 0 groups; the host starts the first batch", c.Name),
	}
}

// repairAdded restores the template of the added workload, by which LWS would replace groups that serve. Nil means that no other client has edited it.
func repairAdded(o Observation) *Decision {
	c := o.canary()
	if c == nil || c.Deleting || !c.Drifted {
		return nil
	}
	return &Decision{
		Action: RepairCanary{Name: c.Name}, Reason: ReasonCanaryDrifted,
		Message: fmt.Sprintf("the template of %s was edited; it is being restored", c.Name),
	}
}

// scaleAdded returns the decision to give an added workload a number of groups.
func scaleAdded(c Workload, groups int, target *record.Target) Decision {
	d := Decision{
		Action: ScaleCanary{Name: c.Name, Replicas: groups, Target: target}, Reason: ReasonScaling,
		Message: fmt.Sprintf("%s is being scaled to %s", c.Name, Counted(groups, "group", "groups")),
	}
	return d.nameReverter("the number of groups of "+c.Name, c.ScaledBy)
}

// awaitScalable returns what to wait for before the canary is scaled: isolation before it grows; before it shrinks, that the
// surplus groups receive no requests and have finished theirs.
func awaitScalable(o Observation, v traffic.View, c Workload, planned int) *Decision {
	switch {
	case planned > c.Replicas && !isIsolated(v),
		planned < c.Replicas && !inForce(v):
		return awaitTraffic(v)
	case planned < c.Replicas && c.mayReach(v, planned):
		return &Decision{
			Reason: ReasonDraining, Wait: WaitTraffic,
			Message: fmt.Sprintf("%s is scaled to %s once the other groups no longer receive requests", c.Name, Counted(planned, "group", "groups")),
		}
	case planned < c.Replicas:
		return awaitDrained(o)
	}
	return nil
}

// replaceCanary handles a canary that another client deleted in mid-release. Its target is saved before it is gone, so
// that the next canary has as many groups.
func replaceCanary(o Observation, c Workload) Decision {
	d := Decision{
		Reason:  ReasonCanaryDeleted,
		Message: fmt.Sprintf("%s was deleted; it is recreated once it is gone", c.Name),
	}
	d = awaitDeletion(o, d, c)
	saved, target := o.Record.Release.Target, o.Target()
	withdrawn := awaitWithdrawn(o)
	switch {
	case target != nil && (saved == nil || saved.Groups != target.Groups || !saved.At.Equal(target.At)):
		next := amendRelease(o, func(r *record.Release) { r.Target = target })
		d.Action = SetStable{Record: next, Why: "save the target of the deleted canary"}
	// The finalizer stays until no request is left for its groups.
	case c.HasFinalizer && withdrawn != nil:
		return *withdrawn
	case c.HasFinalizer:
		d.Action = RemoveFinalizer{Name: c.Name}
	}
	return d
}

// judgeBatch returns the state of a batch whose number of groups has been written. groups are the batch's.
func judgeBatch(o Observation, s Progress, v traffic.View, groups iter.Seq2[Group, int]) Decision {
	need := s.Planned - s.Threshold
	d := Decision{Message: fmt.Sprintf("%d of %d groups ready%s%s", s.available, s.Planned, o.describeBatch(), o.describeUnready(groups))}
	if s.Planned == 0 && o.replacesUnits() && o.batchReplicas() > 0 {
		if failed := o.failShift(); failed != nil {
			return *failed // no unit is no batch
		}
	}
	switch {
	// A host that is told READY measures the canary, so requests must have reached it.
	case s.available >= need && !inForce(v):
		d.State, d.Reason, d.Wait = pb.State_STATE_VERIFYING, v.Reason, WaitTraffic
		d.Message += ", but the requested routing is not in force yet: " + v.Message
		return d
	case s.available >= need && o.currentShare().isCapped():
		d.State, d.Reason = pb.State_STATE_VERIFYING, o.currentShare().capReason()
		if d.Reason == traffic.ReasonNoPicker {
			d.Wait = WaitTraffic
		}
		return d
	case s.available >= need:
		d.State, d.Reason = pb.State_STATE_READY, ReasonBatchReady
		return d
	case s.ready >= need:
		d.State, d.Reason = pb.State_STATE_VERIFYING, ReasonMinReady
		d.Message = fmt.Sprintf("%d of %d groups ready for %s%s", s.available, s.Planned, o.Policy.MinReady, o.describeBatch())
	default:
		d.State, d.Reason = pb.State_STATE_UPGRADING, ReasonGroupsNotReady
		if wait := awaitPlace(o, s, d); wait != nil {
			return *wait
		}
	}
	return awaitGroups(s, d, s.Threshold)
}

// Blue-green is a canary whose requests move once it is complete. The differences follow.

// completesSecondSet reports whether the promotion still completes the second set and moves the requests to it, before it
// updates the user's own groups.
func (o Observation) completesSecondSet() bool {
	if !o.switchesSets() {
		return false
	}
	switch o.Record.Release.Phase {
	case record.Promoting:
		return isHold(o.Stable.Rolling) || o.handsOver() // once the hold is released, the user's own groups are updated
	case record.Standby:
		return true
	default:
		return false
	}
}

// secondSetReady reports whether the second set is complete and can serve all requests.
func (o Observation) secondSetReady() bool {
	c := o.canary()
	if c == nil || c.Deleting {
		return false
	}
	n := o.beforePromotion(o.batchReplicas())
	serving := c.count(func(g Group) bool { return g.mayServe(n) && (g.Serving || o.Traffic == nil) })
	return serving >= n-o.Policy.Threshold(n)
}

// awaitsSecondSet reports whether requests stay where they are until the second set is complete.
func (o Observation) awaitsSecondSet() bool {
	return o.oneSetServes() && !o.requestsSwitched() && !o.secondSetReady()
}

// requestsSwitched reports whether requests already go to the second set. If it then loses groups, the share follows.
func (o Observation) requestsSwitched() bool {
	return o.Traffic != nil && o.Traffic.Facts().Weight > 0
}

// stableIdle reports whether the user's own groups receive no requests, so that all may be replaced at once.
func (o Observation) stableIdle() bool {
	r := o.release()
	if !o.switchesSets() || o.Traffic == nil || r.Phase != record.Promoting || o.Stable.Revision != r.UpdateRevision || !o.secondSetReady() {
		return false
	}
	want := o.requestedRouting(o.canaryCapacity())
	v := o.Traffic.Look(want)
	return want.Weight == 100 && v.Weight == 100 && inForce(v)
}

// awaitsStable reports whether a rollback from a promotion leaves the requests with the second set, since the user's own
// groups, which may all have been replaced at once, are not complete again. Force does not wait for them.
func (o Observation) awaitsStable() bool {
	if !o.requestsSwitched() || !o.switchesSets() || o.Record.Release.Phase != record.RollingBack || o.canary() == nil || o.forced() {
		return false
	}
	serving := o.Stable.count(func(g Group) bool {
		return g.mayServe(o.Stable.Replicas) && g.atRevision(o.Record.Release.StableRevision)
	})
	return o.Traffic.Facts().CanaryEndpoints > 0 && o.canaryBroken() == "" && serving < o.Stable.Replicas-o.Policy.Threshold(o.Stable.Replicas)
}

// prepareSwitch completes the second set and moves the requests to it, at the beginning of a promotion. Nil means done.
func prepareSwitch(o Observation, s Progress) *Decision {
	if !o.completesSecondSet() {
		return nil
	}
	for _, w := range o.Added {
		if w.Carries != o.Record.Release.UpdateRevision || w.Orphaned {
			return ptr.To(deleteAdded(o, w, ReasonNewRevision))
		}
	}
	d := advanceCanary(o, s)
	if d.State == pb.State_STATE_READY {
		return nil
	}
	if d.State != pb.State_STATE_FAILED {
		d.State = pb.State_STATE_PROMOTING
	}
	return &d
}

// scaleDownIn returns how long the second set stays after a promotion, although it receives no requests.
func (o Observation) scaleDownIn() time.Duration {
	if !o.switchesSets() || o.Record.Release.Phase != record.Promoted {
		return 0
	}
	return o.Record.Release.PhaseAt.Add(o.Policy.ScaleDownDelay).Sub(o.Now)
}
