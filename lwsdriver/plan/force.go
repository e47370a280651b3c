// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"iter"
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A group at the stable revision that is broken for a reason of its own, such as a lost node, uses up the user's
// maxUnavailable, and a rollback that restarts groups, or has LWS roll them, waits for it. Only a person knows that it will
// not recover. A rollback with force gives up such groups: they stay as they are, and groups off the stable revision are
// restarted one at a time beyond them, each once the last is available again. Requests return to a stable side that can't carry
// them, and added groups are deleted without waiting for more stable ones.
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

// givesUp returns how many of a run of n groups that begins with g are given up. One that recovers is not.
func (o Observation) givesUp(g Group, n int) int {
	if !o.forced() || !o.brokenStable(g) {
		return 0
	}
	given := o.release().GivenUp
	from, _ := slices.BinarySearch(given, g.Index)
	to, _ := slices.BinarySearch(given, g.Index+n)
	return to - from
}

// mayBecomeAvailable reports whether a run of n groups that begins with g is not available, and not given up as a whole.
func (o Observation) mayBecomeAvailable(g Group, n int) bool {
	return !g.isAvailable(o.Now, o.Policy.MinReady) && o.givesUp(g, n) < n
}

// brokenStable reports whether a group is not available, and is at the stable revision, missing, or about to be: Kubernetes deletes it. One that
// LWS built from two revisions is not, if a restart repairs it.
func (o Observation) brokenStable(g Group) bool {
	repairable := g.Reason == ReasonTwoRevisions && o.Stable.Revision == o.release().StableRevision && !restartsExhausted(g)
	return g.Index < o.Stable.Replicas && !g.isAvailable(o.Now, o.Policy.MinReady) && !repairable &&
		(g.Revision == "" || g.Terminating || g.atRevision(o.release().StableRevision))
}

// givenUp returns how many groups are given up.
func (o Observation) givenUp() int {
	n := 0
	for g, run := range o.Stable.Wanted(0) {
		n += o.givesUp(g, run)
	}
	return n
}

// exceptGivenUp says how many groups are given up, "" if none are.
func (o Observation) exceptGivenUp() string {
	if n := o.givenUp(); n > 0 {
		return fmt.Sprintf(", except for %d that force gave up", n)
	}
	return ""
}

// forceableGroups returns the groups that force gives up now: the broken ones before a rollback begins, and in a running rollback
// groups that were lost before it began, or have been lost for the progress deadline. Like [Workload.Wanted] it yields runs, of
// which some groups may be given up already.
func (o Observation) forceableGroups() iter.Seq2[Group, int] {
	r := o.release()
	return func(yield func(Group, int) bool) {
		for g, n := range o.Stable.Wanted(0) {
			if !o.brokenStable(g) || o.givesUp(g, n) >= n {
				continue
			}
			lost := g.LostAt
			if lost.IsZero() {
				lost = r.PhaseAt // no pod of it was ever observed
			}
			byRollback := o.rollsBack() && !lost.Before(r.PhaseAt) // the rollback itself may have made it unavailable
			if byRollback && !o.isOverdue(lost) {
				continue
			}
			if !yield(g, n) {
				return
			}
		}
	}
}

// recordForce records force in the release. The record has room for a limited number of groups: those of the lowest indices.
func (o Observation) recordForce(r *record.Release) {
	r.Force = true
	given := slices.Clone(r.GivenUp)
	for g, n := range o.forceableGroups() {
		for i := range n {
			if len(given) >= record.MaxGivenUp {
				break
			}
			if at, found := slices.BinarySearch(given, g.Index+i); !found {
				given = slices.Insert(given, at, g.Index+i)
			}
		}
	}
	r.GivenUp = given
}

// addForce adds force to a rollback that has begun, and the groups that it gives up by now. Repeated, it changes nothing.
func (b RollBack) addForce(o Observation) Decision {
	r := o.Record.Release
	if !b.Force {
		return Decision{}
	}
	hasShare := o.Traffic != nil && o.Traffic.Facts().Weight > 0
	stays := slices.ContainsFunc(o.Added, func(w Workload) bool { return limitRemoval(o, DeleteCanary{Name: w.Name}) != nil })
	if r.Phase == record.CleaningUp && len(o.groupsOffRevision()) == 0 && !hasShare && !stays {
		return Decision{} // the rollback waits for no group
	}
	next := amendRelease(o, o.recordForce)
	next.Release.EndedBy = b.User
	if b.Message != "" {
		next.Release.EndMessage = b.Message
	}
	if r.Force && slices.Equal(r.GivenUp, next.Release.GivenUp) {
		return Decision{}
	}
	return Decision{Action: SetStable{Record: next, Why: "force the rollback of release " + r.ID}}
}

// heldUpBy names the group at the stable revision that holds the rollback up, what that means, and what force would do.
// Empty means none that force would give up.
func (o Observation) heldUpBy(what, force string) string {
	if !o.rollsBack() {
		return ""
	}
	if len(o.release().GivenUp) >= record.MaxGivenUp {
		return fmt.Sprintf("; force gives up at most %d groups: repair the others, or scale the workload down to the groups that can exist", record.MaxGivenUp)
	}
	var first *Group
	broken := 0
	for g, n := range o.forceableGroups() {
		broken += n - o.givesUp(g, n)
		if first == nil || lostEarlier(g.LostAt, first.LostAt) {
			first = &g
		}
	}
	if first == nil {
		return ""
	}
	who := fmt.Sprintf(". Group %d (%s)", first.Index, first.Leader)
	if !first.LostAt.IsZero() {
		who += ", not ready since " + clockTime(first.LostAt)
	}
	if broken > 1 {
		who += fmt.Sprintf(", with %d more", broken-1)
	}
	return fmt.Sprintf("%s, %s: repair it, or run %s to %s", who, what, o.forcedAbort(), force)
}

// forcedAbort returns the command.
func (o Observation) forcedAbort() string { return "lockstep abort " + o.inCommands() + " --force" }
