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
func (a ScaleChild) String() string {
	return fmt.Sprintf("scale %s to %s", a.Name, Counted(a.Replicas, "group", "groups"))
}

// RemoveBounds deletes bounds that no DisaggregatedSet owns: they would keep its children from being scaled.
type RemoveBounds struct{}

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
	if r := o.release(); r != nil && (o.shifts() || !InPlace(o.Policy.Style)) {
		// That of the template before may serve still.
		for _, c := range append(slices.Clone(o.Children), Child{Revision: r.UpdateRevision}) {
			if c.Revision != stable && o.left(c.Revision, "") {
				b.Update = c.Revision
			}
		}
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
		return o.unitsAction(a.Revision, a.Replicas, a.Target, fmt.Sprintf("prepare revision %s of %s with %s", a.Revision, o.Stable.Name, Counted(a.Replicas, "unit", "units")))
	case ScaleCanary:
		return o.unitsAction(o.canary().Carries, a.Replicas, a.Target, fmt.Sprintf("set revision %s of %s to %s", o.canary().Carries, o.Stable.Name, Counted(a.Replicas, "unit", "units")))
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
	if r := o.release(); r != nil && r.SlicesWait { // after refusals, LWS tries again only a quarter of an hour later, or if the set is written
		d.Action = SetStable{Record: amendRelease(o, func(r *record.Release) { r.SlicesWait = false }), Why: "have LeaderWorkerSet add slices to " + o.Stable.Name}
		return scalesRoles(d)
	}
	if leaving := o.leavingUnits(); len(leaving) > 0 {
		if wait := drained(o); wait != nil {
			d.Recheck = earliest(d.Recheck, wait.Recheck)
		}
		d.Message += "; " + Counted(len(leaving), "group of "+o.entryRole().Name+" is to finish its requests", "groups of "+o.entryRole().Name+" are to finish their requests")
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
