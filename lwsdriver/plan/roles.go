// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A DisaggregatedSet has roles, and LWS creates a LeaderWorkerSet for each role at each revision: its children. Whatever is decided about a
// workload is decided about units: a unit is a group of the entry role, and its part of the groups of every other role. So a
// DisaggregatedSet looks like any other workload once [Observation.unite] has made units of the children. [inRoles] makes writes of
// children of the writes of units. A LeaderWorkerSet has no roles, and both leave it as it is.
//
// A DisaggregatedSet has all its roles in each of its slices. Prefill and decode pair within a slice: LWS has a Service for each role, revision
// and slice. So every unit is in one slice, and a batch fills one slice after another.
//
// The hold of a DisaggregatedSet are the bounds of its children, which an admission policy enforces for every client: those of the stable
// revision keep their groups, those of the update revision have exactly the groups of the batch, and all others have none. So LWS, which rolls
// a DisaggregatedSet by scaling its children, can't.

// Role is a role of a DisaggregatedSet.
type Role struct {
	Name string `json:"name,omitzero"`
	// Replicas is the number of groups in the spec, in each slice. Size is the number of pods of a group.
	Replicas int `json:"replicas,omitzero"`
	Size     int `json:"size,omitzero"`
	// MaxUnavailable and MaxSurge are how many groups it may lack, and may have in addition, while they are replaced.
	MaxUnavailable int `json:"maxUnavailable,omitzero"`
	MaxSurge       int `json:"maxSurge,omitzero"`
	// External is true if a DisaggregatedSetRoleScaler has the number of groups. Unsized is why that number is unknown, and Replicas then is
	// the last one, "" if it is known.
	External bool   `json:"external,omitzero"`
	Unsized  string `json:"unsized,omitzero"`
}

// Child is a LeaderWorkerSet that LWS created for a role of a DisaggregatedSet.
type Child struct {
	Name     string `json:"name,omitzero"`
	Role     string `json:"role,omitzero"`
	Revision string `json:"revision,omitzero"`
	Slice    int    `json:"slice,omitzero"`
	// Replicas is the number of groups in its spec.
	Replicas int `json:"replicas,omitzero"`
	// ScaledBy is the field manager that wrote it last, if that is not the one that created the child. Empty means unknown.
	ScaledBy string  `json:"scaledBy,omitzero"`
	Deleting bool    `json:"deleting,omitzero"`
	Groups   []Group `json:"groups,omitzero"`
}

// Part is how many groups of a workload a child has. Child is empty if it does not exist.
type Part struct {
	Child  string `json:"child,omitzero"`
	Groups int    `json:"groups,omitzero"`
}

// Bounds are the numbers of groups that the children of a DisaggregatedSet may have, by [Member]. Those of a third revision may have none.
type Bounds struct {
	// Roles are those of the children, which a template that waits may lack.
	Roles []Role `json:"roles,omitzero"`
	// Entry is the role whose groups are the units, as in the record, which another client may delete. Empty means the first one.
	Entry string `json:"entry,omitzero"`
	// Stable is the revision whose children have at least Min groups, and at most Max, nil without a limit.
	Stable string         `json:"stable,omitzero"`
	Min    map[string]int `json:"min,omitzero"`
	Max    map[string]int `json:"max,omitzero"`
	// Update is the revision whose children have exactly Exact groups: those of Units. It is empty if there is none.
	Update string         `json:"update,omitzero"`
	Units  int            `json:"units,omitzero"`
	Exact  map[string]int `json:"exact,omitzero"`
	// Target is the batch that Units were last set for, nil if there was none yet.
	Target *record.Target `json:"target,omitzero"`
	// Routes is the release that routes requests: the bounds outlive their set until these are routed as before.
	Routes string `json:"routes,omitzero"`
	// Others are LeaderWorkerSets that only have names like children.
	Others []string `json:"others,omitzero"`
}

// SetBounds writes the bounds of a DisaggregatedSet's children.
type SetBounds struct {
	Bounds Bounds
	// Why describes the write in events and logs.
	Why string
}

// ScaleChild sets the number of groups of a child, which is within its bounds.
type ScaleChild struct {
	Name     string
	Replicas int
}

func (SetBounds) action()    {}
func (ScaleChild) action()   {}
func (RemoveBounds) action() {}

func (a SetBounds) String() string { return a.Why }
func (RemoveBounds) String() string {
	return "delete bounds that are left of an earlier DisaggregatedSet"
}
func (a ScaleChild) String() string { return fmt.Sprintf("scale %s to %d groups", a.Name, a.Replicas) }

