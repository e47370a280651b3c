// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// preparedRouting returns the routing in which the canary's objects exist, but it receives no requests.
func preparedRouting() traffic.Desired { return traffic.Desired{Prepared: true} }

// withdrawnRouting returns the routing in which an added workload that is to be deleted receives no requests. Which groups are the stable ones of a
// release in place, only its record tells.
func (o Observation) withdrawnRouting() traffic.Desired {
	if o.release() == nil && InPlace(o.Policy.Style) && !o.hasRoles() {
		return routingAfterSplit()
	}
	return preparedRouting()
}

// requestedRouting returns the routing that the host requested, as far as a canary exists to serve it.
func (o Observation) requestedRouting(planned int) traffic.Desired {
	if o.routesInPlace() {
		return o.requestedInPlace()
	}
	d := preparedRouting()
	c, requested := o.canary(), o.Record.Release.Traffic
	if c == nil || c.Deleting {
		return d
	}
	hasShare := requested != nil || o.movesAllRequests() || o.replacesUnits()
	if !hasShare || c.servingGroups(planned) == 0 || o.canaryBroken() != "" {
		return d
	}
	// Until an old leader is ready, clients of the stable Service reach the second set as after the handover.
	if o.shiftsBack() && o.Traffic != nil && o.Traffic.Facts().HandedOver && countReady(o.Stable.Groups) == 0 {
		return requestsToSecondSet()
	}
	if requested != nil {
		d.Mirror, d.HeaderRoutes = requested.Mirror, requested.HeaderRoutes
	}
	// A mirror and a header route test the second set before it serves.
	if !o.awaitsSecondSet() {
		d.Weight = o.shareFor(planned).effective
	}
	return d
}

// canaryBroken returns why requests to the updated groups fail and have to return to the stable side, "" if they need not. If that has no
// endpoint either, they stay where they are.
func (o Observation) canaryBroken() string {
	if o.Traffic == nil || o.Traffic.Facts().StableEndpoints == 0 {
		return ""
	}
	return o.Traffic.Facts().CanaryBroken
}

// servingGroups returns how many of the planned groups may receive requests.
func (w Workload) servingGroups(planned int) int {
	return w.count(func(g Group) bool { return g.mayServe(planned) })
}

// Requests returns the desired routing.
func Requests(o Observation) traffic.Desired {
	r := o.release()
	switch {
	case r == nil:
		return traffic.Desired{}
	case o.routesInPlace():
		return o.requestsInPlace()
	case o.handingOver() && !o.Stable.Deleting:
		return o.requestsHandedOver()
	case RemovesAdded(o):
		return preparedRouting()
	case takesShare(r.Phase), o.shiftsBack():
		return o.requestedRouting(o.routedGroups())
	// The requests stay where they are: only the second set can carry them.
	case o.awaitsStable():
		return traffic.Desired{Prepared: true, Weight: o.Traffic.Facts().Weight}
	case len(o.Added) > 0:
		return preparedRouting()
	default:
		return traffic.Desired{}
	}
}

// RemovesAdded reports whether the added workloads are to be deleted, so that their leaders only finish their requests.
func RemovesAdded(o Observation) bool {
	r, c := o.release(), o.canary()
	switch {
	case len(o.Added) == 0:
		return false
	case r == nil:
		return true
	case o.completesSecondSet():
		return c == nil || c.Deleting
	case o.shiftsBack() && c != nil && !c.Deleting && c.Replicas > 0:
		return false
	case r.Phase == record.Promoting, r.Phase == record.RollingBack, r.Phase == record.HandingOver:
		return false
	case r.Phase == record.Progressing:
		templateChanged := o.Stable.Revision != "" && o.Stable.Revision != r.UpdateRevision
		return c == nil || c.Deleting || templateChanged && refuseTemplate(o) == nil // a template that is refused changes nothing
	default:
		return true
	}
}

// drainsStable reports whether the user's workload is about to be rolled while all requests go to the canary.
func (o Observation) drainsStable() bool {
	phase := phaseOf(o.release())
	if phase != record.Promoting && phase != record.Standby {
		return false
	}
	return isHold(o.Stable.Rolling) && o.requestedRouting(o.canaryCapacity()).Weight == 100
}

// drainStable waits, before LWS rolls the user's workload, until its leaders receive no requests and have finished
// theirs. Nil means that they have, or that the host requested that they continue to receive requests.
func drainStable(o Observation, v traffic.View) *Decision {
	switch {
	case o.Traffic == nil || v.Stage == traffic.Blocked || !o.drainsStable():
		return nil
	case !inForce(v):
		return awaitTraffic(v)
	}
	return awaitDrained(o)
}

