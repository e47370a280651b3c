// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// promote lets LWS roll the user's workload at the user's own maxUnavailable and maxSurge, and restores the hold.
func promote(o Observation, s Progress) Decision {
	r := o.Record.Release
	// Once the user's own groups roll, the partition is the release's own, and no drift.
	if d := restoreHold(o); d != nil && o.completesSecondSet() {
		return *d
	}
	if d := cmp.Or(protectRequests(o), repairAdded(o)); d != nil {
		return *d
	}
	switch {
	case o.Stable.Revision == "":
		return waitForLWS(o)
	case o.Stable.Revision != r.UpdateRevision && (o.Stable.Revision == r.StableRevision || o.replacesUnits() || refuseTemplate(o) != nil):
		return followTemplate(o)
	case o.Stable.Revision != r.UpdateRevision:
		return startOver(o) // the added workload stays, since the user's own groups may not be complete
	}
	if d := cmp.Or(followScaleDown(o), holdAutoscalers(o), prepareSwitch(o, s), endSplit(o)); d != nil {
		return *d
	}
	v, d := routeCanary(o, o.canaryCapacity())
	if d == nil {
		d = drainStable(o, v)
	}
	switch {
	case d != nil:
		return *d
	case o.handsOver():
		return standBy(o)
	}
	// All requests are with the second set until the user's own groups are updated, so the second set follows a scale-up.
	c, n := o.canary(), o.batchReplicas()
	if o.requestsSwitched() && o.Traffic.Facts().Isolated && o.switchesSets() && c != nil && !c.Deleting && c.Replicas < n {
		return scaleAdded(*c, n, c.Target)
	}
	return roll(o, s, nativeRoll{
		then:  record.Promoted,
		begin: "release the hold to promote", done: "every group is promoted: hold again", participle: "promoted",
	})
}

// rollBack returns groups that a promotion or a batch has updated to the stable revision. LWS rolls groups only to the
// template in the spec; if that is another one, the groups are restarted.
func rollBack(o Observation, s Progress) Decision {
	now := o.Stable.Revision
	// The driver has restored the stable template for the first groups. If another client has written one, groups on lost nodes may yet be recreated.
	first := now == "" && (o.Stable.existingGroups() == 0 ||
		o.Stable.ChangedBy == record.FieldManager && !slices.ContainsFunc(o.Stable.Groups, Group.isAlive))
	restarts := now != o.Record.Release.StableRevision && !first
	if held := o.holdWithSurge(); restarts && (!record.SameRolling(o.Stable.Rolling, held) || !record.SameRolling(o.Record.LastSet(), held)) {
		return beginRestarts(o) // before every wait below, during which LWS would roll
	}
	if d := cmp.Or(restorePartition(o), awaitWithdrawnInPlace(o)); d != nil {
		return *d
	}
	if d := cmp.Or(returnRequests(o), repairAdded(o)); d != nil {
		return *d
	}
	switch {
	case first:
		return waitForLWS(o)
	case restarts:
		return restartOffRevision(o, s)
	}
	if d := restartBlocking(o, s); d != nil {
		return *d
	}
	return roll(o, s, nativeRoll{
		then:  record.CleaningUp,
		begin: "release the hold to roll back", done: "every group is at the stable revision: hold again", participle: "rolled back",
	})
}

// beginRollBack writes the record of a rollback to the stable template, which the spec has or gets, and the pace at which LWS may roll.
func beginRollBack(o Observation, next record.Record, why string) Decision {
	a := SetStable{Record: next, Rolling: ptr.To(o.returnPace(Saved(o))), Why: why}
	return writeStable(a, ReasonTemplateRestored)
}

// nativeRoll is one of the two phases in which the hold is off for every group.
type nativeRoll struct {
	// then is the phase that follows once every group is at the revision.
	then record.Phase
	// begin and done describe the writes, participle what happened to a group.
	begin, done, participle string
}

// roll lets LWS roll every group to the template in the spec, at the user's own pace.
func roll(o Observation, s Progress, n nativeRoll) Decision {
	if !rollsAtPace(o) {
		// The hold is released, or the user's pace has changed.
		return writeStable(SetStable{Record: *o.Record, Rolling: ptr.To(o.rollingPace(Saved(o))), Why: n.begin}, ReasonRolling)
	}
	if d := awaitStartReplicas(o); d != nil {
		return *d
	}
	complete := s.available+o.givenUp() >= o.Stable.Replicas
	// LWS deletes its surge groups last, and a roll that ends before is unsafe: see awaitSurge.
	if complete && !o.Stable.hasSurge() {
		next := withRelease(o, func(r *record.Release) {
			r.Phase = n.then
			if n.then == record.Promoted {
				r.StableTemplate = nil
			}
		})
		return writeStable(SetStable{Record: next, Rolling: hold(), Why: n.done}, ReasonCleaningUp)
	}
	d := Decision{Reason: ReasonRolling}
	d.Message = fmt.Sprintf("%d of %d groups %s%s", s.available, o.Stable.Replicas, n.participle, o.describeUnready(o.Stable.All()))
	if complete {
		return awaitSurge(o, d)
	}
	d.Message += o.heldUpBy("keeps LeaderWorkerSet from the others", "have it roll them back beyond it")
	return awaitGroups(s, d, 0)
}