// RemoveBounds deletes bounds that no DisaggregatedSet owns: they would keep its children from being scaled.
type RemoveBounds struct{}

// Reasons of decisions and groups of a DisaggregatedSet.
const (
	ReasonRoleNotReady = "RoleNotReady"
	ReasonRolesScaling = "RolesScaling"
	ReasonRoleUnsized  = "RoleUnsized"
	ReasonChildMissing = "ChildMissing"
)

// hasRoles reports whether the workload is a DisaggregatedSet.
func (o Observation) hasRoles() bool { return len(o.Roles) > 0 }

// entryRole returns the role whose leaders get the requests.
func (o Observation) entryRole() Role { return o.Roles[max(indexRole(o.Roles, o.EntryRole), 0)] }

// BegunEntryRole returns the role that the last release began with: the one in its record, or in the bounds once another client has deleted
// that. Empty means the first one.
func BegunEntryRole(o Observation) string {
	switch r := o.release(); {
	case r != nil:
		return r.EntryRole
	case o.Bounds != nil:
		return o.Bounds.Entry
	}
	return ""
}

// EntryRole returns the name of that role of an observation that is not judged yet.
func EntryRole(o Observation) string {
	o.Roles = ServingRoles(o)
	return o.entryRole().Name
}

// EntryFirst returns the roles, the entry role first.
func EntryFirst(o Observation) []Role {
	if !o.hasRoles() {
		return nil
	}
	return append([]Role{o.entryRole()}, slices.DeleteFunc(slices.Clone(o.Roles), func(r Role) bool { return r.Name == o.entryRole().Name })...)
}

// object returns the kind, namespace and name of the workload, for messages.
func (o Observation) object() string {
	kind := "LeaderWorkerSet"
	if o.hasRoles() {
		kind = "DisaggregatedSet"
	}
	return fmt.Sprintf("%s %s/%s", kind, o.Key.Namespace, o.Stable.Name)
}

// Member returns the name of a role of a slice.
func Member(slice int, role string) string { return fmt.Sprintf("%d-%s", slice, role) }

func (c Child) member() string { return Member(c.Slice, c.Role) }

// PaceOf returns how many groups of a role may be unavailable and in addition, as LWS's controller reads them: without any, one in addition.
func PaceOf(spec lws.LeaderWorkerSetSpec, replicas int) (unavailable, surge int) {
	if r := spec.RolloutStrategy.RollingUpdateConfiguration; r != nil {
		unavailable, _ = intstr.GetScaledValueFromIntOrPercent(&r.MaxUnavailable, replicas, false) // the API server refuses others
		surge, _ = intstr.GetScaledValueFromIntOrPercent(&r.MaxSurge, replicas, true)
	}
	if unavailable == 0 && surge == 0 {
		surge = 1
	}
	return unavailable, surge
}

