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

// partOf returns how many groups of a role belong to a number of units of a revision. They fill one slice after another, and stay in theirs.
func (o Observation) partOf(role Role, revision string, units int) (groups int) {
	for _, n := range o.place(revision, units) {
		groups += o.part(role, n)
	}
	return groups
}

// place returns how many of a number of units of a revision each slice has: the slices are filled one after another, and emptied in the
// opposite order. Where units are replaced, the last ones of each slice follow those of all slices. A slice never loses a unit to another
// one, also if the number of units of a slice has changed.
func (o Observation) place(revision string, units int) []int {
	full, placed := o.entryRole().Replicas, make([]int, max(o.Slices, 1))
	beside := full
	if o.shifts() {
		beside = min(full, o.shiftable())
	}
	for slice := range placed {
		placed[slice] = min(o.placed(slice, revision), full)
		units -= placed[slice]
	}
	for _, most := range []int{beside, full} {
		for slice := range placed {
			n := max(min(most-placed[slice], units), 0)
			placed[slice], units = placed[slice]+n, units-n
		}
	}
	for slice := len(placed) - 1; slice >= 0 && units < 0; slice-- {
		n := min(placed[slice], -units)
		placed[slice], units = placed[slice]-n, units+n
	}
	return placed
}

// placed returns how many units of a revision a slice may have now.
func (o Observation) placed(slice int, revision string) int {
	entry := o.entryRole().Name
	if b := o.Bounds; b != nil && b.Update == revision {
		return b.Exact[Member(slice, entry)]
	}
	return o.child(slice, revision, entry).Replicas // the bounds were deleted: what serves is removed in order
}