// drainingGroups returns the groups that are removed next and whose leaders receive no more requests, so that they only finish theirs.
func (o Observation) drainingGroups() []Group {
	switch {
	case o.Traffic == nil:
		return nil
	case o.routesInPlace():
		return o.drainingInPlace()
	}
	var out []Group
	if o.drainsStable() && o.Traffic.Look(o.requestedRouting(o.canaryCapacity())).Stage >= traffic.Acknowledged {
		out = o.Stable.existingFrom(0)
	}
	if o.handingOver() {
		if o.stableDrained() || !isWithdrawn(o.Traffic.Look(o.requestsHandedOver())) {
			return nil
		}
		return o.drainedGroups(o.stableSide(), o.Stable.existingFrom(0))
	}
	// A leader that the Service may still select would get new requests while it finishes the old ones.
	if leaving := o.leavingGroups(); len(out) == 0 && !slices.ContainsFunc(leaving, o.mayBeSelected) {
		out = leaving
	}
	if RemovesAdded(o) {
		if isWithdrawn(o.Traffic.Look(o.withdrawnRouting())) {
			out = append(out, o.drainedGroups(o.Added[0].Carries, o.Added[0].existingFrom(0))...)
		}
		return out
	}
	c := o.canary()
	if c == nil || o.Record.Release.Phase != record.Progressing && !o.completesSecondSet() && !o.shiftsBack() {
		return out
	}
	planned := o.plannedGroups()
	if planned >= c.Replicas {
		return out
	}
	if v := o.Traffic.Look(o.requestedRouting(planned)); !inForce(v) || c.mayReach(v, planned) {
		return out
	}
	return append(out, c.existingFrom(planned)...)
}

// existingFrom returns the groups that exist from an index on.
func (w Workload) existingFrom(index int) []Group {
	var out []Group
	for _, g := range w.Groups {
		if g.Index >= index && g.Revision != "" {
			out = append(out, g)
		}
	}
	return out
}

// hasOtherRevisions reports whether a group from an index on is not at the revision of the template in the spec.
func (w Workload) hasOtherRevisions(index int) bool {
	return slices.ContainsFunc(w.Groups, func(g Group) bool { return g.Index >= index && g.Revision != "" && g.Revision != w.Revision })
}

// mayReach reports whether leaders from an index on may still receive requests.
func (w Workload) mayReach(v traffic.View, index int) bool {
	return slices.ContainsFunc(w.existingFrom(index), func(g Group) bool {
		return slices.Contains(v.CanaryPods, g.Leader) || v.HandedOver && slices.Contains(v.StablePods, g.Leader)
	})
}

// canaryCapacity returns how many groups the canary is asked to have.
func (o Observation) canaryCapacity() int {
	if c := o.canary(); c != nil {
		return c.Replicas
	}
	return 0
}

// mayServe reports whether a group's leader may receive requests: the group is ready, and is one of those planned.
func (g Group) mayServe(planned int) bool { return g.Ready && g.Index < planned }

// reconcileTraffic returns the next write towards the desired routing, nil if none is due, and the state of the routing.
// Without a traffic policy that is verified.
func reconcileTraffic(o Observation, want traffic.Desired) (traffic.View, *Decision) {
	if o.Traffic == nil {
		return traffic.View{Facts: traffic.Facts{Prepared: true}, Pinned: true, Withdrawn: true, Stage: traffic.Verified}, nil
	}
	v := o.Traffic.Look(want)
	if v.Stage != traffic.Drifted {
		return v, nil
	}
	d := Decision{
		Action: SetTraffic{Desired: want, Why: v.Write.String()}, Reason: v.Reason,
		Message: "requests are being routed: " + v.Message,
	}
	// A write from before the release is no reason to blame its author.
	if r := o.release(); r != nil && v.Write.ChangedAt.After(r.StartedAt) {
		d = d.nameReverter(v.Write.Key.String(), v.Write.ChangedBy)
	}
	return v, &d
}

// inForce reports whether the desired routing is in force, as far as routes and gateways show. A stable workload without
// ready leaders does not keep the canary from its share: the release may be its repair.
func inForce(v traffic.View) bool {
	return v.Stage == traffic.Verified || v.Stage == traffic.Acknowledged && v.Reason == traffic.ReasonNoStableEndpoints
}

// isIsolated reports whether canary leaders may become ready without receiving requests through the stable Service.
func isIsolated(v traffic.View) bool {
	return v.Pinned && v.Stage != traffic.Blocked && v.Reason != traffic.ReasonIsolationNotInForce
}

func awaitTraffic(v traffic.View) *Decision {
	return &Decision{Reason: v.Reason, Message: v.Message, Wait: WaitTraffic}
}

// awaitWithdrawn withdraws all requests from the canary and lets it finish those in flight, before any of its groups is
// deleted. Nil means done.
func awaitWithdrawn(o Observation) *Decision {
	v, d := reconcileTraffic(o, o.withdrawnRouting())
	switch {
	case d != nil:
		return d
	case !v.Withdrawn, v.Reason == traffic.ReasonIsolationNotInForce: // the stable Service may still lead to the groups
		return awaitTraffic(v)
	}
	return awaitDrained(o)
}