// PeakOf returns how many groups of a role a release has at its peak on top of the role's own: the promotion completes the new units before it
// removes old ones.
func PeakOf(style pb.Style, role Role, slices int) int {
	if InPlace(style) {
		return min(role.MaxSurge, role.Replicas) * slices
	}
	return role.Replicas * slices
}

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
// unit the other roles still have theirs, which a handover gives them.
func (o Observation) part(role Role, units int) int {
	entry := o.entryRole().Replicas
	switch {
	case entry == 0 && o.handingOver():
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

func indexRole(roles []Role, name string) int {
	return slices.IndexFunc(roles, func(r Role) bool { return r.Name == name })
}

// ServingRoles returns the roles of the groups. While another template waits, its roles may be others: those of the
// groups keep their order, and a removed one its numbers.
func ServingRoles(o Observation) []Role {
	stable, spec := o.stableSide(), o.Roles
	update := ""
	if r := o.release(); r != nil {
		update = r.UpdateRevision
	}
	if stable == "" || stable == o.Stable.Revision || update == o.Stable.Revision {
		return spec
	}
	var serving []Role
	if o.Bounds != nil {
		serving = slices.Clone(o.Bounds.Roles)
	}
	has := func(c Child) bool { return c.Revision == stable || c.Revision == update }
	if len(serving) == 0 { // bounds were deleted
		serving = slices.DeleteFunc(slices.Clone(spec), func(r Role) bool {
			return !slices.ContainsFunc(o.Children, func(c Child) bool { return has(c) && c.Role == r.Name })
		})
	}
	for _, c := range o.Children {
		if has(c) && indexRole(serving, c.Role) < 0 {
			serving = append(serving, Role{Name: c.Role, Replicas: LastSize(o, c.Role), Size: 1, MaxSurge: 1})
		}
	}
	for i := range serving {
		if n := indexRole(spec, serving[i].Name); n >= 0 {
			serving[i] = spec[n]
		}
	}
	if len(serving) == 0 {
		return spec
	}
	return serving
}

func roleNamesOf(roles []Role) string {
	names := make([]string, 0, len(roles))
	for _, r := range roles {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// cover leaves out slices that no release covers. LWS creates a slice only at the template in the spec. So one that is added while another
// revision serves has no groups until that template is released or restored. It deletes a slice that is removed without further steps.
func (o *Observation) cover() {
	wanted, stable := max(o.Slices, 1), o.stableSide()
	o.Slices = wanted
	serves := func(c Child) bool { return c.Slice == o.Slices-1 && (c.Revision == stable || c.Replicas > 0) }
	for stable != "" && stable != o.Stable.Revision && o.Slices > 1 && !slices.ContainsFunc(o.Children, serves) {
		o.Slices--
	}
	o.SlicesWaiting = wanted - o.Slices
	o.Children = slices.DeleteFunc(slices.Clone(o.Children), func(c Child) bool { return c.Slice < 0 || c.Slice >= o.Slices })
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
	b, members := o.Bounds, 0
	for _, c := range o.Children {
		if c.Revision == b.Update {
			members++
		}
	}
	return b.Update != "" && b.Update != o.stableSide() &&
		(b.Update == o.Stable.Revision || members > 0 && (!o.handingOver() || members >= o.Slices*len(o.Roles)))
}

// stableSide returns the revision that the user's groups have, or return to, "" if they have several, or none.
func (o Observation) stableSide() string {
	switch r := o.release(); {
	case r != nil && r.Phase == record.Promoted:
		return r.UpdateRevision
	case r != nil:
		return r.StableRevision
	case o.Bounds != nil:
		return o.Bounds.Stable
	}
	serving := ""
	for _, c := range o.Children {
		switch {
		case c.Replicas == 0 || c.Revision == serving:
		case serving != "":
			return ""
		default:
			serving = c.Revision
		}
	}
	return serving
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

// child returns the child of a role, with only its role if there is none.
func (o Observation) child(slice int, revision, role string) Child {
	for _, c := range o.Children {
		if c.Slice == slice && c.Revision == revision && c.Role == role {
			return c
		}
	}
	return Child{Role: role, Slice: slice, Revision: revision}
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

// bounds returns what the bounds are to be, nil if the workload has none. The update revision's are those of the last batch.
func (o Observation) bounds() *Bounds {
	stable := o.stableSide()
	if !o.hasRoles() || stable == "" {
		return nil
	}
	if r := o.release(); o.Bounds == nil || r != nil && o.Bounds.Update == "" && r.UpdateRevision != stable && o.left(r.UpdateRevision, "") {
		o.Bounds = o.presentBounds(stable)
	}
	b := Bounds{Entry: o.EntryRole, Stable: stable, Min: map[string]int{}, Others: o.Namesakes}
	for _, r := range o.Roles {
		r.External, r.Unsized = false, ""
		b.Roles = append(b.Roles, r)
	}
	switch r := o.release(); {
	case r != nil && o.Traffic != nil && r.Phase.Unfinished(), r != nil && o.trafficDrifted():
		b.Routes = r.ID
	case o.trafficDrifted():
		b.Routes = o.Bounds.Routes // another client has deleted the record, and only the bounds name the routes
	}
	drain := o.drainsRoles()
	for _, role := range o.drainOrder() {
		least, left := role.Replicas, o.left(stable, role.Name)
		if drain = drain && (o.replaced(role) || !left); drain {
			least, drain = 0, !left // the next role follows once this one has no groups
		}
		b.keep(o, role, least)
	}
	if o.updates() {
		b.Update, b.Target, b.Units = o.Bounds.Update, o.Bounds.Target, o.Bounds.Units
	}
	b = o.withUnits(b, b.Units)
	for slice := 0; slice < o.Slices && b.Update != ""; slice++ {
		entry := o.child(slice, b.Update, o.entryRole().Name) // after a scale-down, its groups finish their requests before they go
		b.Exact[entry.member()] = max(b.Exact[entry.member()], min(o.Bounds.Exact[entry.member()], entry.Replicas))
	}
	return &b
}

// keepLeft returns bounds that keep what is left of the stable revision.
func (o Observation) keepLeft(b Bounds) Bounds {
	for slice := range o.Slices {
		for _, role := range o.Roles {
			b.Min[Member(slice, role.Name)] = min(o.child(slice, b.Stable, role.Name).Replicas, role.Replicas)
		}
	}
	return b
}

// presentBounds returns the bounds after another client has deleted them, or removed the update revision from them while it has groups: those of
// units that are replaced are what there is.
func (o Observation) presentBounds(stable string) *Bounds {
	b := Bounds{Stable: stable, Min: map[string]int{}, Exact: map[string]int{}}
	if r := o.release(); r != nil && (o.shifts() || !InPlace(o.Policy.Style)) && o.left(r.UpdateRevision, "") {
		b.Update = r.UpdateRevision
	}
	for slice := range o.Slices {
		for _, role := range o.Roles {
			at := Member(slice, role.Name)
			b.Min[at], b.Exact[at] = role.Replicas, o.child(slice, b.Update, role.Name).Replicas
			if role.Name == o.entryRole().Name {
				b.Units += min(b.Exact[at], role.Replicas) // the others finish their requests first
			}
		}
	}
	if o.shifts() {
		b = o.keepLeft(b)
	}
	return &b
}

// keep has the stable revision have at least a number of groups of a role, in each slice.
func (b *Bounds) keep(o Observation, role Role, least int) {
	for slice := range o.Slices {
		b.Min[Member(slice, role.Name)] = least
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

// drainsRoles reports whether a promotion has begun to remove the groups of the stable revision.
func (o Observation) drainsRoles() bool {
	if o.Bounds == nil || !o.handingOver() || o.Bounds.Stable != o.stableSide() {
		return false
	}
	// By the roles of that time: one that the user has scaled to 0 and back is not drained.
	return slices.ContainsFunc(o.Bounds.Roles, func(r Role) bool { return r.Replicas > 0 && o.Bounds.Min[Member(0, r.Name)] == 0 })
}

// removedLast are the roles that are removed last unless the policy has others: prefill may wait until decode has fetched what it holds.
var removedLast = []string{"decode"}

// drainOrder returns the roles in the order in which a promotion removes their old groups.
func (o Observation) drainOrder() []Role {
	last := o.Policy.RoleOrder
	if len(last) == 0 {
		last = removedLast
	}
	order := slices.Clone(o.Roles)
	slices.SortStableFunc(order, func(a, b Role) int { return cmp.Compare(slices.Index(last, a.Name), slices.Index(last, b.Name)) })
	return order
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
	for _, c := range o.Children {
		if c.Revision == revision && c.Role != o.entryRole().Name {
			groups = append(groups, c.Groups...)
		}
	}
	for i := range groups {
		groups[i].Index = 0
	}
	return groups
}

// warmsUpRole reports whether the groups of a child of another role than the entry role must be warmed up.
func (o Observation) warmsUpRole(c Child) bool {
	return o.Policy.WarmsUp() && o.Traffic != nil && slices.Contains(o.Policy.WarmUpRoles, c.Role) && c.Role != o.entryRole().Name &&
		o.updates() && c.Revision == o.Bounds.Update
}

// coolRoles makes groups of other roles not ready whose leaders have not answered their warm-up requests. Those of units that get requests
// have been warmed up, maybe by an earlier driver.
func (o *Observation) coolRoles() {
	for i := range o.Children {
		c := &o.Children[i]
		if !o.warmsUpRole(*c) {
			continue
		}
		serving := 0
		for _, g := range o.child(c.Slice, c.Revision, o.entryRole().Name).Groups {
			if g.Serving {
				serving++
			}
		}
		known := o.part(o.Roles[indexRole(o.Roles, c.Role)], serving)
		c.Groups = slices.Clone(c.Groups) // the cache shares them
		for n, at := range readyFirst(c.Groups) {
			if n >= known {
				c.Groups[at].cool()
			}
		}
	}
}

// left reports whether a role, or with "" any, has groups at a revision.
func (o Observation) left(revision, role string) bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool {
		return c.Revision == revision && (role == "" || c.Role == role) &&
			(c.Replicas > 0 || slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Revision != "" }))
	})
}

// inRoles returns a decision whose write is one of children instead of units.
func inRoles(o Observation, d Decision) Decision {
	if o.BoundsLeft && d.Action == nil && !o.trafficDrifted() { // they say how requests were routed
		d.Action = RemoveBounds{}
	}
	if !o.hasRoles() || o.Stable.Deleting || o.Gone {
		return d
	}
	if d.Action != nil {
		d.Action = o.roleAction(d.Action)
	}
	// Bounds come before the history: they are the hold.
	if d.Action == nil || IsHistory(d.Action) {
		d = keepRoles(o, d)
	}
	switch a := d.Action.(type) {
	case SetBounds:
		d = d.repairs("the bounds of its children", o.BoundsBy)
	case ScaleChild:
		i := slices.IndexFunc(o.Children, func(c Child) bool { return c.Name == a.Name })
		d = d.repairs("LeaderWorkerSet "+a.Name, o.Children[i].ScaledBy)
	}
	if d.Overwritten != "" && !d.Waiting.Since.IsZero() {
		d.Waiting.Overwritten = d.Overwritten
	}
	if o.SlicesWaiting > 0 {
		d.Message += fmt.Sprintf("; slices from %d on get groups once the template in the spec is released or restored", o.Slices)
	}
	for _, revision := range slices.Compact([]string{o.stableSide(), o.Stable.Revision}) {
		if lacks, remedy := o.lackedChild(revision); lacks != "" {
			d.Message += "; " + lacks + ": " + remedy
			if revision != o.Stable.Revision && o.rests(d) {
				d.Reason = ReasonChildMissing
				d.Message += ". " + o.revive(revision)
			}
		}
	}
	if stable := o.stableSide(); d.Reason == ReasonNewRevisionWaits && !slices.ContainsFunc(o.Children, func(c Child) bool { return c.Revision == stable }) {
		d.Message += fmt.Sprintf("; LeaderWorkerSet has deleted the children of revision %s. %s", stable, o.revive(stable))
	}
	if o.Record != nil && !o.BoundsEnforced {
		d.Message += "; nothing enforces the bounds of its children, so LeaderWorkerSet may roll them: " + installBounds
	}
	if wait := limitStale(o, d.Action); wait != nil {
		d.Action, d.Reason, d.Message, d.Wait, d.Remedy = nil, wait.Reason, wait.Message, wait.Wait, wait.Remedy
	}
	return d
}

// lackedChild says which child of a revision was deleted although it is needed, and how it returns: while a template waits, LWS creates
// children of its revision only, and those of a slice only all together.
func (o Observation) lackedChild(revision string) (lacks, remedy string) {
	b, latest := o.bounds(), revision == o.Stable.Revision
	if b == nil || o.Record == nil || revision != b.Stable && !latest {
		return "", ""
	}
	stable := revision == b.Stable
	for slice := range o.Slices {
		others := o.anyChild(slice, func(c Child) bool { return c.Revision == revision })
		// While no other revision has groups there, LWS recreates a stable one itself.
		returns := stable && latest && !o.anyChild(slice, func(c Child) bool { return c.Revision != revision && c.Replicas > 0 })
		for _, role := range o.Roles {
			if returns || o.child(slice, revision, role.Name).Name != "" ||
				stable && b.Min[Member(slice, role.Name)] == 0 || latest && (!others || o.RolesWaiting != "") {
				continue
			}
			lacks = fmt.Sprintf("there is no child of role %s at revision %s in slice %d", role.Name, revision, slice)
			if stable && !latest {
				return lacks, fmt.Sprintf("restore the template of revision %s, and LeaderWorkerSet creates it", revision)
			}
			remedy = fmt.Sprintf("delete the others of revision %s in slice %d, and LeaderWorkerSet creates them all", revision, slice)
			if !stable && o.anyChild(slice, func(c Child) bool { return c.Revision == revision && c.Replicas > 0 }) {
				remedy = "abort, and then " + remedy
			}
			return lacks, remedy
		}
	}
	return "", ""
}

// rests reports whether a decision is that of a set without a release that is not over.
func (o Observation) rests(d Decision) bool {
	over := d.State == pb.State_STATE_COMPLETED || d.State == pb.State_STATE_NOTHING_TO_RELEASE
	return d.Action == nil && (over || d.State == pb.State_STATE_HOLDING && o.release() == nil)
}

// revive says how a revision whose children are gone runs again while another template waits, or how that one starts instead.
func (o Observation) revive(revision string) string {
	name := "disaggregatedset/" + o.Stable.Name
	back := fmt.Sprintf("To go back to revision %s, %s", revision, o.restoring(name, revision))
	if slices.ContainsFunc(o.Children, func(c Child) bool { return c.Replicas > 0 }) {
		return back
	}
	return fmt.Sprintf("%s. To start all groups at revision %s instead, run `lockstep disown %s`, and then `lockstep adopt %[3]s`", back, o.Stable.Revision, name)
}

// lacksChild reports whether a child of a revision was deleted although it is needed.
func (o Observation) lacksChild(revision string) bool {
	lacks, _ := o.lackedChild(revision)
	return lacks != ""
}

// restoreChildren has LeaderWorkerSet create children that a rollback lacks: it restores the template of their revision in place of the release's.
// Nil means that it lacks none, or that only the user can.
func restoreChildren(o Observation) *Decision {
	r := o.release()
	if !o.rollsBack() || !o.lacksChild(r.StableRevision) || o.Stable.Revision != r.UpdateRevision || o.RolesWaiting != "" || !o.hasTemplate(r.StableRevision) {
		return nil
	}
	return &Decision{
		Action: RestoreTemplate{Revision: r.StableRevision}, State: pb.State_STATE_ROLLING_BACK, Reason: ReasonTemplateRestored,
		Message: fmt.Sprintf("the template of revision %s is being restored", r.StableRevision),
	}
}

// anyChild reports whether a slice has a child of which f is true.
func (o Observation) anyChild(slice int, f func(Child) bool) bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool { return c.Slice == slice && f(c) })
}

// roleAction returns the write of children for one of units, nil if there is none.
func (o Observation) roleAction(action Action) Action {
	b := o.bounds()
	if b != nil && o.Bounds != nil && b.Update != "" && o.Bounds.Update == "" { // the groups that another client let go leave in order
		return o.boundsAction(*b, "bound the children of "+o.Stable.Name)
	}
	opened := b != nil && o.Bounds != nil && lowers(b.Min, o.Bounds.Min) // LWS could still remove groups that are to stay
	keep := SetBounds{Bounds: ptr.Deref(b, Bounds{}), Why: "keep the groups that requests return to"}
	switch a := action.(type) {
	case SetStable:
		switch first := o.holdChildren(); {
		case first != nil:
			return first // a record without the hold would be none
		case a.Replicas != nil && *a.Replicas > 0 && o.boundsAction(o.keepLeft(*b), "") != nil:
			return o.boundsAction(o.keepLeft(*b), a.Why) // before LWS removes more
		case opened && o.rollsBack() && a.Record.Release != nil && a.Record.Release.Phase == record.CleaningUp:
			return keep
		case o.Record == nil || !reflect.DeepEqual(a.Record, *o.Record):
			a.Rolling, a.SaveTemplate, a.RestoreTemplate, a.Replicas = nil, false, false, nil // the next observation decides
			return a
		case b == nil:
			return nil
		}
		if a.Replicas != nil && *a.Replicas == 0 {
			b.lowerLast(o)
		}
		return o.boundsAction(*b, a.Why)
	case SetTraffic:
		switch {
		case b == nil || o.Bounds == nil:
		case b.Routes != "" && b.Routes != o.Bounds.Routes:
			return SetBounds{Bounds: *b, Why: "note that release " + b.Routes + " routes the requests of " + o.Stable.Name}
		case opened:
			return keep
		}
	case LabelServing:
		if a.Serves && opened {
			return keep
		}
	case CreateCanary:
		return o.unitsAction(a.Revision, a.Replicas, a.Target, fmt.Sprintf("prepare revision %s of %s with %d units", a.Revision, o.Stable.Name, a.Replicas))
	case ScaleCanary:
		return o.unitsAction(o.canary().Carries, a.Replicas, a.Target, fmt.Sprintf("set revision %s of %s to %d units", o.canary().Carries, o.Stable.Name, a.Replicas))
	case DeleteCanary:
		return o.deleteUnits(a)
	case HandOver:
		if write := o.boundsAction(*b, "no child of "+o.stableSide()+" may have groups any more"); write != nil {
			return write
		}
		return SetStable{Record: a.Record, Why: fmt.Sprintf("revision %s of %s has replaced revision %s", o.release().UpdateRevision, o.Stable.Name, o.release().StableRevision)}
	}
	return action
}

// holdChildren returns the write that bounds children which have no bounds yet, nil if it is not due.
func (o Observation) holdChildren() Action {
	b := o.bounds()
	if b == nil || o.Bounds != nil {
		return nil
	}
	return SetBounds{Bounds: *b, Why: "hold " + o.Stable.Name + " by bounds of its children"}
}

// boundsAction returns the write of bounds, nil if they are as they should be.
func (o Observation) boundsAction(b Bounds, why string) Action {
	if o.Bounds != nil && sameBounds(*o.Bounds, b) {
		return nil
	}
	return SetBounds{Bounds: b, Why: why}
}

// sameBounds reports whether nothing is to be written. Any write has the entry role, and the first one of a release comes before its effects.
func sameBounds(a, b Bounds) bool {
	return slices.Equal(a.Roles, b.Roles) && a.Stable == b.Stable && a.Update == b.Update && a.Units == b.Units && maps.Equal(a.Min, b.Min) && maps.Equal(a.Max, b.Max) && maps.Equal(a.Exact, b.Exact) &&
		reflect.DeepEqual(a.Target, b.Target) && a.Routes == b.Routes && slices.Equal(a.Others, b.Others)
}

// RoleCounts returns the groups of each role, those of the entry role first, nil for a LeaderWorkerSet.
func RoleCounts(o Observation) (all []*pb.Role) {
	stable := o.stableSide()
	for _, role := range EntryFirst(o) {
		r := &pb.Role{Name: role.Name, Replicas: int32(role.Replicas * o.Slices)} //nolint:gosec // replicas of a spec
		for _, c := range o.Children {
			if c.Role != role.Name {
				continue
			}
			exist, ready := &r.Stable, &r.StableReady
			if update := o.release(); c.Revision != stable && update != nil && c.Revision == update.UpdateRevision {
				exist, ready = &r.Updated, &r.UpdatedReady
			} else if c.Revision != stable {
				continue
			}
			for _, g := range c.Groups {
				if g.Revision != "" {
					*exist++
				}
				if g.Ready {
					*ready++
				}
			}
		}
		if b := o.Bounds; b != nil {
			r.Planned = int32(o.partOf(role, b.Update, b.Units)) //nolint:gosec // no more than replicas
		}
		all = append(all, r)
	}
	return all
}

// lowersBounds reports whether bounds allow LWS to remove groups that the present ones keep.
func (o Observation) lowersBounds(next Bounds) bool {
	if o.Bounds == nil {
		return false
	}
	return next.Stable != o.Bounds.Stable || lowers(o.Bounds.Min, next.Min) || lowers(o.Bounds.Exact, next.Exact)
}

func lowers(before, after map[string]int) bool {
	for role, n := range before {
		if after[role] < n {
			return true
		}
	}
	return false
}

// unitsAction returns the write that lets the update revision have a number of units.
func (o Observation) unitsAction(revision string, units int, target *record.Target, why string) Action {
	b := o.bounds()
	if b == nil {
		return nil
	}
	b.Update, b.Target = revision, target
	return o.boundsAction(o.withUnits(*b, units), why)
}

// deleteUnits removes the units of a revision: first their bounds, then the groups, and last the revision. Nil means that its groups are being
// deleted.
func (o Observation) deleteUnits(a DeleteCanary) Action {
	b := o.bounds()
	switch {
	case b == nil || b.Update == "":
		return nil
	case b.Units > 0, lowers(b.Exact, nil):
		b.Target = nil // the batch is over
		return o.boundsAction(o.withUnits(*b, 0), a.String())
	case o.left(b.Update, ""):
		return nil
	}
	b.Update, b.Target = "", nil
	return o.boundsAction(o.withUnits(*b, 0), "revision "+o.Bounds.Update+" is removed")
}

// keepRoles keeps the bounds, and the children within them as they are meant, without a write that is due first: LWS does not scale them
// while a template waits.
func keepRoles(o Observation, d Decision) Decision {
	b := o.bounds()
	if o.Record == nil {
		b = o.Bounds // they stay, and what a release has added goes
	}
	if b == nil {
		return d
	}
	if a := o.boundsAction(*b, "bound the children of "+o.Stable.Name); a != nil {
		d.Action = a
		return scalesRoles(d)
	}
	if leaving := o.leavingUnits(); len(leaving) > 0 {
		if wait := drained(o, d.State); wait != nil {
			d.Recheck = earliest(d.Recheck, wait.Recheck)
		}
		d.Message += fmt.Sprintf("; %d groups of %s are to finish their requests", len(leaving), o.entryRole().Name)
		d = scalesRoles(d)
	}
	for _, c := range o.Children {
		want := c.Replicas // LWS drains other revisions itself
		switch {
		case c.Revision == b.Update:
			want = b.Exact[c.member()]
		case o.Record == nil:
		case c.Revision == b.Stable:
			want = b.Min[c.member()]
		case c.Revision == o.Stable.Revision && o.Stable.serving(o.Stable.Replicas) == o.Stable.Replicas:
			want = 0 // LWS rolled to it without bounds, and drains only what is not in the spec
		}
		if c.Deleting || c.Replicas == want {
			continue
		}
		d.Action = ScaleChild{Name: c.Name, Replicas: want}
		return scalesRoles(d)
	}
	return d
}

// scalesRoles returns a decision by which a batch is not complete yet.
func scalesRoles(d Decision) Decision {
	if d.State == pb.State_STATE_READY {
		d.State, d.Reason = pb.State_STATE_UPGRADING, ReasonRolesScaling
	}
	return d
}

// installBounds is what to do without the admission policies.
const installBounds = "the admission policies lockstep-bounds are not installed, or the driver may not read them; run kubectl apply -k config/disaggregated"

// rollsSlice reports whether a slice has no groups at the revision that serves in others: LWS rolls each slice by itself.
func (o Observation) rollsSlice() bool {
	serves := map[int]bool{}
	for _, c := range o.Children {
		serves[c.Slice] = serves[c.Slice] || c.Revision == o.stableSide() && c.Replicas > 0
	}
	return slices.Contains(slices.Collect(maps.Values(serves)), false) || len(serves) < o.Slices
}

// checkRoles refuses a DisaggregatedSet that can't be held.
func checkRoles(o Observation) error {
	if !o.hasRoles() {
		return nil
	}
	total := 0
	for _, role := range o.Roles {
		total += role.Replicas
	}
	switch {
	case !o.BoundsEnforced:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"nothing enforces the bounds of the children of %s: %s", o.object(), installBounds)
	case o.unsized() != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "%s. %s", o.unsized(), unsizedRemedy)
	case o.BoundsLeft && o.trafficDrifted(): // they alone name the routes, and new ones would replace them
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"requests are not routed yet as before a release of an earlier %s: try again once they are", o.object())
	case total == 0 && o.Record == nil:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"every role of %s has 0 groups, so LeaderWorkerSet starts any template at once: scale a role up first", o.object())
	case o.stableSide() == "" || o.Record == nil && o.rollsSlice():
		return drivererr.New(pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS,
			"the children of %s have groups at several revisions, or none: wait until LeaderWorkerSet has rolled them", o.object())
	}
	return nil
}

