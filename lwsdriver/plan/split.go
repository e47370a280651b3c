// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// In place, stable and updated groups belong to one workload. Requests are split between them while a batch leaves stable
// groups. Before the last stable groups are replaced, the split ends: the stable Service selects the leaders of both
// revisions, the routes lose the share, and requests follow the groups. The record notes the end of the split first, so that a driver
// that starts in between does not isolate the few stable groups.

// splitChanges reports whether the split is to end, or to begin again, and the record does not say so yet. The split begins again once every
// group is stable and the batch leaves stable groups. Isolating the Service earlier would leave the updated groups without requests.
func (o Observation) splitChanges() bool {
	if !o.routesInPlace() {
		return false
	}
	r := o.Record.Release
	progressing := r.Phase == record.Progressing
	if r.SplitEnded {
		return progressing && !o.coversAllGroups() && len(o.groupsOffRevision()) == 0
	}
	return progressing && (o.coversAllGroups() || o.shareForgotten()) // a promotion begins with its end
}

// shareForgotten reports whether the record has no share although groups are updated, and the stable groups can't carry all requests. That happens
// after an old object was restored.
func (o Observation) shareForgotten() bool {
	return o.Record.Release.Traffic.RequestedWeight() == 0 && len(o.groupsOffRevision()) > 0 && o.stableOverloaded()
}

// stableOverloaded reports whether the stable groups couldn't carry all requests if the stable Service selected only them.
func (o Observation) stableOverloaded() bool {
	f := o.carrierFacts()
	lacked := o.lackingGroups(f, f.Weight)
	if !f.Isolated {
		f.StableEndpoints, f.StablePods = o.pinnedLeaders(preparedRouting()), nil
	}
	return o.lacksTooMany(f, 0, lacked)
}

// splitEnded reports whether requests follow the groups, and are to. It is called for each group, so the cheap conditions come first.
func (o Observation) splitEnded() bool {
	return o.routesInPlace() && o.Record.Release.SplitEnded && !o.splitChanges()
}

// moveSplit returns the decision that records that the split ends, or begins again, or nil if neither is due. Another write of the record
// may include it.
func moveSplit(o Observation) *Decision {
	if !o.splitChanges() {
		return nil
	}
	return recordSplit(o, !o.Record.Release.SplitEnded)
}

// recordSplit records whether the split has ended, before the effect.
func recordSplit(o Observation, splitEnded bool) *Decision {
	why := "split requests by weight again, since every group is at the stable revision"
	if splitEnded {
		why = "end the split of requests, which follow the groups from now on"
	}
	next := amendRelease(o, func(r *record.Release) { r.SplitEnded = splitEnded })
	pace := o.unchangedPace() // LWS continues with the batch
	if o.Record.Release.Phase == record.RollingBack {
		pace = record.Hold() // LWS stops until requests have moved
	}
	return ptr.To(writeStable(SetStable{Record: next, Rolling: &pace, Why: why}, ReasonOpening))
}

// routingAfterSplit returns the routing once the split has ended.
func routingAfterSplit() traffic.Desired { return traffic.Desired{Prepared: true, SplitEnded: true} }

// routesInPlace reports whether the release routes requests between groups of the workload itself.
func (o Observation) routesInPlace() bool { return o.Traffic != nil && o.inPlace() }

// coversAllGroups reports whether the batch leaves no stable group.
func (o Observation) coversAllGroups() bool {
	planned := o.plannedGroups()
	return planned > 0 && planned >= o.Stable.Replicas
}

// allUpdated reports whether every group is at the update revision.
func (o Observation) allUpdated() bool {
	to := o.Record.Release.UpdateRevision
	return o.Stable.Replicas == o.Stable.count(func(g Group) bool { return g.Index < o.Stable.Replicas && g.atRevision(to) })
}

// staysStable reports whether, in place, the isolated stable Service may select a group.
func (o Observation) staysStable(g Group) bool {
	return g.Revision == "" || g.atRevision(o.Record.Release.StableRevision)
}

// requestedInPlace returns the requested routing, as far as groups exist to serve it.
func (o Observation) requestedInPlace() traffic.Desired {
	d := o.keptInPlace()
	r := o.Record.Release
	serves := func(g Group) bool { return g.mayServe(o.Stable.Replicas) && g.atRevision(r.UpdateRevision) }
	if r.Traffic != nil && !o.splitEnded() && o.canaryBroken() == "" && slices.ContainsFunc(o.Stable.Groups, serves) {
		d.Weight = o.shareFor(o.plannedGroups()).effective
		d.Mirror = r.Traffic.Mirror
		d.HeaderRoutes = r.Traffic.HeaderRoutes
	}
	return d
}

// keptInPlace returns the routing without a share for the update revision.
func (o Observation) keptInPlace() traffic.Desired {
	if o.splitEnded() {
		return routingAfterSplit()
	}
	return preparedRouting()
}

// requestsInPlace returns the desired routing.
func (o Observation) requestsInPlace() traffic.Desired {
	switch r := o.Record.Release; {
	case r.UpdateRevision == "":
		return traffic.Desired{}
	case r.Phase == record.Progressing && r.UpdateRevision == o.Stable.Revision && len(o.abandonedGroups()) == 0:
		return o.requestedInPlace()
	case takesShare(r.Phase), r.Phase == record.RollingBack:
		return o.keptInPlace()
	default:
		return traffic.Desired{}
	}
}

