// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// In style partition the new units of a DisaggregatedSet take the place of old ones, so that a full cluster can be released with its own
// capacity. The bounds of both revisions move a step at a time, within maxUnavailable and maxSurge of each role. Until the promotion every
// slice keeps a whole unit at the stable revision: it serves requests, LWS deletes children without groups, and it is the way back.

// replacesUnits reports whether the release replaces units instead of adding them. One that is over has none left.
func (o Observation) replacesUnits() bool {
	return o.hasRoles() && o.release() != nil && o.Record.Release.Phase.Unfinished() && InPlace(o.Policy.Style)
}

// oneSetServes reports whether a promotion moves all requests at once. Where units are replaced, each new one takes the share of an old one.
func (o Observation) oneSetServes() bool { return o.switchesSets() && !o.replacesUnits() }

// shiftsBack reports whether old units take the place of new ones: the release is rolled back, or its template is no longer the one in
// the spec.
func (o Observation) shiftsBack() bool {
	if !o.replacesUnits() {
		return false
	}
	switch r := o.release(); r.Phase {
	case record.RollingBack:
		return true
	case record.Progressing, record.Promoting, record.Standby:
		return o.Stable.Revision != "" && o.Stable.Revision != r.UpdateRevision
	default:
		return false
	}
}

// rollbackPhase returns the phase in which a rollback begins. RollingBack restores groups that batches, a promotion or a start from 0 groups have
// updated or removed.
func (o Observation) rollbackPhase() record.Phase {
	promotionUpdated := o.Record.Release.Phase != record.Progressing && !o.stableUnchanged()
	startUpdated := o.lostStable() && !o.hasRoles()
	if o.replacesUnits() || o.inPlace() || promotionUpdated || startUpdated || o.drainsRoles() {
		return record.RollingBack
	}
	return record.CleaningUp
}

// unitsOf returns how many units of a slice a number of groups of each role makes: the most of which roleGroups returns no more.
func (o Observation) unitsOf(groups func(Role) int) int {
	full := o.entryRole().Replicas
	units := full
	for _, r := range o.Roles {
		if n := max(groups(r), 0); n < r.Replicas {
			units = min(units, n*full/r.Replicas)
		}
	}
	return units
}

// shiftableUnits returns how many units of a slice may be at the update revision before the promotion.
func (o Observation) shiftableUnits() int {
	return o.unitsOf(func(r Role) int { return r.Replicas + r.MaxSurge - o.roleGroups(r, 1) })
}

// beforePromotion returns how many of a number of groups a release may have beside the stable ones: if it replaces units, the last follow in the
// promotion, in the place of old ones.
func (o Observation) beforePromotion(groups int) int {
	if !o.replacesUnits() {
		return groups
	}
	most := o.shiftableUnits() * o.Slices
	if c := o.canary(); c != nil && !o.handingOver() {
		have := 0 // the user may have lowered the pace since: no group starts twice
		for slice := range o.Slices {
			have += o.unitsOf(func(r Role) int { return o.childOf(slice, c.Carries, r.Name).Replicas })
		}
		most = max(most, have)
	}
	return min(groups, most)
}

// shiftLacks returns how many units the roles may lack.
func (o Observation) shiftLacks() int { return o.sliceLacks() * o.Slices }

// sliceLacks returns how many units the roles of a slice may lack.
func (o Observation) sliceLacks() int {
	return o.entryRole().Replicas - o.unitsOf(func(r Role) int { return r.Replicas - r.MaxUnavailable })
}

// shiftBackTo returns to how many units the update revision may shrink, from the last slice on: in each slice the units that stay and the old
// units that are ready lack no more than they may. New units that are not ready are of no use.
func (o Observation) shiftBackTo() int {
	c := o.canary()
	if c == nil || o.forced() {
		return 0
	}
	full, placed := o.entryRole().Replicas, o.unitsPerSlice(c.Carries, c.Replicas)
	first := c.Replicas // the index of the first new unit of the slice
	for slice := len(placed) - 1; slice >= 0; slice-- {
		first -= placed[slice]
		stays := min(full, o.boundedGroups(slice, o.stableSide(), o.entryRole()))
		// It is enough that they are ready: limitShares keeps the requests with the new units until the old ones receive them.
		oldReady := countReady(groupsFrom(o.Stable.Groups, slice*full, stays))
		needed := max(full-o.sliceLacks()-oldReady, 0)
		useful := afterReady(groupsFrom(c.Groups, first, placed[slice])) - first
		if n := min(needed, useful); n > 0 {
			return first + n
		}
	}
	return 0
}

