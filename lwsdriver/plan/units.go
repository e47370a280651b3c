// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// roleGroupsInAll returns how many groups of a role belong to a number of units of a revision, in all slices.
func (o Observation) roleGroupsInAll(role Role, revision string, units int) (groups int) {
	for _, n := range o.unitsPerSlice(revision, units) {
		groups += o.roleGroups(role, n)
	}
	return groups
}

// unitsPerSlice returns how many of a number of units of a revision each slice has. Slices are filled one after another, and emptied in the
// opposite order. Where units are replaced, every slice first gets those that fit before the promotion, and then the last ones. A slice never
// loses a unit to another slice, even if the size of a slice has changed.
func (o Observation) unitsPerSlice(revision string, units int) []int {
	full := o.entryRole().Replicas
	beforeLast := full
	if o.replacesUnits() {
		beforeLast = min(full, o.shiftableUnits())
	}
	placed := make([]int, max(o.Slices, 1))
	rest := units // negative: how many are to be removed
	for slice := range placed {
		placed[slice] = min(o.boundedUnits(slice, revision), full)
		rest -= placed[slice]
	}
	for _, most := range []int{beforeLast, full} {
		for slice := range placed {
			added := max(min(most-placed[slice], rest), 0)
			placed[slice] += added
			rest -= added
		}
	}
	for slice := len(placed) - 1; slice >= 0 && rest < 0; slice-- {
		removed := min(placed[slice], -rest)
		placed[slice] -= removed
		rest += removed
	}
	return placed
}

// boundedUnits returns how many units of a revision a slice may have now.
func (o Observation) boundedUnits(slice int, revision string) int {
	entry := o.entryRole().Name
	if b := o.Bounds; b != nil && b.Update == revision {
		return b.Exact[Member(slice, entry)]
	}
	return o.childOf(slice, revision, entry).Replicas // the bounds were deleted: the units that exist are removed in order
}

// roleGroups returns how many groups of a role belong to a number of units of a slice, rounded up: the first unit has one of each role, and all
// units have all groups. If the entry role has no groups, a promotion still gives the other roles theirs.
func (o Observation) roleGroups(role Role, units int) int {
	entry := o.entryRole().Replicas
	if entry == 0 {
		if o.completesSecondSet() || o.handingOver() {
			return role.Replicas
		}
		return 0
	}
	return min((units*role.Replicas+entry-1)/entry, role.Replicas)
}

// LastSize returns how many groups a role was last known to have in each slice: those in the bounds, or else those of its children.
func LastSize(o Observation, role string) (n int) {
	if b := o.Bounds; b != nil {
		if i := indexRole(b.Roles, role); i >= 0 {
			return b.Roles[i].Replicas
		}
	}
	for _, c := range o.Children {
		if c.Role == role {
			n = max(n, c.Replicas)
		}
	}
	return n
}

// formUnits makes a DisaggregatedSet look like a workload of units: its groups are those of the entry role, and the update revision is an added
// workload.
func (o *Observation) formUnits() {
	if !o.hasRoles() {
		return
	}
	spec := o.Roles
	o.Roles = ServingRoles(*o)
	if !slices.EqualFunc(spec, o.Roles, func(a, b Role) bool { return a.Name == b.Name }) {
		o.RolesWaiting = roleNamesOf(spec)
	}
	o.dropWaitingSlices()
	o.discountRemoved()
	o.coolRoles()
	entry, stable := o.entryRole(), o.stableSide()
	o.Stable.Replicas, o.Stable.Size = entry.Replicas*o.Slices, entry.Size
	if b := o.Bounds; b != nil {
		o.Stable.Rolling = record.Hold()
		if o.hasUpdateChildren() {
			units := 0
			for slice := range o.Slices {
				units += b.Exact[Member(slice, entry.Name)]
			}
			placed := o.unitsPerSlice(b.Update, b.Units)
			o.Added = []Workload{{
				Name: o.Stable.Name + "-" + b.Update, Revision: b.Update, Carries: b.Update,
				Replicas: max(b.Units, units), Size: entry.Size, Target: b.Target,
				Rolling: record.Hold(), Observed: true,
				Groups: o.unitsIn(placed, b.Units, func(c Child) bool { return c.Revision == b.Update }),
				Parts:  o.entryParts(b.Update, placed),
			}}
		}
	}
	full := slices.Repeat([]int{entry.Replicas}, o.Slices)
	o.Stable.Groups = o.unitsIn(full, o.Stable.Replicas, func(c Child) bool { return c.Revision == stable || stable == "" })
	o.Stable.Parts = o.entryParts(stable, full)
	restored := func(c Child) bool { return c.Revision == stable && c.Unobserved }
	o.Stable.Observed = o.Stable.Observed && (!o.rollsBack() || !slices.ContainsFunc(o.Children, restored))
	// Once a promotion removes the stable groups, no batch and no share counts on them.
	if o.drainsRoles() {
		o.Stable.Replicas = 0
	}
}