// checkRoleNames refuses a policy that names roles which the workload does not have.
func (o Observation) checkRoleNames(p *pb.ReleasePolicy) error {
	var bad []drivererr.FieldViolation
	for _, f := range []struct {
		path  string
		roles []string
	}{
		{"policy.role_order", p.GetRoleOrder()},
		{"policy.traffic.drain.roles", p.GetTraffic().GetDrain().GetRoles()},
		{"policy.traffic.warm_up.roles", p.GetTraffic().GetWarmUp().GetRoles()},
	} {
		for i, name := range f.roles {
			if indexRole(o.Roles, name) < 0 {
				bad = append(bad, drivererr.FieldViolation{
					Field:       fmt.Sprintf("%s[%d]", f.path, i),
					Description: fmt.Sprintf("%s has no role %q; its roles: %s", o.object(), name, cmp.Or(roleNamesOf(o.Roles), "none")),
				})
			}
		}
	}
	return drivererr.Invalid(bad...)
}

// checkRoles refuses a release that is not possible with roles.
func (b Begin) checkRoles(o Observation) error {
	if err := o.checkRoleNames(b.Policy); err != nil || !o.hasRoles() {
		return err
	}
	refuse := func(format string, args ...any) error {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, format, args...)
	}
	switch p := b.Policy; {
	case o.entryRole().Replicas == 0:
		return refuse("the entry role %s of %s has 0 groups, so its units can't be counted: scale it up", o.entryRole().Name, o.object())
	case p.GetGroupDisruptionBudget() || p.GetCanaryLeaderMetadata() != nil || p.GetRolloutId() != "":
		return refuse("policy.group_disruption_budget, policy.canary_leader_metadata and policy.rollout_id are for LeaderWorkerSets: leave them out for %s",
			o.object())
	}
	or := "" // a set has a slice at least
	for slice := range o.Slices {
		for _, role := range o.Roles {
			if stable := o.stableSide(); o.child(slice, stable, role.Name).Name == "" {
				return refuse("slice %d of %s has no child of role %s at revision %s: restore the template of that revision until LeaderWorkerSet "+
					"has created it%s. %s", slice, o.object(), role.Name, stable, or, o.revive(stable))
			}
		}
		or = fmt.Sprintf(", or set slices to %d for the release", slice+1)
	}
	if InPlace(b.Policy.GetStyle()) {
		return o.checkShift()
	}
	return nil
}