// newGroupsNeeded returns how many groups of a role the update revision keeps in a slice on the way back, or after a scale-down, so that the role lacks
// no more than it may until old ones are ready. Those that are not ready are of no use.
func (o Observation) newGroupsNeeded(slice int, r Role) int {
	c := o.canary()
	if o.forced() || c == nil {
		return 0
	}
	return min(o.shortfall(slice, o.stableSide(), r), afterReady(o.childOf(slice, c.Carries, r.Name).Groups))
}

// afterReady returns the index after that of the last ready group, 0 without one.
func afterReady(groups []Group) (index int) {
	for _, g := range groups {
		if g.Ready {
			index = max(index, g.Index+1)
		}
	}
	return index
}

// shortfall returns how many ready groups a role of a slice lacks beyond maxUnavailable, if only the groups that a revision keeps count. It is
// negative if the role has groups to spare.
func (o Observation) shortfall(slice int, revision string, r Role) int {
	kept := groupsFrom(o.childOf(slice, revision, r.Name).Groups, 0, o.boundedGroups(slice, revision, r))
	return r.Replicas - r.MaxUnavailable - countReady(kept)
}

// boundedGroups returns how many groups of a role of a slice a revision keeps by the bounds. LWS may be removing the others, which are ready until
// then.
func (o Observation) boundedGroups(slice int, revision string, r Role) int {
	stays := o.childOf(slice, revision, r.Name).Replicas
	if o.Bounds == nil {
		return stays
	}
	if least, bounded := o.Bounds.Min[Member(slice, r.Name)]; bounded && revision == o.Bounds.Stable {
		stays = min(stays, least)
	}
	if revision == o.Bounds.Update {
		stays = min(stays, o.Bounds.Exact[Member(slice, r.Name)])
	}
	return stays
}

// oldGroupsNeeded returns how many old groups of a role a promotion keeps in a slice until it is the role's turn: one at least.
func (o Observation) oldGroupsNeeded(slice int, r Role) int {
	return max(o.shortfall(slice, o.Record.Release.UpdateRevision, r), min(r.Replicas, 1))
}

// isReplaced reports whether, in a promotion, a role may lose its last old group: its new ones that are ready lack no more than it may, or than the
// policy tolerates in all slices.
func (o Observation) isReplaced(r Role) bool {
	lacks := 0
	if o.replacesUnits() {
		for slice := range o.Slices {
			if short := o.shortfall(slice, o.Record.Release.UpdateRevision, r); short > 0 {
				lacks += short + r.MaxUnavailable // of all its groups, as the policy's tolerance is
			}
		}
	}
	return lacks <= o.roleGroups(r, o.Policy.Threshold(o.Record.Release.Groups))
}

// awaitsNewGroups reports whether a role that has old groups may not lose them yet.
func (o Observation) awaitsNewGroups() bool {
	return slices.ContainsFunc(o.Roles, func(r Role) bool { return !o.isReplaced(r) && o.hasGroupsAt(o.stableSide(), r.Name) })
}

// lowerLast has the promotion leave one old group of each role, and remove these role by role once the new ones are enough.
func (b *Bounds) lowerLast(o Observation) {
	if o.awaitsNewGroups() {
		for slice := range o.Slices {
			for _, r := range o.Roles {
				at := Member(slice, r.Name)
				b.Min[at] = min(b.Min[at], o.oldGroupsNeeded(slice, r)) // they get no requests any more
			}
		}
		return
	}
	for _, r := range o.drainOrder() {
		if r.Replicas > 0 || o.hasGroupsAt(b.Stable, r.Name) {
			b.setMin(o, r, 0)
			return // the next role is drained once this one is
		}
	}
}

