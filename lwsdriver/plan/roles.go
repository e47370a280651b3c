// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
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
	ScaledBy string `json:"scaledBy,omitzero"`
	// Autoscaler is one that scales the child by itself. Empty means none.
	Autoscaler string  `json:"autoscaler,omitzero"`
	Deleting   bool    `json:"deleting,omitzero"`
	Groups     []Group `json:"groups,omitzero"`
}

// Part is how many groups of a workload a child has. Child is empty if it does not exist.
type Part struct {
	Child  string `json:"child,omitzero"`
	Groups int    `json:"groups,omitzero"`
}

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

// inCommands returns how commands name the workload.
func (o Observation) inCommands() string {
	if o.hasRoles() {
		return "disaggregatedset/" + o.Stable.Name
	}
	return o.Stable.Name
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

// child returns the child of a role, with only its role if there is none.
func (o Observation) child(slice int, revision, role string) Child {
	for _, c := range o.Children {
		if c.Slice == slice && c.Revision == revision && c.Role == role {
			return c
		}
	}
	return Child{Role: role, Slice: slice, Revision: revision}
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

// writesChildren reports whether a write of units is one of children.
func (o Observation) writesChildren() bool { return o.hasRoles() && !o.Stable.Deleting && !o.Gone }

// inRoles returns a decision whose write is one of children instead of units.
func inRoles(o Observation, d Decision) Decision {
	if o.BoundsLeft && d.Action == nil && !o.trafficDrifted() { // they say how requests were routed
		d.Action = RemoveBounds{}
	}
	if !o.writesChildren() {
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
	if o.SlicesWaiting > 0 && o.Bounds != nil { // else LWS rolls them by itself
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
			when := "if it stays away" // LWS may be about to create it
			if !stable && o.anyChild(slice, func(c Child) bool { return c.Revision == revision && c.Replicas > 0 }) {
				when = "after an abort"
			}
			return lacks, fmt.Sprintf("%s, run `kubectl delete leaderworkersets%s`, and LeaderWorkerSet creates them all", when, o.namesOf(slice, revision))
		}
	}
	return "", ""
}

// namesOf returns the names of a revision's children in a slice, each after a space.
func (o Observation) namesOf(slice int, revision string) (names string) {
	for _, c := range o.Children {
		if c.Slice == slice && c.Revision == revision {
			names += " " + c.Name
		}
	}
	return names
}

// rests reports whether a decision is that of a set without a release that is not over.
func (o Observation) rests(d Decision) bool {
	over := d.State == pb.State_STATE_COMPLETED || d.State == pb.State_STATE_NOTHING_TO_RELEASE
	return d.Action == nil && (over || d.State == pb.State_STATE_HOLDING && o.release() == nil)
}

// revive says how a revision whose children are gone runs again while another template waits, or how that one starts instead.
func (o Observation) revive(revision string) string {
	back := fmt.Sprintf("To go back to revision %s, %s", revision, o.restoring(revision))
	if slices.ContainsFunc(o.Children, func(c Child) bool { return c.Replicas > 0 }) {
		return back
	}
	return fmt.Sprintf("%s. To start all groups at revision %s instead, run `lockstep disown %s`, and then `lockstep adopt %[3]s`", back, o.Stable.Revision, o.inCommands())
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
		Action: RestoreTemplate{Revision: r.StableRevision}, Reason: ReasonTemplateRestored,
		Message: fmt.Sprintf("the template of revision %s is being restored", r.StableRevision),
	}
}

// anyChild reports whether a slice has a child of which f is true.
func (o Observation) anyChild(slice int, f func(Child) bool) bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool { return c.Slice == slice && f(c) })
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

// describeBatch returns how many groups of each role a batch asks for are ready, "" for a LeaderWorkerSet.
func (o Observation) describeBatch() string {
	return o.describeRoles((*pb.Role).GetUpdatedReady, (*pb.Role).GetPlanned)
}

// describeStable returns how many groups of each role are ready at the stable revision, "" for a LeaderWorkerSet.
func (o Observation) describeStable() string {
	return o.describeRoles((*pb.Role).GetStableReady, (*pb.Role).GetReplicas)
}

func (o Observation) describeRoles(have, want func(*pb.Role) int32) string {
	if !o.hasRoles() {
		return ""
	}
	counts := RoleCounts(o)
	all := make([]string, 0, len(counts))
	for _, r := range counts {
		all = append(all, fmt.Sprintf("%s %d/%d", r.GetName(), have(r), want(r)))
	}
	return " (" + strings.Join(all, ", ") + ")"
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
	case o.Record == nil:
		return o.checkAutoscaled()
	}
	return nil
}

// checkAutoscaled refuses a set of which an autoscaler scales a child: the next child has another name, and LWS and Lockstep take its groups away.
func (o Observation) checkAutoscaled() error {
	i := slices.IndexFunc(o.Children, func(c Child) bool { return c.Autoscaler != "" })
	if i < 0 {
		return nil
	}
	c := o.Children[i]
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		"%s scales LeaderWorkerSet %s, a child of %s: have it scale DisaggregatedSetRoleScaler %s-%s, with scaling.mode External in the role (LWS v0.10.0), or delete it",
		c.Autoscaler, c.Name, o.object(), o.Stable.Name, c.Role)
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
	case p.GetCanaryLeaderMetadata() != nil || p.GetRolloutId() != "":
		return refuse("policy.canary_leader_metadata and policy.rollout_id are for LeaderWorkerSets: leave them out for %s", o.object())
	}
	if err := o.checkAutoscaled(); err != nil {
		return err
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
