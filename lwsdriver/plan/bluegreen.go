// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Blue-green is a canary whose requests move once it is complete. What differs is here.

// completesSecondSet says whether the promotion is still about the second set: it has to be complete, and to have the requests,
// before the user's own groups are touched.
func (o Observation) completesSecondSet() bool {
	if !o.switches() {
		return false
	}
	held := ptr.Deref(o.Stable.Rolling.Partition, 0) == ptr.Deref(record.Hold().Partition, 0)
	p := o.Record.Release.Phase
	return p == record.Promoting && (held || o.handsOver()) || p == record.Standby
}

// secondSetReady says whether the second set is complete: it can take all of the requests.
func (o Observation) secondSetReady() bool {
	n, c := o.Stable.Replicas, o.canary()
	if c == nil || c.Deleting {
		return false
	}
	serving := 0
	for _, g := range c.Groups {
		if g.mayServe(n) && (g.Serving || o.Traffic == nil) {
			serving++
		}
	}
	return serving >= n-o.Policy.Threshold(n)
}

// awaitsSecondSet reports whether requests stay where they are until the second set is complete.
func (o Observation) awaitsSecondSet() bool {
	return o.switches() && !o.switched() && !o.secondSetReady()
}

// switched says whether requests go to the second set already. A group that it loses from then on does not move them back.
func (o Observation) switched() bool {
	return o.Traffic != nil && o.Traffic.Facts().Weight > 0
}

// stableIdle says whether the user's own groups have nothing to do, so that they may all be replaced at once.
func (o Observation) stableIdle() bool {
	r := o.release()
	if !o.switches() || o.Traffic == nil || r.Phase != record.Promoting || o.Stable.Revision != r.UpdateRevision || !o.secondSetReady() {
		return false
	}
	want := o.requested(o.capacity())
	v := o.Traffic.Look(want)
	return want.Weight == 100 && v.Weight == 100 && v.Stage >= traffic.Acknowledged
}

// awaitsStable says whether requests stay with the second set on the way back from a promotion, since the user's own groups,
// which it was free to replace all at once, are not complete again.
func (o Observation) awaitsStable() bool {
	if !o.switched() || !o.switches() || o.Record.Release.Phase != record.RollingBack || o.canary() == nil {
		return false
	}
	serving := 0
	for _, g := range o.Stable.above(0) {
		if g.Ready && g.at(o.Record.Release.StableRevision) {
			serving++
		}
	}
	return o.Traffic.Facts().CanaryEndpoints > 0 && serving < o.Stable.Replicas-o.Policy.Threshold(o.Stable.Replicas)
}

// requestsUnchanged is where requests go until then: where they are.
func (o Observation) requestsUnchanged() traffic.Desired {
	d := prepared()
	d.Weight = o.Traffic.Facts().Weight
	return d
}

// prepareSwitch completes the second set and moves the requests to it, at the beginning of a promotion. Nil: that is so.
func prepareSwitch(o Observation, s Progress) *Decision {
	if !o.completesSecondSet() {
		return nil
	}
	if a := repairHold(o); a != nil {
		return &Decision{Action: *a, State: pb.State_STATE_PROMOTING, Reason: ReasonHoldDrifted, Message: drifted}
	}
	d := advanceSecondSet(o, s)
	switch d.State {
	case pb.State_STATE_READY:
		return nil
	case pb.State_STATE_FAILED:
	default:
		d.State = pb.State_STATE_PROMOTING
	}
	return &d
}

// advanceSecondSet is advanceCanary, once nothing is left of a set for another template.
func advanceSecondSet(o Observation, s Progress) Decision {
	for _, w := range o.Added {
		if w.Carries != o.Record.Release.UpdateRevision {
			return retire(o, w, pb.State_STATE_PROMOTING, ReasonNewRevision)
		}
	}
	return advanceCanary(o, s)
}

// scaleDownIn is how long the second set stays after a promotion, though it has no requests any more.
func (o Observation) scaleDownIn() time.Duration {
	if !o.switches() || o.Record.Release.Phase != record.Promoted {
		return 0
	}
	return o.Record.Release.PhaseAt.Add(o.Policy.ScaleDownDelay).Sub(o.Now)
}