// stayingUnits returns how many units the stable revision keeps by the bounds.
func (o Observation) stayingUnits() (units int) {
	for slice := range o.Slices {
		units += o.unitsOf(func(r Role) int { return o.boundedGroups(slice, o.stableSide(), r) })
	}
	return units
}

// groupsFrom returns the groups with n indices from an index on.
func groupsFrom(groups []Group, from, n int) []Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return g.Index < from || g.Index >= from+n })
}

// countReady returns how many of the groups are ready.
func countReady(groups []Group) int {
	return Workload{Groups: groups}.count(func(g Group) bool { return g.Ready })
}

// receivesRequests reports whether a group of the stable revision is ready, and requests reach it if they are routed.
func (o Observation) receivesRequests(g Group) bool {
	return g.Ready && (o.Traffic == nil || slices.Contains(o.Traffic.Facts().StablePods, g.Leader))
}

// stepTowards returns bounds that are a step from the present ones towards those of b, in which each slice has a number of new units.
func (o Observation) stepTowards(b Bounds, placed []int) Bounds {
	if !o.replacesUnits() || o.Bounds == nil || o.Bounds.Stable != b.Stable {
		return b
	}
	leaving := o.leavingGroups()
	for slice, units := range placed {
		o.stepSlice(b, slice, units, leaving)
	}
	if b.Update != "" {
		b.Max = maps.Clone(b.Min) // LWS scales a restored template's children up
	}
	return b
}

// stepSlice changes b.Min and b.Exact of one slice to a step from the present bounds.
func (o Observation) stepSlice(b Bounds, slice, units int, leaving []Group) {
	have := o.Bounds
	at := func(r Role) string { return Member(slice, r.Name) }
	// had returns how many groups of a role the update revision has by the bounds. A bound counts only as far as groups exist, since the user
	// may have scaled the role meanwhile.
	had := func(r Role) int {
		if have.Update != b.Update {
			return 0
		}
		return min(have.Exact[at(r)], o.groupsWith(slice, b.Update, r, 0))
	}
	// surgeAllows returns how many groups of a role the update revision may have beside the stable ones.
	surgeAllows := func(r Role) int {
		stable := o.groupsWith(slice, b.Stable, r, o.stableGroups(slice, r))
		return max(had(r), o.fitting(slice, b.Update, r, r.Replicas+r.MaxSurge-stable-o.otherGroups(slice, r, b.Stable, b.Update)))
	}
	fits := 0 // no unit starts on the way back
	if !o.shiftsBack() {
		fits = o.unitsOf(surgeAllows)
	}
	for _, r := range o.Roles {
		entry := r.Name == o.entryRole().Name
		switch {
		case b.Update == "":
		case o.handingOver(): // each role by itself, so that none lacks more than it may
			b.Exact[at(r)] = min(o.roleGroups(r, units), surgeAllows(r))
		default:
			reached := max(had(r), o.roleGroups(r, fits)) // only whole units are added
			needed := min(had(r), o.newGroupsNeeded(slice, r))
			b.Exact[at(r)] = max(min(o.roleGroups(r, units), reached), needed)
		}
		if b.Min[at(r)] == 0 {
			continue // the promotion removes it
		}
		if o.handingOver() {
			// The last old groups stay until it is the role's turn, also if another client has lowered the bound.
			last := min(o.childOf(slice, b.Stable, r.Name).Replicas, o.oldGroupsNeeded(slice, r))
			b.Min[at(r)] = min(max(have.Min[at(r)], last), r.Replicas)
			continue
		}
		updated := o.groupsWith(slice, have.Update, r, max(b.Exact[at(r)], had(r)))
		room := o.fitting(slice, b.Stable, r, r.Replicas+r.MaxSurge-updated-o.otherGroups(slice, r, b.Stable, have.Update))
		now := min(o.stableGroups(slice, r), max(o.childOf(slice, b.Stable, r.Name).Replicas, room))
		goal := o.stableGoal(r, units)
		switch {
		case now < goal: // old groups return
			b.Min[at(r)] = min(goal, max(now, room))
		case b.Units != have.Units, // which groups leave, and so drain, follows from the units
			!entry && len(leaving) > 0,            // the groups of the entry role leave first: the others serve them
			entry && !o.requestsFinished(leaving): // requests
			b.Min[at(r)] = now
		default:
			b.Min[at(r)] = o.lowestAllowed(slice, r, now, goal)
		}
	}
}