// unchangedPace returns the present configuration of the batch, in a form that LWS accepts: after a scale-down both
// numbers may round to 0. If another client changed the configuration, it returns the hold: no release asked for that change.
func (o Observation) unchangedPace() rolling {
	same := o.Record.LastSet()
	if !record.SameRolling(same, o.Stable.Rolling) {
		return record.Hold()
	}
	if o.Stable.Replicas > 0 && scaledValue(same.MaxUnavailable, o.Stable.Replicas, false) == 0 {
		same.MaxUnavailable = intstr.FromInt32(1) // in place there is no surge
	}
	return same
}

// routeInPlace applies the requested routing while batches run: the routes, then the serving labels. It returns the
// state of the routing, and a decision if a write is due.
func routeInPlace(o Observation) (traffic.View, *Decision) {
	if d := moveSplit(o); d != nil {
		return traffic.View{}, d
	}
	if o.splitEnded() {
		return reconcileTraffic(o, o.requestedInPlace())
	}
	return routeAndLabel(o, o.Stable, o.Stable.Replicas, o.requestedInPlace())
}

// endSplit ends the split of requests. Nil means that it has ended, and every group may be replaced.
func endSplit(o Observation) *Decision {
	if !o.routesInPlace() {
		return nil
	}
	v, d := reconcileTraffic(o, routingAfterSplit())
	if d == nil && !splitEndInForce(v) {
		d = awaitTraffic(v)
	}
	return d
}

// splitEndInForce reports whether requests are no longer split, as far as routes and gateways show.
func splitEndInForce(v traffic.View) bool { return isWithdrawn(v) && !v.Pinned }

// awaitWithdrawnInPlace withdraws the share of the updated groups and lets them finish their requests, before any of them is
// restarted. Nil means that this is done, or that the stable Service selects the updated groups like others.
func awaitWithdrawnInPlace(o Observation) *Decision {
	if !o.routesInPlace() || o.Record.Release.UpdateRevision == "" {
		return nil
	}
	offRevision := o.groupsOffRevision()
	anyReady := slices.ContainsFunc(offRevision, func(g Group) bool { return g.Ready })
	v, d := reconcileTraffic(o, o.keptInPlace())
	switch {
	// Without the share, all requests would go to too few stable groups. The split ends instead, and requests follow all groups.
	case !o.splitEnded() && v.Stage != traffic.Unread && anyReady && o.stableOverloaded():
		return recordSplit(o, true)
	case d != nil:
		return d
	case !v.Withdrawn:
		return awaitTraffic(v)
	case o.splitEnded() || len(offRevision) == 0:
		return nil
	}
	return awaitDrained(o)
}

// drainingInPlace returns the groups that are restarted next, once they receive no share of the requests.
func (o Observation) drainingInPlace() []Group {
	r := o.Record.Release
	groups := o.groupsOffRevision()
	if r.Phase == record.Progressing && o.Stable.Revision == r.UpdateRevision {
		groups = o.abandonedGroups()
	}
	restarts := r.Phase == record.Progressing || r.Phase == record.RollingBack
	if !restarts || o.splitEnded() || o.Stable.Revision == "" || len(groups) == 0 {
		return nil
	}
	if !isWithdrawn(o.Traffic.Look(preparedRouting())) {
		return nil
	}
	return groups
}

// lowersPartition reports whether LWS may update more groups under a configuration than under the present one.
func (o Observation) lowersPartition(next rolling) bool {
	return ptr.Deref(next.Partition, 0) < ptr.Deref(o.Stable.Rolling.Partition, 0)
}

// awaitSplit returns what to wait for before the first batch, and before LWS updates groups: the isolation of the stable groups, or the end
// of the split.
func (o Observation) awaitSplit(v traffic.View) *Decision {
	if !o.routesInPlace() {
		return nil
	}
	inForce := isIsolated(v)
	if o.splitEnded() {
		inForce = splitEndInForce(v)
	}
	if inForce {
		return nil
	}
	return awaitTraffic(v)
}

// returnPace returns the configuration under which LWS rolls back to the stable template: the hold until requests have left the updated groups
// and reach the ready ones, as far as fresh caches confirm. Requests move only once the record says that the release rolls back.
func (o Observation) returnPace(saved rolling) rolling {
	pace := o.rollingPace(saved)
	if o.whatIsUnknown() != nil || awaitWithdrawnInPlace(o) != nil || limitRoll(o, SetStable{Rolling: &pace}) != nil {
		return record.Hold()
	}
	return pace
}

// checkSplit: no group is replaced while it receives a share of the requests, or while no other could serve them.
func checkSplit(o Observation, a SetStable) error {
	r := a.Record.Release
	if !o.routesInPlace() || r == nil || a.Rolling == nil || !o.lowersPartition(*a.Rolling) {
		return nil
	}
	f := o.Traffic.Facts()
	rollsBack, all := r.Phase == record.RollingBack, ptr.Deref(a.Rolling.Partition, 0) == 0
	if (rollsBack || all) && f.Weight > 0 {
		return fmt.Errorf("groups are replaced while they get %d %% of the requests", f.Weight)
	}
	switch {
	case rollsBack:
		return nil
	case all && f.Isolated:
		return errors.New("the last stable group is replaced while the stable Service selects no other")
	case !all && !f.Isolated && !r.SplitEnded:
		return errors.New("groups are updated before the stable Service is isolated")
	}
	return nil
}
