// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A group at the stable revision that is broken for a reason of its own, such as a lost node, uses up the user's
// maxUnavailable, and a rollback that restarts groups, or has LWS roll them, waits for it. Only a person knows that it will
// not recover. A rollback with force gives up such groups: they stay as they are, and groups off the stable revision are
// restarted one at a time beyond them, each once the last is available again.
//
// Force never restarts a group at the stable revision, moves no request to a group that is not ready, and does not give up
// a group that the rollback itself has just made unavailable.

// rollsBack reports whether the release is being rolled back.
func (o Observation) rollsBack() bool {
	r := o.release()
	return r != nil && (r.Phase == record.RollingBack || r.Phase == record.CleaningUp)
}

// forced reports whether force was requested for the rollback.
func (o Observation) forced() bool { return o.rollsBack() && o.release().Force }

// givesUp reports whether a group is given up. One that recovers is not.
func (o Observation) givesUp(g Group) bool {
	return o.forced() && slices.Contains(o.release().GivenUp, g.Index) && o.brokenStable(g)
}

// brokenStable reports whether a group is at the stable revision, or missing, and not available.
func (o Observation) brokenStable(g Group) bool {
	return g.Index < o.Stable.Replicas && !g.available(o.Now, o.Policy.MinReady) && !g.Terminating &&
		(g.Revision == "" || g.at(o.release().StableRevision))
}

// givenUp returns how many groups are given up.
func (o Observation) givenUp() int {
	n := 0
	for _, g := range o.Stable.wantedFrom(0) {
		if o.givesUp(g) {
			n++
		}
	}
	return n
}

// forceable returns the groups that force gives up now: the broken ones before a rollback begins, and in a running rollback
// groups that were lost before it began, or have been lost for the progress deadline.
func (o Observation) forceable() []Group {
	r := o.release()
	var out []Group
	for _, g := range o.Stable.wantedFrom(0) {
		lost := g.LostAt
		if lost.IsZero() {
			lost = r.PhaseAt // no pod of it was ever observed
		}
		if o.brokenStable(g) && !o.givesUp(g) &&
			(!o.rollsBack() || lost.Before(r.PhaseAt) || o.overdue(lost)) {
			out = append(out, g)
		}
	}
	return out
}

// force records force in the release.
func (o Observation) force(r *record.Release) {
	r.Force = true
	given := slices.Clone(r.GivenUp)
	for _, g := range o.forceable() {
		given = append(given, g.Index)
	}
	slices.Sort(given)
	r.GivenUp = slices.Compact(given)
}

// addForce adds force to a rollback that has begun, and the groups that it gives up by now. Repeated, it changes nothing.
func (b RollBack) addForce(o Observation) Decision {
	r := o.Record.Release
	if !b.Force || r.Phase == record.CleaningUp && len(o.groupsOffRevision()) == 0 {
		return Decision{}
	}
	next := amendRelease(o, o.force)
	if r.Force && slices.Equal(r.GivenUp, next.Release.GivenUp) {
		return Decision{}
	}
	return Decision{Action: SetStable{Record: next, Why: "force the rollback of release " + r.ID}}
}

// heldUpBy names the group at the stable revision that holds the rollback up, what that means, and what force would do.
// Empty: none that force would give up.
func (o Observation) heldUpBy(what, force string) string {
	if !o.rollsBack() {
		return ""
	}
	broken := o.forceable()
	if len(broken) == 0 {
		return ""
	}
	first := broken[0]
	for _, g := range broken[1:] {
		if lostEarlier(g.LostAt, first.LostAt) {
			first = g
		}
	}
	who := fmt.Sprintf(". Group %d (%s)", first.Index, first.Leader)
	if !first.LostAt.IsZero() {
		who += ", not ready since " + clock(first.LostAt)
	}
	if n := len(broken) - 1; n > 0 {
		who += fmt.Sprintf(", with %d more", n)
	}
	return fmt.Sprintf("%s, %s: repair it, or run lockstep abort --force to %s", who, what, force)
}
