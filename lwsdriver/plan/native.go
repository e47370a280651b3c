// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// promote lets LWS roll the user's workload at the user's own maxUnavailable and maxSurge, and restores the hold.
func promote(o Observation, s Progress) Decision {
	r := o.Record.Release
	if d := restoreHold(o, pb.State_STATE_PROMOTING); d != nil && o.completesSecondSet() {
		return *d
	}
	if d := protectRequests(o, pb.State_STATE_PROMOTING); d != nil {
		return *d
	}
	switch {
	case o.Stable.Revision == "":
		return waitForLWS(o, pb.State_STATE_PROMOTING)
	case o.Stable.Revision == r.StableRevision && o.Stable.Revision != r.UpdateRevision && o.stableUnchanged():
		return cancelPromotion(o)
	case o.Stable.Revision == r.StableRevision && o.Stable.Revision != r.UpdateRevision:
		next := withRelease(o, func(n *record.Release) { n.Phase = record.RollingBack })
		return beginRollBack(o, next, "the stable template is restored in mid-promotion: roll back natively")
	case o.Stable.Revision != r.UpdateRevision && (o.shifts() || o.RolesWaiting != ""):
		return followTemplate(o)
	case o.Stable.Revision != r.UpdateRevision:
		return startOver(o)
	}
	if d := followScaleDown(o, pb.State_STATE_PROMOTING); d != nil {
		return *d
	}
	if d := holdAutoscalers(o, pb.State_STATE_PROMOTING); d != nil {
		return *d
	}
	if d := prepareSwitch(o, s); d != nil {
		return *d
	}
	if d := endSplit(o, pb.State_STATE_PROMOTING); d != nil {
		return *d
	}
	v, d := routeCanary(o, o.capacity(), pb.State_STATE_PROMOTING)
	if d == nil {
		d = drainStable(o, v)
	}
	switch {
	case d != nil:
		return *d
	case o.handsOver():
		return standBy(o)
	}
	return roll(o, s, nativeRoll{
		state: pb.State_STATE_PROMOTING, then: record.Promoted,
		begin: "release the hold to promote", done: "every group is promoted: hold again", participle: "promoted",
	})
}

// rollBack returns groups that a promotion or a batch has updated to the stable revision. LWS rolls groups only to the
// template in the spec; if that is another one, the groups are restarted.
func rollBack(o Observation, s Progress) Decision {
	if d := withdrawInPlace(o, pb.State_STATE_ROLLING_BACK); d != nil {
		return *d
	}
	if v, d := reconcileTraffic(o, Requests(o), pb.State_STATE_ROLLING_BACK); d != nil && !onlyCanaryServes(o, v) && limitShares(o, d.Action) == nil {
		return *d
	}
	switch now := o.Stable.Revision; {
	case now == "" && o.Stable.existing() == 0:
		return waitForLWS(o, pb.State_STATE_ROLLING_BACK) // the stable template was restored for the first groups
	case now != o.Record.Release.StableRevision:
		return restartOffRevision(o, s)
	}
	if d := restartBlocking(o, s); d != nil {
		return *d
	}
	return roll(o, s, nativeRoll{
		state: pb.State_STATE_ROLLING_BACK, then: record.CleaningUp,
		begin: "release the hold to roll back", done: "every group is at the stable revision: hold again", participle: "rolled back",
	})
}

func beginRollBack(o Observation, next record.Record, why string) Decision {
	return writes(SetStable{Record: next, Rolling: ptr.To(o.returnPace(Saved(o))), Why: why}, pb.State_STATE_ROLLING_BACK, ReasonTemplateRestored)
}

// nativeRoll is one of the two phases in which the hold is off for every group.
type nativeRoll struct {
	state pb.State
	// then is the phase that follows once every group is at the revision.
	then record.Phase
	// begin and done describe the writes, participle what happened to a group.
	begin, done, participle string
}

// roll lets LWS roll every group to the template in the spec, at the user's own pace.
func roll(o Observation, s Progress, n nativeRoll) Decision {
	if !rollsAtPace(o) {
		// The hold is released, or the user's pace has changed.
		return writes(SetStable{Record: *o.Record, Rolling: ptr.To(o.pace(Saved(o))), Why: n.begin}, n.state, ReasonRolling)
	}
	if d := awaitStartReplicas(o); d != nil {
		return *d
	}
	given := o.givenUp()
	if s.available+given >= o.Stable.Replicas && !o.Stable.surges() {
		next := withRelease(o, func(r *record.Release) {
			r.Phase = n.then
			if n.then == record.Promoted {
				r.StableTemplate = nil
			}
		})
		return writes(SetStable{Record: next, Rolling: hold(), Why: n.done}, n.state, ReasonCleaningUp)
	}
	d := Decision{State: n.state, Reason: ReasonRolling}
	d.Message = fmt.Sprintf("%d of %d groups %s%s", s.available, o.Stable.Replicas, n.participle, describeUnready(o.Stable.All()))
	if s.available+given >= o.Stable.Replicas {
		return awaitSurge(o, d)
	}
	d.Message += o.heldUpBy("keeps LeaderWorkerSet from the others", "have it roll them back beyond it")
	if o.Record.Release.Phase == record.RollingBack {
		s.nextReady = earliest(s.nextReady, o.nextBroken())
	}
	return awaitGroups(s, d, 0)
}
