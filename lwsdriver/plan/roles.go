// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A DisaggregatedSet has roles, and LWS creates a LeaderWorkerSet for each role at each revision: its children. The planner decides about
// units: a unit is a group of the entry role with its part of the groups of every other role. [Observation.formUnits] makes units of the children,
// so that a DisaggregatedSet looks like any other workload, and [inRoles] turns writes of units into writes of children. A LeaderWorkerSet has
// no roles, and both leave it as it is.
//
// A DisaggregatedSet has all its roles in each of its slices. Prefill and decode pair within a slice: LWS has a Service for each role, revision
// and slice. So every unit is in one slice, and a batch fills one slice after another.
//
// The hold of a DisaggregatedSet is the bounds of its children: those of the stable revision keep their groups, those of the update revision
// have exactly the groups of the batch, and all others have none. An admission policy enforces the bounds for every client. LWS rolls a
// DisaggregatedSet by scaling its children, so it can't roll one whose children are bounded.

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
	// Legacy is true if LWS v0.9.0 made it, which has no slices.
	Legacy bool `json:"legacy,omitzero"`
	// Replicas is the number of groups in its spec.
	Replicas int `json:"replicas,omitzero"`
	// Unobserved is true until LWS has observed the present spec: it may still remove groups that this one has.
	Unobserved bool `json:"unobserved,omitzero"`
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

// BegunEntryRole returns the entry role that the last release began with: that of the record, or that of the bounds once another client has
// deleted the record. Empty means the first role.
func BegunEntryRole(o Observation) string {
	switch r := o.release(); {
	case r != nil:
		return r.EntryRole
	case o.Bounds != nil:
		return o.Bounds.Entry
	}
	return ""
}

// EntryRole returns the name of the entry role of an observation that is not judged yet.
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

// objectName returns the kind, namespace and name of the workload, for messages.
func (o Observation) objectName() string {
	kind := "LeaderWorkerSet"
	if o.hasRoles() {
		kind = "DisaggregatedSet"
	}
	return fmt.Sprintf("%s %s/%s", kind, o.Key.Namespace, o.Stable.Name)
}

// inCommands returns how commands of lockstep name the workload: with its namespace, since that of a kubeconfig may have one of the same name.
func (o Observation) inCommands() string {
	name := o.Stable.Name
	if o.hasRoles() {
		name = "disaggregatedset/" + name
	}
	return name + " -n " + o.Key.Namespace
}

// kubectl returns a command for objects in the workload's namespace.
func (o Observation) kubectl(command string) string {
	return "kubectl -n " + o.Key.Namespace + " " + command
}

// kubectlDescribe returns the command that shows the workload with its events.
func (o Observation) kubectlDescribe() string {
	if o.hasRoles() {
		return o.kubectl("describe disaggregatedset " + o.Stable.Name)
	}
	return o.kubectl("describe lws " + o.Stable.Name)
}

// Member returns the key of a role of a slice in [Bounds].
func Member(slice int, role string) string { return strconv.Itoa(slice) + "-" + role }

func (c Child) member() string { return Member(c.Slice, c.Role) }

// PaceOf returns how many groups of a role may be unavailable, and how many may surge, as LWS's controller reads them: if both are 0, one may surge.
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