// stableGroups returns how many groups of a role of a slice the stable revision still has, or is to have. Groups that another client let go stay.
func (o Observation) stableGroups(slice int, r Role) int {
	return min(max(o.Bounds.Min[Member(slice, r.Name)], o.childOf(slice, o.Bounds.Stable, r.Name).Replicas), r.Replicas)
}

// stableGoal returns how many groups of a role the stable revision keeps beside a number of new units of a slice.
func (o Observation) stableGoal(role Role, units int) int {
	if o.shiftsBack() {
		return role.Replicas
	}
	return max(role.Replicas-o.roleGroups(role, units), o.roleGroups(role, 1))
}

// groupsWith returns how many groups a role of a slice has at a revision, those of which pods are still being deleted included, once it is to have
// at least a number of them: one that is being deleted has its index until it is gone.
func (o Observation) groupsWith(slice int, revision string, role Role, least int) int {
	c := o.childOf(slice, revision, role.Name)
	least = max(least, c.Replicas)
	left := o.deletedGroups(func(d Child) bool { return d.Slice == slice && d.Role == role.Name && d.Revision == revision })
	above := func(g Group) bool { return g.Index >= least }
	return least + Workload{Groups: c.Groups}.count(above) + Workload{Groups: left}.count(above)
}

// fitting returns how many groups a revision may be given, so that a role of a slice has at most a number of them at this revision.
func (o Observation) fitting(slice int, revision string, role Role, most int) int {
	has := o.childOf(slice, revision, role.Name).Replicas
	for n := most; n > has; n-- { // as many times as groups are being deleted
		if o.groupsWith(slice, revision, role, n) <= most {
			return n
		}
	}
	return min(has, most)
}

// otherGroups returns how many groups of a role of a slice are left of deleted children at other revisions than these.
func (o Observation) otherGroups(slice int, role Role, revisions ...string) int {
	return len(o.deletedGroups(func(d Child) bool {
		return d.Slice == slice && d.Role == role.Name && !slices.Contains(revisions, d.Revision)
	}))
}

// deletedGroups returns the groups that are left of the deleted children that match.
func (o Observation) deletedGroups(match func(Child) bool) (groups []Group) {
	for _, c := range o.DeletedChildren {
		if match(c) {
			groups = append(groups, c.Groups...)
		}
	}
	return groups
}

// lowestAllowed returns how many groups of a role of a slice may be left at the stable revision, from had down to keep: a group may be removed, the last one
// first, if it is broken, or if the others and those of the update carry the requests of the role, but for what may be unavailable. A group that
// starts counts as one that is ready, since it may become so before it is removed.
func (o Observation) lowestAllowed(slice int, role Role, had, keep int) int {
	serving := o.servingUnits(slice)
	needReady := role.Replicas - role.MaxUnavailable - o.roleGroups(role, serving)
	needCarrying := o.roleGroups(role, o.entryRole().Replicas-o.sliceLacks()-serving)
	groups, ready, carrying, end := map[int]Group{}, 0, 0, 0
	carries := func(g Group) bool { return g.Ready && (role.Name != o.entryRole().Name || o.receivesRequests(g)) }
	add := func(g Group, n int) {
		if g.Ready {
			ready += n
		}
		if carries(g) {
			carrying += n
		}
	}
	anyStarts := o.anyChild(slice, func(c Child) bool {
		return c.Revision == o.stableSide() && slices.ContainsFunc(c.Groups, Group.isStarting)
	})
	for _, g := range groupsFrom(o.childOf(slice, o.stableSide(), role.Name).Groups, 0, had) {
		groups[g.Index], end = g, max(end, g.Index+1)
		add(g, 1)
	}
	for had = min(had, max(end, keep)); had > keep; had-- { // from the last group that exists on
		last := groups[had-1]
		add(last, -1) // as if it were gone
		if !last.Ready && !last.isStarting() {
			continue
		}
		carried := anyStarts || carries(last) // otherwise the others carry no less without it
		if ready < needReady || carried && carrying < needCarrying {
			break
		}
	}
	return had
}

