// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A release never loses capacity to load that it moved itself. Holds on autoscalers prevent that; what follows is for
// autoscalers that could not be held: ones that the driver may not read, and ones of other kinds.

// batchReplicas returns the number of groups that batches are computed from: the replicas in the spec, or those at the
// beginning of the release if no person has removed groups since. In place no load leaves the workload.
func (o Observation) batchReplicas() int {
	r := o.release()
	if r == nil || o.Stable.scaledByPerson() || o.inPlace() {
		return o.Stable.Replicas
	}
	return max(o.Stable.Replicas, min(r.Replicas, o.maxReplicas()))
}

// scaledByPerson reports whether neither an autoscaler nor the driver, in a handover, wrote the replicas.
func (w Workload) scaledByPerson() bool { return !w.Autoscaled && w.ScaledBy != record.FieldManager }

// maxReplicas returns the most groups that the users of the workload's autoscalers allow.
func (o Observation) maxReplicas() int {
	most := math.MaxInt
	for _, a := range o.Autoscalers {
		if a.Targets && a.Max > 0 {
			most = min(most, a.Max)
		}
	}
	return most
}

// keptGroups returns how many groups the canary keeps while it receives requests: if an autoscaler scaled the workload
// last, all that the target allows.
func (o Observation) keptGroups(planned func(replicas int) int) int {
	c := o.canary()
	if c == nil || !o.Stable.Autoscaled || c.ScaledBy != record.FieldManager {
		return 0
	}
	if o.Traffic != nil && o.Traffic.Facts().Weight == 0 {
		return 0
	}
	if most := o.maxReplicas(); most < math.MaxInt {
		return min(c.Replicas, planned(most))
	}
	return c.Replicas
}

// followScaleDown records that a person has scaled the workload down, or an autoscaler before the release could move any load, so that the
// release no longer defends the former number of groups. Nil means that it was not.
func followScaleDown(o Observation) *Decision {
	moved := o.inPlace() || slices.ContainsFunc(o.Added, func(w Workload) bool { return w.existingGroups() > 0 })
	follows := o.Stable.scaledByPerson() || o.Stable.Autoscaled && !moved
	if !follows || o.unsizedRole() != "" || o.Stable.Replicas >= o.Record.Release.Replicas {
		return nil
	}
	next := amendRelease(o, func(r *record.Release) { r.Replicas = o.Stable.Replicas })
	why := fmt.Sprintf("%s was scaled down to %s: the release follows", o.Stable.Name, Counted(o.Stable.Replicas, "group", "groups"))
	return ptr.To(writeStable(SetStable{Record: next, Why: why}, ReasonScaling))
}

// awaitStartReplicas fails a promotion, before it returns requests to the user's own groups, while there are fewer than at
// the beginning. Nil means that there are enough.
func awaitStartReplicas(o Observation) *Decision {
	want := o.batchReplicas()
	if o.Record.Release.Phase != record.Promoting || o.Stable.Replicas >= want {
		return nil
	}
	return &Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonStableShrunk,
		Message: fmt.Sprintf("%s scaled %s to %s while the release had moved its load; the requests stay where they are until it has %d groups as "+
			"at the beginning: run %s", o.Stable.ScaledBy, o.Stable.Name, Counted(o.Stable.Replicas, "group", "groups"), want,
			o.kubectl(fmt.Sprintf("scale lws %s --replicas=%d", o.Stable.Name, want))),
	}
}

// describeDegraded describes what each side can carry during a rollback, if the stable side has fewer ready groups than at the
// beginning. Empty means that it has not.
func (o Observation) describeDegraded() string {
	c := o.canary()
	if phaseOf(o.release()) != record.CleaningUp || c == nil {
		return ""
	}
	want, ready := o.batchReplicas(), o.Stable.servingGroups(o.Stable.Replicas)
	if ready >= want {
		return ""
	}
	return fmt.Sprintf("; %d of %d groups of %s are ready, and %d of %d of %s: scale or repair %[3]s",
		ready, want, o.Stable.Name, c.servingGroups(c.Replicas), c.Replicas, c.Name)
}

// The revision of a workload without groups is that of its template: LWS keeps no other, and starts the next group at it,
// released or not.

// lostStable reports whether no group is left at the stable revision, although the batches leave some there.
func (o Observation) lostStable() bool {
	r := o.release()
	if r.Phase != record.Progressing || r.StableRevision == r.UpdateRevision {
		return false
	}
	released := 0
	if o.inPlace() {
		if r.StableTemplate != nil {
			return false // a batch has replaced the last stable group
		}
		released = o.plannedGroups()
	}
	if o.Stable.Replicas == 0 {
		return true
	}
	n := o.Stable.existingGroups()
	if n == 0 {
		return o.lacksChild(r.StableRevision)
	}
	return n > released && len(o.groupsOffRevision()) == n
}

// canSaveTemplate reports whether the record lacks the stable template, and LWS or the history has it. The record of a
// DisaggregatedSet has none.
func (o Observation) canSaveTemplate() bool {
	r := o.release()
	return r.StableTemplate == nil && !o.hasRoles() && (slices.Contains(o.Stable.Recorded, r.StableRevision) || o.hasTemplate(r.StableRevision))
}

// advanceUnreleased is for a release that has lost its stable revision. In place no group is updated
// any more. Once there is nothing left to write, the release fails.
func advanceUnreleased(o Observation, s Progress) Decision {
	r := o.Record.Release
	save := o.canSaveTemplate() && !o.inPlace()
	if a := repairHold(o); a != nil || save {
		const why = "no group runs the stable revision any more: hold, and keep its template"
		d := writeStable(SetStable{Record: *o.Record, Rolling: hold(), SaveTemplate: save, Why: why}, ReasonUnreleased)
		d.State = pb.State_STATE_FAILED
		return d
	}
	d := Decision{}
	if !o.inPlace() {
		d = advanceCanary(o, s)
	} else if _, routed := routeInPlace(o); routed != nil {
		d = *routed
	}
	if d.Action != nil {
		return d
	}
	d = Decision{State: pb.State_STATE_FAILED, Reason: ReasonScaledToZero, Recheck: d.Recheck}
	wayOut := fmt.Sprintf("Abort to restore the template of revision %s, or promote to accept it", r.StableRevision)
	if o.Stable.Replicas == 0 {
		d.Message = fmt.Sprintf("%s was scaled to 0 groups during the release: if it is scaled up, LeaderWorkerSet starts revision %s, which is not released. %s",
			o.Stable.Name, r.UpdateRevision, wayOut)
		return d
	}
	d.Reason = ReasonUnreleased
	if o.hasRoles() {
		d.Message = fmt.Sprintf("no group of %s runs revision %s any more: the roles were scaled to 0 groups, or another client deleted its children. %s",
			o.Stable.Name, r.StableRevision, wayOut)
		return d
	}
	d.Message = fmt.Sprintf("all %d groups of %s run revision %s, of which the release has released %d: the workload was scaled to 0 groups, "+
		"or another client removed the hold. %s", o.Stable.existingGroups(), o.Stable.Name, r.UpdateRevision, s.Planned, wayOut)
	return d
}