// ServingRoles returns the roles that the groups have. The template in the spec may have other roles while it waits for a release. Then those of
// the groups keep their order, and a role that the template lacks keeps the sizes that it had.
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
	released := func(c Child) bool { return c.Revision == stable || c.Revision == update }
	if len(serving) == 0 { // another client has deleted the bounds
		serving = slices.DeleteFunc(slices.Clone(spec), func(r Role) bool {
			return !slices.ContainsFunc(o.Children, func(c Child) bool { return released(c) && c.Role == r.Name })
		})
	}
	for _, c := range o.Children {
		if released(c) && indexRole(serving, c.Role) < 0 {
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

// maxSlices is how many slices the bounds can have numbers of, by the schema of ReplicaBounds. The schema of LWS v0.10.0 allows as many.
const maxSlices = 100

// dropWaitingSlices leaves out slices that no release covers. LWS creates a slice only at the template in the spec, so one that is added while
// another revision serves has no groups until that template is released or restored. Nor does LWS add one to legacy children, which the bounds
// keep it from deleting. LWS itself deletes slices that were removed.
func (o *Observation) dropWaitingSlices() {
	wanted, stable := max(o.Slices, 1), o.stableSide()
	o.Slices = min(wanted, maxSlices)
	waits := stable != "" && stable != o.Stable.Revision || o.isLegacy()
	inLast := func(c Child) bool { return c.Slice == o.Slices-1 && (c.Revision == stable || c.Replicas > 0) }
	for waits && o.Slices > 1 && !slices.ContainsFunc(o.Children, inLast) {
		o.Slices--
	}
	o.SlicesWaiting = wanted - o.Slices
	o.Children = slices.DeleteFunc(slices.Clone(o.Children), func(c Child) bool { return c.Slice < 0 || c.Slice >= o.Slices })
}

// isLegacy reports whether children of the template in the spec are legacy ones.
func (o Observation) isLegacy() bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool { return c.Legacy && c.Revision == o.Stable.Revision })
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

// childOf returns the child of a role, with only its role if there is none.
func (o Observation) childOf(slice int, revision, role string) Child {
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
		indexRole(o.Roles, c.Role) >= 0 && o.hasUpdateChildren() && c.Revision == o.Bounds.Update
}

// coolRoles makes the groups of other roles not ready whose leaders have not answered their warm-up requests. The groups of units that get
// requests have been warmed up, maybe by an earlier driver.
func (o *Observation) coolRoles() {
	for i := range o.Children {
		c := &o.Children[i]
		if !o.warmsUpRole(*c) {
			continue
		}
		entry := o.childOf(c.Slice, c.Revision, o.entryRole().Name)
		serving := Workload{Groups: entry.Groups}.count(func(g Group) bool { return g.Serving })
		warm := o.roleGroups(o.Roles[indexRole(o.Roles, c.Role)], serving)
		c.Groups = slices.Clone(c.Groups) // the cache shares them
		for n, at := range readyFirst(c.Groups) {
			if n >= warm {
				c.Groups[at].awaitWarmUp()
			}
		}
	}
}

// hasGroupsAt reports whether a role, or with "" any, has groups at a revision.
func (o Observation) hasGroupsAt(revision, role string) bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool {
		return c.Revision == revision && (role == "" || c.Role == role) &&
			(c.Replicas > 0 || slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Revision != "" }))
	})
}

// writesChildren reports whether a write of units is one of children.
func (o Observation) writesChildren() bool { return o.hasRoles() && !o.Stable.Deleting }

// inRoles returns a decision whose write is one of children instead of units.
func inRoles(o Observation, d Decision) Decision {
	if o.BoundsLeft && d.Action == nil && !o.trafficDrifted() { // until then the bounds name the routes to restore
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
		d = d.nameReverter("the bounds of its children", o.BoundsBy)
	case ScaleChild:
		i := slices.IndexFunc(o.Children, func(c Child) bool { return c.Name == a.Name })
		d = d.nameReverter("LeaderWorkerSet "+a.Name, o.Children[i].ScaledBy)
	}
	if d.Overwritten != "" && !d.Waiting.Since.IsZero() {
		d.Waiting.Overwritten = d.Overwritten
	}
	if o.SlicesWaiting > 0 && o.Bounds != nil { // else LWS rolls them by itself
		once := "the template in the spec is released or restored"
		if o.isLegacy() {
			once = "another template is released: LeaderWorkerSet adds none to children that its version v0.9.0 made"
		}
		d.Message += fmt.Sprintf("; slices from %d on get groups once %s", o.Slices, once)
	}
	for _, revision := range slices.Compact([]string{o.stableSide(), o.Stable.Revision}) {
		if lacks, remedy := o.lackedChild(revision); lacks != "" {
			d.Message += "; " + lacks + ": " + remedy
			if revision != o.Stable.Revision && o.isAtRest(d) {
				d.Reason = ReasonChildMissing
				d.Message += ". " + o.revivalRemedy(revision)
			}
		}
	}
	if stable := o.stableSide(); d.Reason == ReasonNewRevisionWaits && !slices.ContainsFunc(o.Children, func(c Child) bool { return c.Revision == stable }) {
		d.Message += fmt.Sprintf("; LeaderWorkerSet has deleted the children of revision %s. %s", stable, o.revivalRemedy(stable))
	}
	if o.Record != nil && !o.BoundsEnforced {
		d.Message += "; LeaderWorkerSet may roll its children: " + drivererr.ProblemOf(o.checkEnforced()).Message
	}
	if wait := limitStale(o, d.Action); wait != nil {
		d.Action, d.Reason, d.Message, d.Wait, d.Remedy = nil, wait.Reason, wait.Message, wait.Wait, wait.Remedy
	}
	return d
}