// servingUnits returns how many units of the update revision serve in a slice: those that get requests, if they are routed, and no more than
// the share is for.
func (o Observation) servingUnits(slice int) (serving int) {
	c := o.canary()
	if c == nil {
		return 0
	}
	before, placed := 0, o.unitsPerSlice(c.Carries, c.Replicas) // before: the units of the slices before this one
	for _, n := range placed[:slice] {
		before += n
	}
	serving = Workload{Groups: groupsFrom(c.Groups, before, placed[slice])}.count(func(g Group) bool {
		return g.isAvailable(o.Now, o.Policy.MinReady) && (o.Traffic == nil || g.Serving)
	})
	if o.Traffic == nil {
		return serving
	}
	if o.Traffic.Look(o.requestedRouting(o.routedGroups())).Stage < traffic.Acknowledged {
		return 0 // a gateway may still send their requests to old units
	}
	all := o.entryRole().Replicas * len(placed)
	share := ((o.Traffic.Facts().Weight+1)*all - 1) / 100 //nolint:mnd // percent: the most units of which the weight is the share, rounded down
	return min(serving, max(share-before, 0))
}

// requestsFinished reports whether groups that leave get no requests, and have finished theirs.
func (o Observation) requestsFinished(leaving []Group) bool {
	return o.Traffic == nil || !slices.ContainsFunc(leaving, o.mayBeSelected) && awaitDrained(o) == nil
}

// mayBeSelected reports whether the stable Service may lead to a group.
func (o Observation) mayBeSelected(g Group) bool {
	return g.Serving || slices.Contains(o.Traffic.Facts().StablePods, g.Leader)
}

// leavingGroups returns the groups of the entry role that the stable revision loses next, or is losing.
func (o Observation) leavingGroups() (leaving []Group) {
	b := o.Bounds
	if !o.replacesUnits() || b == nil || b.Stable != o.stableSide() || o.handingOver() {
		return nil
	}
	r := o.entryRole()
	for slice, units := range o.unitsPerSlice(b.Update, b.Units) {
		left := o.lowestAllowed(slice, r, o.stableGroups(slice, r), o.stableGoal(r, units))
		leaving = append(leaving, Workload{Groups: o.childOf(slice, b.Stable, r.Name).Groups}.existingFrom(left)...)
	}
	return leaving
}

// labelStable lets the leaders of ready groups of the stable revision receive requests, and no others: while units are replaced, the Service
// selects them by a label, so that a group gets no requests any more before it is removed. Nil means that none is due.
func labelStable(o Observation) *Decision {
	if !o.replacesUnits() || o.Traffic == nil {
		return nil
	}
	leaving := leadersOf(o.leavingGroups())
	stays := func(g Group) bool { return !slices.Contains(leaving, g.Leader) }
	anyReady := slices.ContainsFunc(o.Stable.Groups, func(g Group) bool { return g.Ready && stays(g) })
	return o.labelServing(o.Stable, func(g Group) bool {
		return stays(g) && (g.Ready || !anyReady && g.Serving) // a part of a unit serves better than none
	})
}

// shiftedShare returns the share of the update revision that follows its units, since the host has requested none, or since they shrink. Then
// it never grows.
func (o Observation) shiftedShare(planned int) int {
	if o.shiftsBack() {
		return min(o.weightOf(planned), o.canaryWeight())
	}
	return o.weightOf(planned)
}

// weightOf returns the share of a number of units.
func (o Observation) weightOf(units int) int {
	return 100 * units / max(o.batchReplicas(), 1) //nolint:mnd // percent
}