// reasonRemoved is the reason of a group that its child no longer has in the spec.
const reasonRemoved = "Removed"

// discountRemoved makes the groups not ready that their children no longer have in the spec: they serve until LeaderWorkerSet removes them, also if
// the spec has them again by then.
func (o *Observation) discountRemoved() {
	for i := range o.Children {
		c := &o.Children[i]
		if !slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Ready && g.Index >= c.Replicas }) {
			continue
		}
		c.Groups = slices.Clone(c.Groups) // the cache shares them
		for at := range c.Groups {
			if g := &c.Groups[at]; g.Ready && g.Index >= c.Replicas {
				g.Ready, g.ReadySince, g.FirstReady = false, time.Time{}, time.Time{}
				g.Reason, g.Pod, g.Message = reasonRemoved, g.Leader, "is being removed by LeaderWorkerSet"
			}
		}
	}
}

// entryParts returns the children of the entry role at a revision, with the number of units that each slice has.
func (o Observation) entryParts(revision string, placed []int) []Part {
	all := make([]Part, 0, len(placed))
	for slice, n := range placed {
		all = append(all, Part{o.childOf(slice, revision, o.entryRole().Name).Name, n})
	}
	return all
}

// hasUpdateChildren reports whether the bounds have an update revision that has its children, or gets them: LWS creates children only for the template
// in the spec. A handover needs all children, anything else one.
func (o Observation) hasUpdateChildren() bool {
	b := ptr.Deref(o.Bounds, Bounds{})
	if b.Update == "" || b.Update == o.stableSide() {
		return false
	}
	if b.Update == o.Stable.Revision {
		return true
	}
	needed, members := 1, 0
	if o.handingOver() {
		needed = o.Slices * len(o.Roles)
	}
	for _, c := range o.Children {
		if c.Revision == b.Update {
			members++
		}
	}
	return members >= needed
}