// lackedChild says which child of a revision was deleted although it is needed, and how the user gets it back: LWS creates children only at the
// revision of the template in the spec, and those of a slice only all together. Both are empty if no child is lacking.
func (o Observation) lackedChild(revision string) (lacks, remedy string) {
	stable, inSpec := revision == o.stableSide(), revision == o.Stable.Revision
	if o.Record == nil || o.stableSide() == "" || !stable && !inSpec {
		return "", ""
	}
	for slice := range o.Slices {
		if inSpec && o.createsChildren(slice, stable) {
			continue
		}
		for _, role := range o.Roles {
			if o.childOf(slice, revision, role.Name).Name != "" || stable && o.desiredBounds().Min[Member(slice, role.Name)] == 0 {
				continue
			}
			lacks = fmt.Sprintf("there is no child of role %s at revision %s in slice %d", role.Name, revision, slice)
			if !inSpec {
				return lacks, fmt.Sprintf("restore the template of revision %s, and LeaderWorkerSet creates it", revision)
			}
			when := "if it stays away" // LWS may be about to create it
			if !stable && o.anyChild(slice, func(c Child) bool { return c.Revision == revision && c.Replicas > 0 }) {
				when = "after an abort"
			}
			others, confirm := o.namesOf(slice, revision), ""
			if stable {
				confirm = fmt.Sprintf("`%s` and ", o.kubectl("annotate leaderworkersets"+others+" lockstep.dev/deletable=true"))
			}
			return lacks, fmt.Sprintf("%s, run %s`%s`, and LeaderWorkerSet creates them all", when, confirm, o.kubectl("delete leaderworkersets"+others))
		}
	}
	return "", ""
}

// createsChildren reports whether nothing is to be done about children of the template in the spec that a slice lacks: LWS creates them, or
// their roles are not those of the groups.
func (o Observation) createsChildren(slice int, stable bool) bool {
	if o.RolesWaiting != "" {
		return true
	}
	anyExists := o.anyChild(slice, func(c Child) bool { return c.Revision == o.Stable.Revision })
	otherServes := o.anyChild(slice, func(c Child) bool { return c.Revision != o.Stable.Revision && c.Replicas > 0 })
	return !anyExists || stable && !otherServes // without other groups, LWS recreates a single stable child, too
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

// isAtRest reports whether a decision writes nothing, and the set has no release or one that is over.
func (o Observation) isAtRest(d Decision) bool {
	over := d.State == pb.State_STATE_COMPLETED || d.State == pb.State_STATE_NOTHING_TO_RELEASE
	atRest := d.State == pb.State_STATE_HOLDING && o.release() == nil
	return d.Action == nil && (over || atRest)
}

// revivalRemedy says how a revision whose children are gone runs again while another template waits, or how the template that waits starts instead.
func (o Observation) revivalRemedy(revision string) string {
	back := fmt.Sprintf("To go back to revision %s, %s", revision, o.howToRestore(revision))
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

// restoreChildren returns the write that has LeaderWorkerSet create stable children which a rollback lacks: it restores their template in place
// of the release's. Nil means that none is lacking, or that only the user can restore the template.
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

// failLacking fails a rollback that lacks stable children which LeaderWorkerSet does not create. Nil means that it lacks none.
func failLacking(o Observation) *Decision {
	stable := o.release().StableRevision
	if !o.lacksChild(stable) {
		return nil
	}
	return &Decision{State: pb.State_STATE_FAILED, Reason: ReasonStableShrunk, Message: fmt.Sprintf("revision %s of %s can't return", stable, o.Stable.Name)}
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
			var exist, ready *int32
			switch release := o.release(); {
			case c.Revision == stable:
				exist, ready = &r.Stable, &r.StableReady
			case release != nil && c.Revision == release.UpdateRevision:
				exist, ready = &r.Updated, &r.UpdatedReady
			default:
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
			r.Planned = int32(o.roleGroupsInAll(role, b.Update, b.Units)) //nolint:gosec // no more than replicas
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

// checkEnforced returns why the bounds of the children may not be enforced.
func (o Observation) checkEnforced() error {
	switch p := o.BoundsUnread; {
	case o.BoundsEnforced:
		return nil
	case p != nil:
		return drivererr.New(p.Reason, "whether the bounds of the children of %s are enforced is unknown: %s", o.objectName(), p.Message)
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		"nothing enforces the bounds of the children of %s: install the admission policies lockstep-bounds with kubectl apply -k config/disaggregated (Helm: policies.disaggregated=true)",
		o.objectName())
}

// rollsSlice reports whether a slice has no groups at the stable revision: LWS rolls each slice by itself.
func (o Observation) rollsSlice() bool {
	stable := o.stableSide()
	for slice := range o.Slices {
		if !o.anyChild(slice, func(c Child) bool { return c.Revision == stable && c.Replicas > 0 }) {
			return true
		}
	}
	return false
}

// checkRoles refuses a DisaggregatedSet that can't be held.
func checkRoles(o Observation) error {
	total := 0
	for _, role := range o.Roles {
		total += role.Replicas
	}
	switch {
	case !o.BoundsEnforced:
		return o.checkEnforced()
	case o.Slices+o.SlicesWaiting > maxSlices:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"%s has %d slices, and Lockstep holds at most %d: lower slices, or make several sets", o.objectName(), o.Slices+o.SlicesWaiting, maxSlices)
	case o.unsizedRole() != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "%s. %s", o.unsizedRole(), unsizedRemedy)
	case o.BoundsLeft && o.trafficDrifted(): // those bounds alone name the routes, and new ones would replace them
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"requests are not routed yet as before a release of an earlier %s: try again once they are", o.objectName())
	case total == 0 && o.Record == nil:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"every role of %s has 0 groups, so LeaderWorkerSet starts any template at once: scale a role up first", o.objectName())
	case o.stableSide() == "" || o.Record == nil && o.rollsSlice():
		return drivererr.New(pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS,
			"the children of %s have groups at several revisions, or none: wait until LeaderWorkerSet has rolled them", o.objectName())
	case o.Record == nil:
		return o.checkAutoscaled()
	}
	return nil
}

