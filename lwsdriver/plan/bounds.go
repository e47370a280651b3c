// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Bounds are the numbers of groups that the children of a DisaggregatedSet may have, by [Member]. Those of a third revision may have none.
// The JSON is the spec of a ReplicaBounds, which the admission policies of config/disaggregated read.
type Bounds struct {
	// Roles are those of the children, which a template that waits may lack.
	Roles []Role `json:"roles,omitzero"`
	// Entry is the role whose groups are the units, as in the record, which another client may delete. Empty means the first one.
	Entry string `json:"entry,omitzero"`
	// Stable is the revision whose children have at least Min groups, and at most Max. A nil Max is no limit.
	Stable string         `json:"stable,omitzero"`
	Min    map[string]int `json:"min,omitzero"`
	Max    map[string]int `json:"max,omitzero"`
	// Update is the revision whose children have exactly Exact groups, which make Units. Empty means that there is none.
	Update string         `json:"update,omitzero"`
	Units  int            `json:"units,omitzero"`
	Exact  map[string]int `json:"exact,omitzero"`
	// Target is the batch that Units were last set for, nil if there was none yet.
	Target *record.Target `json:"target,omitzero"`
	// Routes is the release that routes requests. The bounds outlive their set until requests are routed as before.
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
func (a ScaleChild) String() string {
	return fmt.Sprintf("scale %s to %s", a.Name, Counted(a.Replicas, "group", "groups"))
}

// RemoveBounds deletes bounds that no DisaggregatedSet owns: they would keep its children from being scaled.
type RemoveBounds struct{}

// desiredBounds returns what the bounds are to be, nil if the workload has none. The update revision keeps the units of the last batch.
func (o Observation) desiredBounds() *Bounds {
	stable := o.stableSide()
	if !o.hasRoles() || stable == "" {
		return nil
	}
	if o.Bounds == nil || o.updateForgotten(stable) {
		o.Bounds = o.presentBounds(stable)
	}
	b := Bounds{Entry: o.EntryRole, Stable: stable, Min: map[string]int{}, Others: o.Namesakes}
	for _, r := range o.Roles {
		r.External, r.Unsized = false, ""
		b.Roles = append(b.Roles, r)
	}
	b.Routes = o.routingRelease()
	drain := o.drainsRoles()
	for _, role := range o.drainOrder() {
		left := o.hasGroupsAt(stable, role.Name)
		drain = drain && (o.isReplaced(role) || !left)
		if !drain {
			b.setMin(o, role, role.Replicas)
			continue
		}
		b.setMin(o, role, 0)
		drain = !left // the next role follows once this one has no groups
	}
	if o.hasUpdateChildren() {
		b.Update = o.Bounds.Update
		b.Target = o.Bounds.Target
		b.Units = o.keptUnits()
	}
	b = o.withUnits(b, b.Units)
	if b.Update == "" {
		return &b
	}
	// After a scale-down of the entry role, its last groups finish their requests before they are removed.
	for slice := range o.Slices {
		entry := o.childOf(slice, b.Update, o.entryRole().Name)
		at := entry.member()
		finishing := min(o.Bounds.Exact[at], entry.Replicas)
		b.Exact[at] = max(b.Exact[at], finishing)
	}
	return &b
}

// keptUnits returns how many units of the update revision the bounds keep. Once the user has scaled the entry role down, units that have no place in
// their slice get one in another slice by the batch only, to which the limits apply.
func (o Observation) keptUnits() (units int) {
	full := o.entryRole().Replicas
	if o.replacesUnits() || full == 0 {
		return o.Bounds.Units // the steps of the batch follow
	}
	for slice := range o.Slices {
		units += min(o.boundedUnits(slice, o.Bounds.Update), full)
	}
	return min(units, o.Bounds.Units)
}

// updateForgotten reports whether another client has removed the update revision from the bounds while it has groups.
func (o Observation) updateForgotten(stable string) bool {
	r := o.release()
	return r != nil && o.Bounds.Update == "" && r.UpdateRevision != stable && o.isAliveAt(r.UpdateRevision)
}

// routingRelease returns the release that routes requests or has yet to restore their routes, "" if there is none.
func (o Observation) routingRelease() string {
	r := o.release()
	unfinished := o.Traffic != nil && r != nil && r.Phase.Unfinished()
	switch {
	case !unfinished && !o.trafficDrifted():
		return ""
	case r == nil:
		return o.Bounds.Routes // another client has deleted the record, and only the bounds name the routes
	default:
		return r.ID
	}
}

// keepLeft returns bounds that keep the groups which are left of the stable revision, and no more.
func (o Observation) keepLeft(b Bounds) Bounds {
	for slice := range o.Slices {
		for _, role := range o.Roles {
			b.Min[Member(slice, role.Name)] = min(o.childOf(slice, b.Stable, role.Name).Replicas, role.Replicas)
		}
	}
	return b
}

// presentBounds returns bounds that follow from the present children, after another client has deleted the bounds, or removed the update revision
// from them while it has groups.
func (o Observation) presentBounds(stable string) *Bounds {
	b := Bounds{Stable: stable, Min: map[string]int{}, Exact: map[string]int{}}
	if r := o.release(); r != nil && (o.replacesUnits() || !InPlace(o.Policy.Style)) {
		// The update revision comes last and so is preferred. Without groups of it, those of the template before may still serve.
		for _, c := range append(slices.Clone(o.Children), Child{Revision: r.UpdateRevision}) {
			if c.Revision != stable && o.hasGroupsAt(c.Revision, "") {
				b.Update = c.Revision
			}
		}
	}
	for slice := range o.Slices {
		for _, role := range o.Roles {
			at := Member(slice, role.Name)
			b.Min[at] = role.Replicas
			b.Exact[at] = o.childOf(slice, b.Update, role.Name).Replicas
			if role.Name == o.entryRole().Name {
				b.Units += min(b.Exact[at], role.Replicas) // groups above replicas are no units: they finish their requests
			}
		}
	}
	if o.replacesUnits() {
		b = o.keepLeft(b)
	}
	return &b
}

// setMin has the stable revision have at least a number of groups of a role, in each slice.
func (b *Bounds) setMin(o Observation, role Role, least int) {
	for slice := range o.Slices {
		b.Min[Member(slice, role.Name)] = least
	}
}

// drainsRoles reports whether a promotion has begun to remove the groups of the stable revision.
func (o Observation) drainsRoles() bool {
	if o.Bounds == nil || !o.handingOver() || o.Bounds.Stable != o.stableSide() {
		return false
	}
	// The sizes are those in the bounds: a role that the user has scaled to 0 and back is not drained.
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

// roleAction returns the write of children for one of units, nil if there is none.
func (o Observation) roleAction(action Action) Action {
	b := o.desiredBounds()
	if b != nil && o.Bounds != nil && b.Update != "" && o.Bounds.Update == "" {
		// Another client has removed the update revision. Bounded again, its groups leave in order.
		return o.boundsAction(*b, "bound the children of "+o.Stable.Name)
	}
	tooLow := b != nil && o.Bounds != nil && b.Stable == o.Bounds.Stable && anyFewer(b.Min, o.Bounds.Min) // LWS could still remove groups that are to stay
	raise := SetBounds{Bounds: ptr.Deref(b, Bounds{}), Why: "keep the groups that requests return to"}
	if tooLow && o.needsOldGroups(action) {
		return raise
	}
	switch a := action.(type) {
	case SetStable:
		if first := o.holdChildren(); first != nil {
			return first // a record without the hold would be none
		}
		ends := o.rollsBack() && phaseOf(a.Record.Release) == record.CleaningUp
		switch {
		case a.Replicas != nil && *a.Replicas > 0 && o.boundsAction(o.keepLeft(*b), "") != nil:
			return o.boundsAction(o.keepLeft(*b), a.Why) // before LWS removes more
		case tooLow && ends:
			return raise
		case o.Record == nil || !reflect.DeepEqual(a.Record, *o.Record):
			// Only the record is written. The next observation decides what remains.
			return SetStable{Record: a.Record, Why: a.Why}
		case b == nil:
			return nil
		}
		if a.Replicas != nil && *a.Replicas == 0 {
			b.lowerLast(o)
		}
		return o.boundsAction(*b, a.Why)
	case SetTraffic:
		if b != nil && o.Bounds != nil && b.Routes != "" && b.Routes != o.Bounds.Routes {
			return SetBounds{Bounds: *b, Why: "note that release " + b.Routes + " routes the requests of " + o.Stable.Name}
		}
	case CreateCanary:
		why := fmt.Sprintf("prepare revision %s of %s with %s", a.Revision, o.Stable.Name, Counted(a.Replicas, "unit", "units"))
		return o.unitsAction(a.Revision, a.Replicas, a.Target, why)
	case ScaleCanary:
		revision := o.canary().Carries
		why := fmt.Sprintf("set revision %s of %s to %s", revision, o.Stable.Name, Counted(a.Replicas, "unit", "units"))
		return o.unitsAction(revision, a.Replicas, a.Target, why)
	case DeleteCanary:
		return o.deleteUnits(a)
	case HandOver:
		if write := o.boundsAction(*b, "no child of "+o.stableSide()+" may have groups any more"); write != nil {
			return write
		}
		r := o.release()
		return SetStable{
			Record: a.Record,
			Why:    fmt.Sprintf("revision %s of %s has replaced revision %s", r.UpdateRevision, o.Stable.Name, r.StableRevision),
		}
	}
	return action
}

// needsOldGroups reports whether requests, or groups, may return to the stable revision by a write.
func (o Observation) needsOldGroups(action Action) bool {
	switch a := action.(type) {
	case SetTraffic:
		return true
	case LabelServing:
		return a.Serves
	case RestoreTemplate:
		return o.rollsBack() // LWS creates the children within the bounds
	}
	return false
}

// holdChildren returns the write that bounds children which have no bounds yet, nil if it is not due.
func (o Observation) holdChildren() Action {
	b := o.desiredBounds()
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

// sameBounds reports whether two bounds differ in nothing that would have to be written. The entry role is not compared: every write has it, and
// the first write of a release comes before the release has any effect.
func sameBounds(a, b Bounds) bool {
	return slices.Equal(a.Roles, b.Roles) &&
		a.Stable == b.Stable && maps.Equal(a.Min, b.Min) && maps.Equal(a.Max, b.Max) &&
		a.Update == b.Update && a.Units == b.Units && maps.Equal(a.Exact, b.Exact) && reflect.DeepEqual(a.Target, b.Target) &&
		a.Routes == b.Routes && slices.Equal(a.Others, b.Others)
}

// lowersBounds reports whether bounds allow LWS to remove groups that the present ones keep.
func (o Observation) lowersBounds(next Bounds) bool {
	if o.Bounds == nil {
		return false
	}
	return next.Stable != o.Bounds.Stable || anyFewer(o.Bounds.Min, next.Min) || anyFewer(o.Bounds.Exact, next.Exact)
}

// anyFewer reports whether a member has fewer groups after than before.
func anyFewer(before, after map[string]int) bool {
	for member, n := range before {
		if after[member] < n {
			return true
		}
	}
	return false
}

// unitsAction returns the write that lets the update revision have a number of units.
func (o Observation) unitsAction(revision string, units int, target *record.Target, why string) Action {
	b := o.desiredBounds()
	if b == nil {
		return nil
	}
	b.Update, b.Target = revision, target
	return o.boundsAction(o.withUnits(*b, units), why)
}

// deleteUnits returns the next write that removes the units of the update revision: first the bounds of the units, and last, once LWS has deleted
// the groups, the revision. Nil means that the groups are being deleted.
func (o Observation) deleteUnits(a DeleteCanary) Action {
	b := o.desiredBounds()
	switch {
	case b == nil || b.Update == "":
		return nil
	case b.Units > 0, anyFewer(b.Exact, nil):
		b.Target = nil // the batch is over
		return o.boundsAction(o.withUnits(*b, 0), a.String())
	case o.hasGroupsAt(b.Update, "") && !o.leavesGroups(b.Update):
		return nil
	}
	why := "revision " + b.Update + " is removed"
	b.Update, b.Target = "", nil
	return o.boundsAction(o.withUnits(*b, 0), why)
}

// keepRoles adds to a decision the write of the bounds, or that of a child which has another number of groups than is wanted within them: LWS
// does not scale children while a template waits.
func keepRoles(o Observation, d Decision) Decision {
	b := o.desiredBounds()
	if o.Record == nil {
		b = o.Bounds // these stay as they are, and what a release has added is removed
	}
	if b == nil {
		return d
	}
	if a := o.boundsAction(*b, "bound the children of "+o.Stable.Name); a != nil {
		d.Action = a
		return scalesRoles(d)
	}
	if r := o.release(); r != nil && r.SlicesWait {
		// After a refusal, LWS creates the slices only a quarter of an hour later, or once the set is written.
		next := amendRelease(o, func(r *record.Release) { r.SlicesWait = false })
		d.Action = SetStable{Record: next, Why: "have LeaderWorkerSet add slices to " + o.Stable.Name}
		return scalesRoles(d)
	}
	if leaving := o.leavingGroups(); len(leaving) > 0 {
		if wait := awaitDrained(o); wait != nil {
			d.Recheck = earliest(d.Recheck, wait.Recheck)
		}
		d.Message += "; " + Counted(len(leaving), "group of "+o.entryRole().Name+" is to finish its requests", "groups of "+o.entryRole().Name+" are to finish their requests")
		d = scalesRoles(d)
	}
	for _, shrinks := range []bool{true, false} { // first, so that one that can't grow keeps no other from shrinking
		for _, c := range o.Children {
			want := o.childReplicas(*b, c)
			if c.Deleting || c.Replicas == want || shrinks != (want < c.Replicas) {
				continue
			}
			d.Action = ScaleChild{Name: c.Name, Replicas: want}
			return scalesRoles(d)
		}
	}
	return d
}

// childReplicas returns how many groups a child is to have: its present number, unless the bounds say another.
func (o Observation) childReplicas(b Bounds, c Child) int {
	switch {
	case c.Revision == b.Update:
		return b.Exact[c.member()]
	case o.Record == nil:
		return c.Replicas
	case c.Revision == b.Stable:
		return b.Min[c.member()]
	case c.Revision == o.Stable.Revision && o.Stable.servingGroups(o.Stable.Replicas) == o.Stable.Replicas:
		return 0 // LWS has rolled to it without bounds, and drains only revisions that are not in the spec
	default:
		return c.Replicas // LWS drains it
	}
}

// scalesRoles marks a batch as not complete: children are still scaled for it.
func scalesRoles(d Decision) Decision {
	if d.State == pb.State_STATE_READY {
		d.State, d.Reason = pb.State_STATE_UPGRADING, ReasonRolesScaling
	}
	return d
}