// unitsIn returns the units of the entry role's children that match, by index in the whole set: placed has the number of units of each slice,
// and total that of all. Groups above the units of their slice follow after total. A group that lacks its part of another role is not ready.
func (o Observation) unitsIn(placed []int, total int, match func(Child) bool) []Group {
	var all []Group
	for _, c := range o.Children {
		if c.Role != o.entryRole().Name || !match(c) {
			continue
		}
		groups := slices.Clone(c.Groups)
		first := 0 // the index of the slice's first unit
		for _, n := range placed[:c.Slice] {
			first += n
		}
		for i := range groups {
			above := groups[i].Index - placed[c.Slice]
			if above < 0 {
				groups[i].Index += first
			} else { // it is being removed, and must not come before units that stay
				groups[i].Index = total + above*o.Slices + c.Slice
			}
			if groups[i].Revision != "" {
				groups[i].Revision = c.Revision // the pods have the hash of the child's own template, not of the set's
			}
		}
		o.pairRoles(c, groups)
		all = append(all, groups...)
	}
	slices.SortStableFunc(all, func(a, b Group) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// pairRoles makes units of ready groups of the entry role and of ready groups of every other role, in the order in which they became ready. A unit
// is ready since its last group is. Groups of the entry role that get no partners become not ready.
func (o Observation) pairRoles(c Child, groups []Group) {
	ready := readyFirst(groups)
	if o.replacesUnits() {
		slices.Sort(ready) // the last ones are removed first
	}
	for _, role := range o.Roles {
		if role.Name == c.Role {
			continue
		}
		partners := o.childOf(c.Slice, c.Revision, role.Name).Groups
		has := readyFirst(partners)
		for n, i := range ready {
			need := o.roleGroups(role, n+1)
			if need == 0 || !groups[i].Ready { // another role may have made it not ready
				continue
			}
			if len(has) < need {
				groups[i].markPartnerMissing(role, need, len(has), partners)
				continue
			}
			groups[i].addPartner(partners[has[need-1]])
		}
	}
}

// readyFirst returns the indices of the ready groups in the order in which they became ready. Of several that did so at once, those that get
// requests come first.
func readyFirst(groups []Group) []int {
	var ready []int
	for _, serving := range []bool{true, false} {
		for i, g := range groups {
			if g.Ready && g.Serving == serving {
				ready = append(ready, i)
			}
		}
	}
	slices.SortStableFunc(ready, func(a, b int) int { return groups[a].ReadySince.Compare(groups[b].ReadySince) })
	return ready
}

// addPartner makes a unit of a group and the last group that it needs of another role: the unit became ready when the later of them did.
func (g *Group) addPartner(last Group) {
	g.ReadySince = later(g.ReadySince, last.ReadySince)
	if last.FirstReady.IsZero() {
		g.FirstReady = time.Time{}
	} else if !g.FirstReady.IsZero() {
		g.FirstReady = later(g.FirstReady, last.FirstReady)
	}
}

// markPartnerMissing makes a group not ready, since the unit needs more ready groups of another role than it has.
func (g *Group) markPartnerMissing(role Role, need, has int, partners []Group) {
	missing := Group{}
	if i := slices.IndexFunc(partners, func(p Group) bool { return !p.Ready }); i >= 0 {
		missing = partners[i]
	}
	g.Ready = false
	g.ReadySince, g.FirstReady, g.LostAt = time.Time{}, time.Time{}, missing.LostAt
	g.Reason, g.Pod = ReasonRoleNotReady, missing.Pod
	g.Message = fmt.Sprintf("%d of %d groups of role %s that it needs are ready", has, need, role.Name)
	if missing.Message != "" {
		g.Message += ": " + missing.Message
	}
}

// withUnits returns bounds in which the update revision has a number of units.
func (o Observation) withUnits(b Bounds, units int) Bounds {
	b.Units, b.Exact = units, nil
	placed := o.unitsPerSlice(b.Update, units)
	if b.Update != "" {
		b.Exact = map[string]int{}
		for slice, n := range placed {
			for _, role := range o.Roles {
				b.Exact[Member(slice, role.Name)] = o.roleGroups(role, n)
			}
		}
	}
	return o.stepTowards(b, placed)
}

// drainedGroups returns the groups whose leaders finish their requests when a whole revision is removed: those of the entry role, and those of the
// other roles that the policy names. While a part of the revision stays, it still needs the other roles.
func (o Observation) drainedGroups(revision string, entry []Group) []Group {
	for _, c := range o.Children {
		if c.Revision == revision && c.Role != o.entryRole().Name && slices.Contains(o.Policy.DrainRoles, c.Role) {
			entry = append(slices.Clip(entry), Workload{Groups: c.Groups}.existingFrom(0)...)
		}
	}
	return entry
}

// poolPartners returns the groups of the other roles of a workload, which an InferencePool may select beside those of the entry role. All of them have
// the index of the first unit, since they serve as long as there is a unit.
func (o Observation) poolPartners(w Workload) (groups []Group) {
	if o.Traffic.Setup.Policy.Pool == nil {
		return nil
	}
	revision := w.Carries
	if w.Name == o.Stable.Name {
		revision = o.stableSide()
	}
	groups = o.partnerGroups(revision)
	for i := range groups {
		groups[i].Index = 0
	}
	return groups
}

// partnerGroups returns the groups of the other roles than the entry role at a revision.
func (o Observation) partnerGroups(revision string) (groups []Group) {
	for _, c := range o.Children {
		if c.Revision == revision && c.Role != o.entryRole().Name {
			groups = append(groups, c.Groups...)
		}
	}
	return groups
}