// checkAutoscaled refuses a set of which an autoscaler scales a child: LWS and Lockstep remove the groups of that child, and the child that
// replaces it has another name.
func (o Observation) checkAutoscaled() error {
	i := slices.IndexFunc(o.Children, func(c Child) bool { return c.Autoscaler != "" })
	if i < 0 {
		return nil
	}
	c := o.Children[i]
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		"%s scales LeaderWorkerSet %s, a child of %s: have it scale DisaggregatedSetRoleScaler %s-%s, with scaling.mode External in the role (LWS v0.10.0), or delete it",
		c.Autoscaler, c.Name, o.objectName(), o.Stable.Name, c.Role)
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
					Description: fmt.Sprintf("%s has no role %q; its roles: %s", o.objectName(), name, cmp.Or(roleNamesOf(o.Roles), "none")),
				})
			}
		}
	}
	return drivererr.Invalid(bad...)
}

// checkRoles refuses a release that is not possible with roles.
func (b Begin) checkRoles(o Observation) error {
	refuse := func(format string, args ...any) error {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, format, args...)
	}
	switch p := b.Policy; {
	case o.entryRole().Replicas == 0:
		return refuse("the entry role %s of %s has 0 groups, so its units can't be counted: scale it up", o.entryRole().Name, o.objectName())
	case p.GetCanaryLeaderMetadata() != nil || p.GetRolloutId() != "":
		return refuse("policy.canary_leader_metadata and policy.rollout_id are for LeaderWorkerSets: leave them out for %s", o.objectName())
	}
	if err := o.checkAutoscaled(); err != nil {
		return err
	}
	stable := o.stableSide()
	orFewer := "" // a set has one slice at least
	for slice := range o.Slices {
		for _, role := range o.Roles {
			if o.childOf(slice, stable, role.Name).Name == "" {
				return refuse("slice %d of %s has no child of role %s at revision %s: restore the template of that revision until LeaderWorkerSet "+
					"has created it%s. %s", slice, o.objectName(), role.Name, stable, orFewer, o.revivalRemedy(stable))
			}
		}
		orFewer = fmt.Sprintf(", or set slices to %d for the release", slice+1)
	}
	if InPlace(b.Policy.GetStyle()) {
		return o.checkShift()
	}
	return nil
}