// restoreTraffic removes what the release left on the user's Services and routes. Nil means done.
func restoreTraffic(o Observation) *Decision {
	v, d := reconcileTraffic(o, traffic.Desired{})
	switch {
	case d != nil:
		return d
	case v.Reason == traffic.ReasonEndpointsNotFollowing:
		d = awaitTraffic(v)
		d.Recheck = time.Second // without a record no event of these endpoints leads here
		return d
	case v.Stage <= traffic.Blocked:
		return awaitTraffic(v)
	}
	if d = labelLeaders(o, o.Stable, 0, true); d != nil {
		d.Message = "requests are routed as before the release; the labels on leaders are being removed"
	}
	return d
}

// returnRequests returns the write towards the routing of a rollback, nil if none is due: requests that the stable groups can't take yet must not keep
// these from being repaired.
func returnRequests(o Observation) *Decision {
	if _, d := reconcileTraffic(o, Requests(o)); d != nil && limitShares(o, d.Action) == nil {
		return d
	}
	return nil
}

// canaryWeight returns the percentage of requests to the canary's leaders: through its Service, or the stable one after a handover.
func (o Observation) canaryWeight() int {
	if f := o.Traffic.Facts(); !f.HandedOver {
		return f.Weight
	}
	return 100 //nolint:mnd // percent
}

// isWithdrawn reports whether no share of the requests reaches the update revision, as far as routes and gateways show.
func isWithdrawn(v traffic.View) bool { return v.Withdrawn && v.Weight == 0 }

// labelLeaders stops requests to leaders of groups that are not ready, even if the leader pod itself is. Only once the routes are in force, as
// settled says, a group that is about to be deleted may lose its label.
func labelLeaders(o Observation, w Workload, planned int, settled bool) *Decision {
	if o.Traffic == nil {
		return nil
	}
	return o.labelServing(w, func(g Group) bool {
		if g.Serving && g.Ready && !settled {
			return true
		}
		if !g.mayServe(planned) {
			return false
		}
		return w.Name != o.Stable.Name || g.atRevision(o.Record.Release.UpdateRevision)
	})
}

// labelServing returns the first write of a serving label that is due: a leader has the label if its group serves. Nil means that none is due.
// Leaders of other roles come first: those of the entry role need them.
func (o Observation) labelServing(w Workload, serves func(Group) bool) *Decision {
	for _, groups := range [][]Group{o.poolPartners(w), w.Groups} {
		for _, g := range groups {
			if want := serves(g); g.Serving != want && g.Revision != "" {
				m := LabelServing{Name: w.Name, Leader: g.Leader, Serves: want}
				return &Decision{Action: m, Reason: ReasonLabelling, Message: m.String()}
			}
		}
	}
	return nil
}

// routeCanary applies the requested routing while a canary serves: the routes, then the serving labels. It returns the
// state of the routing, and a decision if a write is due.
func routeCanary(o Observation, planned int) (traffic.View, *Decision) {
	c := o.canary()
	if c == nil || c.Deleting {
		return reconcileTraffic(o, o.requestedRouting(planned))
	}
	return routeAndLabel(o, *c, planned, o.requestedRouting(planned))
}

// routeAndLabel applies a routing: the routes, then the serving labels. A share that grows comes after the labels of the leaders that are to
// carry it.
func routeAndLabel(o Observation, w Workload, planned int, want traffic.Desired) (traffic.View, *Decision) {
	v, write := reconcileTraffic(o, want)
	if grows := v.Pinned && v.Prepared && want.Weight > v.Weight; write != nil && !grows {
		return v, write
	}
	if label := labelLeaders(o, w, planned, write == nil && inForce(v)); label != nil {
		return v, label
	}
	return v, write
}

// setWeight sets the percentage of requests to the update revision: that of the routes, unless it follows from group counts.
func (s *Progress) setWeight(o Observation) {
	if o.Traffic == nil || o.Record == nil || o.Record.Release == nil || o.splitEnded() {
		return
	}
	switch o.Record.Release.Phase {
	case record.Promoted, record.Nothing:
		return // both sides run the update revision
	case record.HandingOver:
		s.Weight, s.Routed = 100, true // through the canary's Service or the stable one
		return
	default:
	}
	if !Unread(o) {
		s.Weight, s.Routed = o.canaryWeight(), true
	}
}

// protectRequests returns the write that takes requests away from updated groups that can't serve them. It comes before waits for others,
// such as LWS or an autoscaler, and before writes that may be refused. Nil means that none is due.
func protectRequests(o Observation) *Decision {
	if d := labelStable(o); d != nil {
		return d // requests can't return to old units without it
	}
	r, c := o.release(), o.canary()
	if o.inPlace() {
		c = &o.Stable
	}
	if o.Traffic == nil || c == nil || c.Deleting || o.inPlace() && (r.SplitEnded || o.splitChanges() || r.Phase != record.Progressing) {
		return nil
	}
	want := Requests(o)
	if o.inPlace() { // of another template, the split may have to end instead
		want = o.requestedInPlace()
	}
	v, d := reconcileTraffic(o, want)
	protects := d != nil && (want.Weight < v.Weight || v.Write.Moves && !v.Write.Grows)
	if protects && !v.Write.AfterOthers {
		return d
	}
	label := o.labelServing(*c, func(g Group) bool { return g.Serving && g.Ready })
	if protects {
		return cmp.Or(label, d)
	}
	return label
}