// shiftBack removes units of the update revision as old ones become ready. Nil means that none is left.
func shiftBack(o Observation, s Progress) *Decision {
	c := o.canary()
	if c == nil || c.Deleting || c.Replicas == 0 {
		return nil
	}
	d := advanceCanary(o, s)
	d.State = o.stateByPhase()
	if failed := failLacking(o); failed != nil && (d.Action == nil || o.roleAction(d.Action) == nil) {
		return failed
	}
	if d.Action == nil && c.Replicas == s.Planned {
		d = awaitGroups(s, Decision{
			Reason: ReasonRestarting,
			Message: fmt.Sprintf("%s until more of revision %s are ready%s%s",
				Counted(c.Replicas, "unit of revision "+c.Carries+" stays", "units of revision "+c.Carries+" stay"),
				o.Record.Release.StableRevision, o.describeStable(), o.describeUnready(o.Stable.All())),
		}, 0)
	}
	return &d
}

// returnUnits rolls a release of a DisaggregatedSet back that has replaced units, or whose promotion has removed some.
func returnUnits(o Observation, s Progress) Decision {
	if o.replacesUnits() {
		if d := cmp.Or(protectRequests(o), shiftBack(o, s)); d != nil {
			return *d
		}
	} else if d := returnRequests(o); d != nil {
		return *d
	}
	if failed := failLacking(o); failed != nil {
		return *failed
	}
	return awaitRestored(o, s)
}

// checkShift refuses a release that can't replace the units of a slice with what the roles may lack and may have in addition, and names the
// smallest maxSurge with which it can.
func (o Observation) checkShift() error {
	if o.canShift(o.Roles) {
		return nil
	}
	if o.shiftsTooMany() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "%s: release in style canary", o.cannotShift())
	}
	roles := slices.Clone(o.Roles)
	for i := range roles {
		roles[i].MaxSurge += roles[i].Replicas // enough for any role
	}
	var raise []string
	for i, r := range o.Roles {
		n := sort.Search(r.Replicas, func(n int) bool {
			roles[i].MaxSurge = r.MaxSurge + n
			return o.canShift(roles)
		})
		roles[i].MaxSurge = r.MaxSurge + n
		if n > 0 {
			raise = append(raise, fmt.Sprintf("maxSurge of role %s to %d", r.Name, roles[i].MaxSurge))
		}
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "%s. Raise %s, or release in style canary", o.cannotShift(), strings.Join(raise, " and "))
}

// maxShifted is how many units of a slice can be replaced at most, since each is looked at.
const maxShifted = 10_000

func (o Observation) shiftsTooMany() bool { return o.entryRole().Replicas > maxShifted }

// canShift reports whether the units of a slice can be replaced with what such roles may lack and may have in addition. All slices are alike.
//
// While all groups are ready, each role loses old groups down to what lowestAllowed leaves beside a number of new units. The next unit has a place if
// every role then has room for its groups.
func (o Observation) canShift(roles []Role) bool {
	o.Slices, o.Roles = 1, roles
	last, least := o.shiftableUnits(), o.entryRole().Replicas-o.sliceLacks()
	if o.shiftsTooMany() {
		return false
	}
	for units := range last {
		for _, r := range roles {
			stay := max(r.Replicas-o.roleGroups(r, last), o.roleGroups(r, 1), r.Replicas-r.MaxUnavailable-o.roleGroups(r, units), o.roleGroups(r, least-units))
			if stay+o.roleGroups(r, units+1) > r.Replicas+r.MaxSurge {
				return false
			}
		}
	}
	return last > 0
}

// failShift fails a release that can't replace units any more, since the user has scaled a role, or edited its pace. Nil means that it can.
func (o Observation) failShift() *Decision {
	if o.canShift(o.Roles) {
		return nil
	}
	remedy := "Raise maxSurge"
	if o.shiftsTooMany() {
		remedy = "Lower replicas"
	}
	return &Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonGroupsNotReady, Message: fmt.Sprintf("%s. %s, or abort the release", o.cannotShift(), remedy),
	}
}

// cannotShift says why style partition is not possible.
func (o Observation) cannotShift() string {
	if o.shiftsTooMany() {
		r := o.entryRole()
		return fmt.Sprintf("style partition replaces at most %d units of a slice, and %s has %d groups of role %s", maxShifted, o.objectName(), r.Replicas, r.Name)
	}
	return fmt.Sprintf("style partition can't replace the units of %s within maxUnavailable and maxSurge of its roles, since a whole unit stays until the promotion",
		o.objectName())
}