// Pace returns the configuration under which LWS promotes: the user's own. After a scale-down under the hold both of the
// user's numbers may round to 0, which LWS refuses; then one group at a time may be unavailable.
func Pace(saved rolling, replicas int) rolling {
	if isZeroPace(saved, replicas) {
		saved.MaxUnavailable = intstr.FromInt32(1)
	}
	return record.Native(saved)
}

// isZeroPace reports whether both numbers of a pace round to 0 for a number of replicas above 0.
func isZeroPace(r rolling, replicas int) bool {
	return replicas > 0 && scaledValue(r.MaxUnavailable, replicas, false) == 0 && scaledValue(r.MaxSurge, replicas, true) == 0
}

// Tolerated returns how many groups the user allows to be unavailable at once; at least one, since a budget of 0 would
// block every drain.
func Tolerated(saved rolling, replicas int) int {
	return max(scaledValue(saved.MaxUnavailable, replicas, false), 1)
}

// Tolerated is [Tolerated] of the workload's own configuration. A DisaggregatedSet counts units, and its replicas are those of its roles.
func (o Observation) Tolerated(replicas int) int {
	if o.hasRoles() {
		return max(o.shiftLacks(), 1)
	}
	return Tolerated(o.Record.Saved, replicas)
}

// scaledValue returns v of replicas as LWS computes it. An unreadable value counts as 1; the API server will refuse it. A percentage may
// have any number of digits, so the result is limited to the numbers that the spec can have.
func scaledValue(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 1
	}
	return min(max(n, math.MinInt32), math.MaxInt32)
}

// rollingPace returns the LWS rolling update configuration for this release: the user's own, in place without a surge, and
// without limits while the workload's groups receive no requests.
func (o Observation) rollingPace(saved rolling) rolling {
	switch {
	case o.inPlace():
		saved.MaxSurge = intstr.FromInt32(0) // the cluster may lack the capacity
	case o.stableIdle():
		saved = rolling{MaxUnavailable: intstr.FromString("100%"), MaxSurge: intstr.FromInt32(0)}
	}
	return o.skipBrokenGroups(Pace(saved, o.Stable.Replicas))
}

// hold returns the configuration under which LWS rolls nothing by itself.
func hold() *rolling { return ptr.To(record.Hold()) }

// isHold reports whether LWS rolls nothing under a configuration. It may still keep surge groups.
func isHold(r rolling) bool {
	return ptr.Deref(r.Partition, 0) == ptr.Deref(record.Hold().Partition, 0)
}

// holdWithSurge returns the hold of a rollback: the surge groups that exist stay until the others are restored, since they serve.
func (o Observation) holdWithSurge() rolling {
	h := record.Hold()
	present := o.Stable.Rolling.MaxSurge
	// Groups above maxSurge are those of a scale-down.
	surge := min(len(o.Stable.existingFrom(o.Stable.Replicas)), scaledValue(present, o.Stable.Replicas, true))
	if surge <= 0 {
		return h
	}
	h.MaxSurge = intstr.FromInt(surge)
	if isHold(o.Stable.Rolling) {
		h.MaxSurge = present // unchanged: a surge group that is lost meanwhile is no reason to write
	}
	return h
}

// recordRolling adds to a write of the record the configuration that it sets, and changes by other clients since the last write: those
// are the user's.
func recordRolling(o Observation, d Decision) Decision {
	a, ok := d.Action.(SetStable)
	if !ok || a.Rolling == nil {
		return d
	}
	if o.Record != nil {
		a.Record.Saved = Saved(o)
		if !record.SameRolling(lastSet(o), o.Stable.Rolling) {
			d = d.nameReverter("the rolling update configuration", o.Stable.RolledBy)
		}
	}
	a.Record = a.Record.WithSet(*a.Rolling)
	d.Action = a
	return d
}

// lastSet returns the configuration that the driver set last. If that was not the hold but the hold is found, the
// admission policy has set it with a new template: its partition identifies it, since no user sets one so high.
func lastSet(o Observation) rolling {
	set, found, hold := o.Record.LastSet(), o.Stable.Rolling, record.Hold()
	if !isHold(found) {
		return set
	}
	set.Partition = hold.Partition
	if found.MaxSurge == hold.MaxSurge {
		set.MaxSurge = hold.MaxSurge
	}
	// Without a surge LWS requires a maxUnavailable above 0, so the policy may have set that of the hold.
	replaced := set.MaxUnavailable.Type == intstr.String || scaledValue(set.MaxUnavailable, o.Stable.Replicas, false) == 0
	if replaced && found.MaxUnavailable == hold.MaxUnavailable {
		set.MaxUnavailable = hold.MaxUnavailable
	}
	return set
}

// Saved returns the user's own configuration, with changes by other clients since the driver's last write.
func Saved(o Observation) rolling { return record.Absorb(o.Record.Saved, lastSet(o), o.Stable.Rolling) }

// rollsAtPace reports whether LWS rolls at the pace of this release.
func rollsAtPace(o Observation) bool {
	set := lastSet(o)
	return !isHold(set) && record.SameRolling(o.Stable.Rolling, set) && record.SameRolling(set, o.rollingPace(o.Record.Saved))
}