// part returns how many groups of a role belong to a number of units of a slice: at least one of each, and all of them at the end. Without any
// unit the other roles still have theirs, which a promotion gives them.
func (o Observation) part(role Role, units int) int {
	entry := o.entryRole().Replicas
	switch {
	case entry == 0 && (o.completesSecondSet() || o.handingOver()):
		return role.Replicas
	case entry == 0:
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

// unite makes the units that everything else is decided about.
func (o *Observation) unite() {
	if !o.hasRoles() {
		return
	}
	spec := o.Roles
	o.Roles = ServingRoles(*o)
	if !slices.EqualFunc(spec, o.Roles, func(a, b Role) bool { return a.Name == b.Name }) {
		o.RolesWaiting = roleNamesOf(spec)
	}
	o.cover()
	o.coolRoles()
	entry, stable := o.entryRole(), o.stableSide()
	o.Stable.Replicas, o.Stable.Size = entry.Replicas*o.Slices, entry.Size
	if b := o.Bounds; b != nil {
		o.Stable.Rolling = record.Hold()
		if o.updates() {
			units := 0
			for slice := range o.Slices {
				units += b.Exact[Member(slice, entry.Name)]
			}
			placed := o.place(b.Update, b.Units)
			o.Added = []Workload{{
				Name: o.Stable.Name + "-" + b.Update, Replicas: max(b.Units, units), Size: entry.Size, Revision: b.Update, Carries: b.Update,
				Rolling: record.Hold(), Observed: true, Target: b.Target,
				Groups: o.units(placed, b.Units, func(c Child) bool { return c.Revision == b.Update }), Parts: o.parts(b.Update, placed),
			}}
		}
	}
	full := slices.Repeat([]int{entry.Replicas}, o.Slices)
	o.Stable.Groups = o.units(full, o.Stable.Replicas, func(c Child) bool { return c.Revision == stable || stable == "" })
	o.Stable.Parts = o.parts(stable, full)
	// For everything that is decided about units they are gone: no batch and no share counts on them any more.
	if o.drainsRoles() {
		o.Stable.Replicas = 0
	}
}

// parts returns the children of the entry role at a revision, with the number of units that each slice has.
func (o Observation) parts(revision string, placed []int) []Part {
	all := make([]Part, 0, len(placed))
	for slice, n := range placed {
		all = append(all, Part{o.child(slice, revision, o.entryRole().Name).Name, n})
	}
	return all
}

// updates reports whether the bounds have an update revision with children, or whose children LWS creates: it creates them only for the
// template in the spec. A handover needs all of them.
func (o Observation) updates() bool {
	b, members := ptr.Deref(o.Bounds, Bounds{}), 0
	for _, c := range o.Children {
		if c.Revision == b.Update {
			members++
		}
	}
	return b.Update != "" && b.Update != o.stableSide() &&
		(b.Update == o.Stable.Revision || members > 0 && (!o.handingOver() || members >= o.Slices*len(o.Roles)))
}

// units returns the groups of the entry role in some children, by index: first those of the units that each slice has of a total, then those
// above. Those that lack their part of another role are not ready.
func (o Observation) units(placed []int, total int, in func(Child) bool) []Group {
	var all []Group
	for _, c := range o.Children {
		if c.Role != o.entryRole().Name || !in(c) {
			continue
		}
		groups := slices.Clone(c.Groups)
		before := 0
		for _, n := range placed[:c.Slice] {
			before += n
		}
		for i := range groups {
			// Groups above their slice's part are on their way out, and must not stand before units that stay.
			if above := groups[i].Index - placed[c.Slice]; above < 0 {
				groups[i].Index += before
			} else {
				groups[i].Index = total + above*o.Slices + c.Slice
			}
			if groups[i].Revision != "" {
				groups[i].Revision = c.Revision // that of the child's own template says nothing of the set's
			}
		}
		o.pair(c, groups)
		all = append(all, groups...)
	}
	slices.SortStableFunc(all, func(a, b Group) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// pair has as many groups of the entry role be ready as every other role has groups for, those that became ready first. They count as
// ready since the last of their parts.
func (o Observation) pair(c Child, groups []Group) {
	ready := readyFirst(groups)
	if o.shifts() {
		slices.Sort(ready) // the last ones are removed first
	}
	for _, role := range o.Roles {
		if role.Name == c.Role {
			continue
		}
		partners := o.child(c.Slice, c.Revision, role.Name).Groups
		has := readyFirst(partners)
		for n, i := range ready {
			switch need := o.part(role, n+1); {
			case !groups[i].Ready || need == 0:
			case len(has) >= need:
				groups[i].joins(partners[has[need-1]])
			default:
				groups[i].lacks(role, need, len(has), partners)
			}
		}
	}
}

// readyFirst returns the indices of the ready groups, the one that became ready first at the front, and of several at once one that gets
// requests.
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

// joins makes a unit of a group and the last group that it needs of another role.
func (g *Group) joins(last Group) {
	g.ReadySince = later(g.ReadySince, last.ReadySince)
	if last.FirstReady.IsZero() {
		g.FirstReady = time.Time{}
	} else if !g.FirstReady.IsZero() {
		g.FirstReady = later(g.FirstReady, last.FirstReady)
	}
}

// lacks makes a group not ready, since its role's part of the unit is not.
func (g *Group) lacks(role Role, need, has int, partners []Group) {
	missing := Group{}
	if i := slices.IndexFunc(partners, func(p Group) bool { return !p.Ready }); i >= 0 {
		missing = partners[i]
	}
	g.Ready, g.ReadySince, g.FirstReady, g.LostAt = false, time.Time{}, time.Time{}, missing.LostAt
	g.Reason, g.Pod = ReasonRoleNotReady, missing.Pod
	g.Message = fmt.Sprintf("%d of %d groups of role %s that it needs are ready", has, need, role.Name)
	if missing.Message != "" {
		g.Message += ": " + missing.Message
	}
}

// withUnits returns bounds in which the update revision has a number of units.
func (o Observation) withUnits(b Bounds, units int) Bounds {
	b.Units, b.Exact = units, nil
	placed := o.place(b.Update, units)
	if b.Update != "" {
		b.Exact = map[string]int{}
		for slice, n := range placed {
			for _, role := range o.Roles {
				b.Exact[Member(slice, role.Name)] = o.part(role, n)
			}
		}
	}
	return o.step(b, placed)
}

// side returns groups of the entry role, which are all of a revision, and those of the other roles whose leaders finish their requests too.
// They are asked only when the whole revision goes: before, the rest of it still needs them.
func (o Observation) side(revision string, entry []Group) []Group {
	for _, c := range o.Children {
		if c.Revision == revision && c.Role != o.entryRole().Name && slices.Contains(o.Policy.DrainRoles, c.Role) {
			entry = append(slices.Clip(entry), Workload{Groups: c.Groups}.existingFrom(0)...)
		}
	}
	return entry
}

// pooled returns the groups of the other roles of a side, which an InferencePool may select beside those of the entry role. They belong to
// the first unit: they serve as long as there is one.
func (o Observation) pooled(w Workload) (groups []Group) {
	if o.Traffic.Setup.Policy.Pool == nil {
		return nil
	}
	revision := w.Carries
	if w.Name == o.Stable.Name {
		revision = o.stableSide()
	}
	groups = o.partners(revision)
	for i := range groups {
		groups[i].Index = 0
	}
	return groups
}

// partners returns the groups of the other roles than the entry role at a revision.
func (o Observation) partners(revision string) (groups []Group) {
	for _, c := range o.Children {
		if c.Revision == revision && c.Role != o.entryRole().Name {
			groups = append(groups, c.Groups...)
		}
	}
	return groups
}
