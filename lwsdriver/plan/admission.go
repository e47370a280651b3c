// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A server may limit how many groups all its releases have in flight: groups that a release created or has replaced, and that are
// not ready yet. A write that would exceed the limit waits for admission. The request is recorded at once, and only its effect waits.
// Rollbacks never wait.

// awaitAdmission withholds a write of the loop that starts more groups than the release may have in flight. A release that starts groups
// under a limit may have waited, so its deadline begins now.
func awaitAdmission(o Observation, d Decision) Decision {
	n := o.startedGroups(d.Action)
	if n == 0 || o.MaxInFlight == nil {
		return d
	}
	stuck := d.Progress.stuckSince(0)
	if own := o.inFlight(d.State, stuck); own+n > *o.MaxInFlight {
		d.Action, d.Wait, d.Reason = nil, WaitAdmission, ReasonWaitingForAdmission
		if own > 0 {
			d.Recheck = earliest(d.Recheck, stuck.Add(o.progressDeadline()).Sub(o.Now))
		}
		d.Message = fmt.Sprintf("the next %s for admission: as many groups of other releases are starting as --max-groups-in-flight allows",
			Counted(n, "group waits", "groups wait"))
		return d
	}
	if a, ok := d.Action.(SetStable); ok {
		next := *a.Record.Release
		next.PhaseAt = o.Now
		a.Record.Release = &next
		d.Action = a
	}
	return d
}

// recordOnly returns the write that records an intent, without its effect if that has to wait for admission, or until LWS may roll.
func recordOnly(o Observation, a Action) Action {
	n := o.startedGroups(a)
	exceeds := n > 0 && o.MaxInFlight != nil && o.inFlight(pb.State_STATE_UPGRADING, time.Time{})+n > *o.MaxInFlight
	rolls := o.release() != nil && !o.hasRoles() // else LWS rolls by bounds, which the loop writes
	if !exceeds && (!rolls || limitRoll(o, a) == nil) {
		return a
	}
	switch a := a.(type) {
	// The target is written with the present size, and the loop scales once the groups are admitted.
	case ScaleCanary:
		a.Replicas = o.canary().Replicas
		return a
	case SetStable:
		a.Rolling = nil
		return a
	}
	return a
}

// countInFlight adds the groups that the release has in flight, and those that the write adds. A release that only waits for its
// scale-down delay has none: no deadline ends that wait.
func countInFlight(o Observation, d Decision) Decision {
	d.Starts = o.startedGroups(d.Action)
	if d.Reason != ReasonScaleDownDelay {
		d.InFlight = o.inFlight(d.State, d.Progress.stuckSince(0))
	}
	return d
}

// startedGroups returns how many groups a write has LWS create or replace at once. A rollback counts as none.
func (o Observation) startedGroups(a Action) int {
	switch a := a.(type) {
	case CreateCanary:
		return o.groupsOfUnits(a.Revision, a.Replicas)
	case ScaleCanary:
		c := o.canary()
		return max(o.groupsOfUnits(c.Carries, a.Replicas)-o.groupsOfUnits(c.Carries, c.Replicas), 0)
	case SetStable:
		if r := a.Record.Release; a.Rolling != nil && r != nil && (r.Phase == record.Promoting || r.Phase == record.Progressing) {
			return max(o.replacedAtOnce(*a.Rolling)-o.replacedAtOnce(o.Stable.Rolling), 0)
		}
	}
	return 0
}

// replacedAtOnce returns how many groups of the user's workload LWS replaces at once under a rolling update configuration.
func (o Observation) replacedAtOnce(r rolling) int {
	from := int(ptr.Deref(r.Partition, 0))
	if from >= o.Stable.Replicas {
		return 0 // as under the hold, without a look at each group
	}
	due := 0
	for g, n := range o.Stable.Wanted(from) {
		if !g.Ready || !g.atRevision(o.Stable.Revision) {
			due += n
		}
	}
	return min(due, scaledValue(r.MaxUnavailable, o.Stable.Replicas, false)+scaledValue(r.MaxSurge, o.Stable.Replicas, true))
}

// inFlight returns how many groups the release has created or has replaced that are not ready yet. In a state that waits for no
// group there are none: a release that has failed, or tolerates groups that are not ready, must not hold up others. Nor must one that
// waits for admission itself, and so does not fail, while its groups have been stuck for the progress deadline.
func (o Observation) inFlight(state pb.State, stuck time.Time) int {
	if o.isOverdue(stuck) {
		return 0
	}
	switch state {
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING, pb.State_STATE_ROLLING_BACK:
	default:
		return 0
	}
	n := o.replacedAtOnce(o.Stable.Rolling)
	for _, w := range o.Added {
		switch {
		case w.Deleting:
			continue
		case o.hasRoles():
			n += o.missingGroups(w.Carries)
			continue
		}
		for g, missing := range w.Wanted(0) {
			if !g.Ready {
				n += missing
			}
		}
	}
	return n
}

// groupsOfUnits returns how many groups a number of units of a revision has, in all roles and slices. Without roles a unit is a group.
func (o Observation) groupsOfUnits(revision string, units int) (groups int) {
	if !o.hasRoles() {
		return units
	}
	for _, r := range o.Roles {
		groups += o.roleGroupsInAll(r, revision, units)
	}
	return groups
}

// missingGroups returns how many of the groups that the bounds give a revision are not ready, in all roles and slices.
func (o Observation) missingGroups(revision string) (missing int) {
	if o.Bounds == nil || o.Bounds.Update != revision {
		return 0
	}
	for slice := range o.Slices {
		for _, r := range o.Roles {
			missing += max(o.Bounds.Exact[Member(slice, r.Name)]-countReady(o.childOf(slice, revision, r.Name).Groups), 0)
		}
	}
	return missing
}
