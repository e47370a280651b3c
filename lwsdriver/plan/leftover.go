// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A node that is lost keeps its pods Terminating until a user acts, and the pods keep the added workload that they belong to.
// Such a leftover receives no requests and has nothing left to write, so after the progress deadline the release ends, or goes
// on, without it. Only another canary of the same name waits for it.
//
// A lost surge group of the workload is no leftover. Until its pods are gone, the StatefulSet controller does not complete the update
// revision, and would recreate a lost group at the old one.

// setAside moves leftovers from Added to Leftovers.
func (o *Observation) setAside() {
	var added []Workload
	for _, w := range o.Added {
		if o.isLeftover(w) {
			o.Leftovers = append(o.Leftovers, w)
		} else {
			added = append(added, w)
		}
	}
	o.Added = added
}

// isLeftover reports whether an added workload is a leftover: the driver has removed its finalizer, so requests have left it, and for
// longer than the progress deadline it has had nothing but leaders that are being deleted. One of an earlier release remains one,
// whatever the deadline of the next release. The API server's times are whole seconds.
func (o Observation) isLeftover(w Workload) bool {
	if !w.Deleting || w.HasFinalizer || w.DeletingSince.IsZero() || slices.ContainsFunc(w.Groups, Group.isAlive) {
		return false
	}
	r := o.release()
	return !o.Now.Before(o.leftoverAt(w)) || r != nil && r.StartedAt.Truncate(time.Second).After(w.DeletingSince)
}

// leftoverAt returns when a workload that is being deleted becomes a leftover.
func (o Observation) leftoverAt(w Workload) time.Time {
	return w.DeletingSince.Add(WaitCleanup.longestWait(o))
}

// isAlive reports whether a group has a leader that is not being deleted, or workers that are ready without a leader.
func (g Group) isAlive() bool {
	return g.Ready || g.Revision != "" && !g.Terminating || g.Revision == "" && g.ReadyPods > 0
}

// leavesGroups reports whether a release of a DisaggregatedSet ends although groups of a revision are left: no child is to have any, and their deletion
// has lasted too long.
func (o Observation) leavesGroups(revision string) bool {
	now, _ := o.currentWait(Decision{})
	since := now.deadlineStart(Decision{})
	return !o.isAliveAt(revision) && !o.Now.Before(since.Add(WaitCleanup.longestWait(o)))
}

// isAliveAt reports whether children of a revision are to have groups, or have some that are not being deleted.
func (o Observation) isAliveAt(revision string) bool {
	return slices.ContainsFunc(o.Children, func(c Child) bool {
		return c.Revision == revision && (c.Replicas > 0 || slices.ContainsFunc(c.Groups, Group.isAlive))
	})
}

// warnLeftovers adds to the final decision of a release what is left, and how to delete it.
func warnLeftovers(o Observation, d Decision) Decision {
	for _, w := range o.Leftovers {
		d.Message += fmt.Sprintf("; %s receives no requests and has been terminating since %s%s. %s",
			w.Name, clockTime(w.DeletingSince), o.describeTerminating(w.Groups), o.deletionRemedy(w.Groups))
	}
	for _, c := range o.Children {
		if r := o.release(); r != nil && c.Revision == r.UpdateRevision && c.Revision != o.stableSide() && o.deletionRemedy(c.Groups) != "" {
			d.Message += fmt.Sprintf("; %s receives no requests and has groups that are terminating%s. %s", c.Name, o.describeTerminating(c.Groups), o.deletionRemedy(c.Groups))
		}
	}
	return d
}

// awaitLeftover waits for a leftover that has the name of the canary to create. Nil means that none has.
func awaitLeftover(o Observation) *Decision {
	r := o.Record.Release
	name := record.CanaryName(o.knownAs(), o.Stable.Name, r.UpdateRevision)
	for _, w := range o.Leftovers {
		if w.Name != name {
			continue
		}
		d := awaitDeletion(o, Decision{
			Reason:  ReasonCleaningUp,
			Message: fmt.Sprintf("the canary is created once the earlier %s is gone", w.Name),
		}, w)
		d.Since = later(d.Since, r.PhaseAt)
		return &d
	}
	return nil
}

// checkLeftovers: no canary is created while one of its name exists.
func checkLeftovers(o Observation, a CreateCanary) error {
	if slices.ContainsFunc(o.Leftovers, func(w Workload) bool { return w.Name == a.Name }) {
		return fmt.Errorf("canary %s is created while one of that name is being deleted", a.Name)
	}
	return nil
}

// awaitDeletion has d wait for the deletion of a workload, and name the pods that remain.
func awaitDeletion(o Observation, d Decision, w Workload) Decision {
	w.Groups = slices.Concat(w.Groups, o.partnerGroups(w.Carries))
	d.Wait, d.Since, d.Remedy = WaitCleanup, w.DeletingSince, o.deletionRemedy(w.Groups)
	if left := o.leftoverAt(w).Sub(o.Now); left > 0 {
		d.Recheck = earliest(d.Recheck, left)
	}
	d.Message += o.describeTerminating(w.Groups)
	return d
}

// awaitSurge waits for the surge groups, the only ones that remain of a native roll. Ending it earlier would be unsafe, also if
// they are all being deleted: until no pod of theirs exists, the StatefulSet controller does not complete the update revision,
// and under the hold it would recreate a lost group at the old one.
func awaitSurge(o Observation, d Decision) Decision {
	surge := slices.DeleteFunc(slices.Clone(o.Stable.Groups), func(g Group) bool { return g.Index < o.Stable.Replicas })
	d.Wait, d.Remedy = WaitCleanup, cmp.Or(o.deletionRemedy(surge), o.lwsRemedy())
	for _, g := range surge {
		if !g.Ready { // one that recovered just now was lost before its deletion began
			d.Since = later(d.Since, g.LostAt)
		}
	}
	if !d.Since.IsZero() {
		d.Since = later(d.Since, o.release().PhaseAt) // its deletion was not asked for before
	}
	d.Message += "; LeaderWorkerSet deletes its surge groups"
	return d
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// describeTerminating names the groups of which pods are being deleted.
func (o Observation) describeTerminating(groups []Group) string {
	return o.describeUnready(onePerGroup(slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return g.Reason != reasonTerminating })))
}

// reasonTerminating is the reason of a group whose pod is being deleted.
const reasonTerminating = "Terminating"

// deletionRemedy returns what to do about groups that are not deleted, or "" if none of their pods is known to be stuck.
func (o Observation) deletionRemedy(groups []Group) string {
	for _, g := range groups {
		if g.Reason == reasonTerminating {
			return "Pod " + g.Pod + ": " + o.terminatingRemedy(g.Pod)
		}
	}
	return ""
}

func (o Observation) terminatingRemedy(pod string) string {
	return fmt.Sprintf("a finalizer, a long grace period or a lost node keeps the pod; if its node is lost, delete the Node object, or force the deletion "+
		"(%s)", o.kubectl("delete pod "+pod+" --force"))
}
