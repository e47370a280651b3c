// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// maxRestarts is how often a group is restarted without effect. A restart before the leader StatefulSet has the hold
// recreates the group at its old revision; a restart that failed three times will not help.
const maxRestarts = 3

// restartsExhausted reports whether restarts do not change the revision of a group.
func restartsExhausted(g Group) bool { return g.Restarts >= maxRestarts }

// groupsOffRevision returns the groups at none of the given revisions, by default those off the stable revision. Groups that force gives up are
// left out. Once the stable template is restored, a group built from two revisions is off the stable one: LWS does not replace its workers, but
// a restart does.
func (o Observation) groupsOffRevision(at ...string) []Group {
	mixed := false
	if len(at) == 0 {
		at = []string{o.Record.Release.StableRevision}
		mixed = o.Stable.Revision == at[0]
	}
	var out []Group
	for _, g := range o.Stable.Groups {
		if g.Revision == "" || g.Index >= o.Stable.Replicas {
			continue
		}
		off := !slices.Contains(at, g.Revision) || mixed && g.Reason == ReasonTwoRevisions
		if off && o.givesUp(g, 1) == 0 {
			out = append(out, g)
		}
	}
	return out
}

// offRevision reports whether the group of an index is off the stable revision.
func (o Observation) offRevision(index int) bool {
	return slices.ContainsFunc(o.groupsOffRevision(), func(g Group) bool { return g.Index == index })
}

// restoreRevision handles groups off the stable revision after a rollback: another client had LWS roll.
func restoreRevision(o Observation) Decision {
	switch o.Stable.Revision {
	case "":
		return waitForLWS(o)
	case o.Record.Release.StableRevision:
		next := withRelease(o, func(n *record.Release) { n.Phase = record.RollingBack })
		return beginRollBack(o, next, "the stable template is restored: roll back natively")
	}
	return beginRestarts(o)
}

// beginRestarts sets or renews the hold, which must be in force before groups are restarted.
func beginRestarts(o Observation) Decision {
	return writeStable(SetStable{
		Record:  withRelease(o, func(n *record.Release) { n.Phase = record.RollingBack }),
		Rolling: ptr.To(o.holdWithSurge()), SaveTemplate: o.canSaveTemplate(),
		Why: "hold, and restart groups one by one to restore the stable revision",
	}, ReasonRestarting)
}

// restartOffRevision restores the stable revision while the template in the spec is another one, and held. Under the hold a group is recreated at the
// revision that the StatefulSet completed last. Once that is not the stable revision, only the stable template helps, if the record has it.
func restartOffRevision(o Observation, s Progress) Decision {
	r := o.Record.Release
	offRevision := o.groupsOffRevision()
	canRestore := o.restoresTemplate()
	surge := func(g Group) bool { return g.Revision != "" && g.Index >= o.Stable.Replicas }
	notUpdated := func(g Group) bool { return g.atRevision(r.StableRevision) || surge(g) }
	inVain := o.restartsInVain(offRevision)
	noneHelps := inVain || !slices.ContainsFunc(o.Stable.Groups, notUpdated)
	why := "every group had been updated"
	if inVain {
		why = "restarts do not help"
	}
	switch {
	case len(offRevision) == 0 && (o.Stable.Replicas > 0 || !canRestore):
		return awaitRestored(o, s)
	// The StatefulSet has completed the update revision, and recreates every group at it.
	case noneHelps && r.UpdateRevision != "" && o.Stable.Revision == r.UpdateRevision && o.canSaveTemplate():
		return beginRestarts(o) // with the template, which is restored then
	case canRestore && noneHelps:
		next := withRelease(o, func(*record.Release) {})
		d := beginRollBack(o, next, "restore the stable template, since "+why+", and roll back natively")
		a, _ := d.Action.(SetStable)
		a.RestoreTemplate = true
		d.Action = a
		return d
	case inVain:
		if d := reconcileAutoscalers(o); d != nil {
			return *d
		}
		d := Decision{
			State: pb.State_STATE_FAILED, Reason: ReasonMixedRevisions,
			Message: fmt.Sprintf("the groups of %s are at revisions %s, but only %s is expected, and restarts do not help: restore "+
				"the template of revision %[3]s to have them rolled back", o.Stable.Name, strings.Join(o.StableRevisions(), ", "), r.StableRevision),
		}
		if o.mayGiveUp() {
			d.Message += ", or disown the workload to have LeaderWorkerSet roll them to its present template"
		}
		return d
	}
	return restart(o, s, offRevision, ReasonRestarting)
}

// restartsInVain reports whether restarts do not bring groups to the stable revision: they did not, or LWS would build the groups from two.
func (o Observation) restartsInVain(offRevision []Group) bool {
	return o.mixingChange() != nil && len(offRevision) > 0 || slices.ContainsFunc(offRevision, restartsExhausted)
}

// restoresTemplate reports whether the driver may restore the stable template: the one in the spec is the release's own.
func (o Observation) restoresTemplate() bool {
	r := o.release()
	return r.UpdateRevision != "" && o.Stable.Revision == r.UpdateRevision && r.StableTemplate != nil
}

// mayGiveUp reports whether a rollback that restarts do not complete may end by Disown: nothing but its groups is left of the release.
func (o Observation) mayGiveUp() bool {
	r := o.release()
	inVain := r != nil && r.Phase == record.RollingBack && !o.hasRoles() && o.Stable.Revision != r.StableRevision && !o.restoresTemplate()
	return inVain && o.restartsInVain(o.groupsOffRevision()) && len(o.Added) == 0 && !o.trafficDrifted()
}

// awaitRestored completes the rollback when every group is at the stable revision and available.
func awaitRestored(o Observation, s Progress) Decision {
	if !o.Stable.Observed {
		return *o.awaitLWS(ReasonRestarting, "waiting for the LeaderWorkerSet controller to observe the hold on %s: it may update a group until then", o.Stable.Name)
	}
	if s.available+o.givenUp() >= o.Stable.Replicas {
		next := withRelease(o, func(n *record.Release) { n.Phase = record.CleaningUp })
		return writeStable(SetStable{Record: next, Rolling: hold(), Why: "every group is available again" + o.exceptGivenUp()}, ReasonRestarting)
	}
	d := Decision{
		Reason:  ReasonRestarting,
		Message: fmt.Sprintf("%d of %d groups are available again%s%s", s.available, o.Stable.Replicas, o.describeStable(), o.describeUnready(o.Stable.All())),
	}
	d.Message += o.heldUpBy("keeps the rollback from its end", "end it without the group")
	return awaitGroups(s, d, 0)
}

// restart deletes the next group off its revision, so that it is recreated under the hold: first groups that do not
// serve, then others within the user's maxUnavailable.
func restart(o Observation, s Progress, offRevision []Group, reason string) Decision {
	groups := Counted(len(offRevision), "group of "+o.Stable.Name+" is", "groups of "+o.Stable.Name+" are")
	d := Decision{
		Reason:  reason,
		Message: fmt.Sprintf("%s to be restarted at revision %s%s", groups, o.Record.Release.StableRevision, o.describeUnready(o.Stable.All())),
	}
	if g := o.nextRestart(offRevision); g != nil {
		a := RestartGroup{Leader: g.Leader}
		d.Action, d.Message = a, fmt.Sprintf("%s: %s", a, d.Message)
		return d
	}
	d.Message += o.heldUpBy(
		fmt.Sprintf("uses up maxUnavailable %d, so no group that serves is restarted", max(o.userUnavailable(), 1)),
		"restart the others one at a time beyond it")
	return awaitGroups(s, d, 0)
}

// nextChange returns after what time a group counts as something else by itself: it will have been ready for minReady, or lost for the progress
// deadline. Zero means never.
func (o Observation) nextChange() time.Duration {
	var next time.Duration
	for g := range o.Stable.Wanted(0) {
		at := g.LostAt.Add(o.progressDeadline())
		if g.Ready {
			at = g.ReadySince.Add(o.Policy.MinReady)
		}
		next = earliest(next, max(at.Sub(o.Now), 0))
	}
	return next
}

// nextRestart returns the group to restart next: the first one that does not serve, or else the last one that may be unavailable. Nil means none at
// present.
func (o Observation) nextRestart(offRevision []Group) *Group {
	var next *Group
	for i, g := range offRevision {
		switch {
		case g.Terminating:
		case !g.mayCarry():
			return &offRevision[i]
		case o.unavailableBut(g) < o.mayBeUnavailable():
			next = &offRevision[i]
		}
	}
	return next
}

// mayCarry reports whether requests may succeed at the group: it is ready, or LWS built it from two revisions, possibly with more workers than it
// needs.
func (g Group) mayCarry() bool {
	return g.Ready || g.Reason == ReasonTwoRevisions && g.ReadyPods > 0
}

// unavailableBut returns how many groups, except for one, are unavailable. Beside a group built from two revisions others like it are not.
func (o Observation) unavailableBut(one Group) int {
	n := o.Stable.Replicas - 1
	for g := range o.Stable.Wanted(0) {
		serves := g.isAvailable(o.Now, o.Policy.MinReady) || !one.Ready && g.mayCarry()
		if g.Index != one.Index && serves {
			n--
		}
	}
	return n
}

// mayBeUnavailable returns how many groups may be unavailable: as many as the user allows, and at least one, or nothing
// could be replaced in place. With force it is at least one more than the groups that are given up.
func (o Observation) mayBeUnavailable() int {
	return max(o.userUnavailable(), o.givenUp()+1)
}

// userUnavailable returns how many groups the user allows to be unavailable.
func (o Observation) userUnavailable() int {
	if o.replacesUnits() {
		return o.shiftLacks()
	}
	return scaledValue(Saved(o).MaxUnavailable, o.Stable.Replicas, false)
}

// A group may block a native rollback. LWS counts a group that is broken at the update revision against maxUnavailable, and rolls back no group
// above it. LWS does not replace a group that it built from two revisions either. Neither group serves, so it is restarted: under the hold,
// since LWS must not take down another group at that time. The restart does not bring it to the stable revision if the leader StatefulSet had
// completed the update revision. Then LWS is made to skip the group.

// restartBlocking restarts, during a native rollback, the groups that LWS does not replace. Nil means that there are none, and LWS may roll.
func restartBlocking(o Observation, s Progress) *Decision {
	var blocking []Group
	for _, g := range o.Stable.Groups {
		if g.Index < o.Stable.Replicas && o.blocksRoll(g) {
			blocking = append(blocking, g)
		}
	}
	held := o.holdWithSurge()
	inForce := record.SameRolling(o.Stable.Rolling, held)
	switch {
	case len(blocking) == 0:
		return nil // limitRoll waits for what was restarted
	case !inForce && !o.Stable.Observed:
		return nil // the StatefulSet may still have the other template
	case !inForce && o.nextRestart(blocking) == nil:
		return nil // LWS may recreate the groups that are missing
	case !inForce:
		const why = "hold, and restart the groups that keep LeaderWorkerSet from the others"
		return ptr.To(writeStable(SetStable{Record: *o.Record, Rolling: &held, Why: why}, ReasonRestarting))
	}
	return ptr.To(restart(o, s, blocking, ReasonRestarting))
}

// blocksRoll reports whether a group keeps LWS from updating others, and a restart may help. A group that may recover by itself is left alone until
// the progress deadline.
func (o Observation) blocksRoll(g Group) bool {
	mixed := g.Reason == ReasonTwoRevisions
	restored := g.atRevision(o.Record.Release.StableRevision) && !mixed
	switch {
	case g.Revision == "" || g.Terminating || restartsExhausted(g) || restored:
		return false
	case g.Ready:
		inVain := func(g Group) bool { return g.Restarts > 0 && !g.Terminating }
		return o.givesUpAbove(g.Index) && !slices.ContainsFunc(o.groupsOffRevision(), inVain)
	}
	wasReady := !g.FirstReady.IsZero() && !mixed
	starting := g.Restarts > 0 && g.isStarting() // after a restart that did not change its revision
	mayRecover := wasReady || starting
	return !mayRecover || o.forced() || o.isOverdue(g.LostAt)
}

// givesUpAbove reports whether force gives up a group above an index that is at the stable revision and will not become ready by itself. Without
// MaxUnavailableStatefulSet, a StatefulSet updates no group below it.
func (o Observation) givesUpAbove(index int) bool {
	for g, n := range o.Stable.Wanted(index + 1) {
		broken := g.atRevision(o.release().StableRevision) && (!g.isStarting() || o.isOverdue(g.LostAt))
		if broken && o.givesUp(g, n) > 0 {
			return true
		}
	}
	return false
}

// skipBrokenGroups returns the pace at which LWS rolls back the groups that serve, although others are broken for good. In place of
// maxUnavailable, the partition keeps LWS from replacing too many at a time. Without broken groups it returns the user's pace.
func (o Observation) skipBrokenGroups(pace rolling) rolling {
	r := o.release()
	if r.Phase != record.RollingBack || o.Stable.Revision != r.StableRevision {
		return pace
	}
	broken := o.givenUp()
	pending := false  // a group may become available
	var serving []int // the indices of ready groups that are to be rolled back
	for g, n := range o.Stable.Wanted(0) {
		offRevision := g.Revision != "" && !g.atRevision(r.StableRevision)
		switch {
		case o.restartFailed(g) && (o.forced() || !g.isStarting() || o.isOverdue(g.LostAt)):
			broken++
		case offRevision && g.Ready && !g.Terminating:
			serving = append(serving, g.Index)
		case o.mayBecomeAvailable(g, n):
			pending = true
		}
	}
	switch {
	case broken == 0:
		return pace
	case pending && !isHold(o.Record.LastSet()):
		return o.Record.LastSet() // it stays until these groups are available
	case pending:
		return pace
	}
	// LWS counts broken groups against maxUnavailable, and every group below the highest of them, even those that it has rolled back.
	atOnce := scaledValue(pace.MaxUnavailable, o.Stable.Replicas, false)
	unlimited := o.Stable.Replicas
	if atOnce == 0 {
		unlimited = broken // a surge group makes room, and LWS has to wait for it
	}
	if len(serving) == 0 && broken == o.givenUp() {
		pace.MaxSurge = intstr.FromInt32(0) // else LWS keeps its surge groups in place of those that force gave up
	}
	pace.MaxUnavailable = intstr.FromInt(unlimited)
	pace.Partition = ptr.To(int32(lowestPartition(serving, max(atOnce, 1)))) //nolint:gosec // a number of groups
	return pace
}

// restartFailed reports whether restarts have not brought a group to the stable revision, and it is not ready.
func (o Observation) restartFailed(g Group) bool {
	return g.Revision != "" && !g.atRevision(o.Record.Release.StableRevision) && !g.Ready && !g.Terminating && restartsExhausted(g)
}

// lowestPartition returns the lowest partition above which there are at most n of the groups that serve, given by index. Broken groups below these stay
// under the partition: one that becomes ready meanwhile would be taken down with them.
func lowestPartition(serving []int, n int) int {
	switch {
	case len(serving) == 0:
		return 0
	case n >= len(serving):
		return serving[0]
	default:
		return serving[len(serving)-1-n] + 1
	}
}

// isStarting reports whether only time is missing until the group is ready: no pod of it has a problem.
func (g Group) isStarting() bool {
	switch g.Reason {
	case "Starting", "NotReady", "ContainersNotReady", "ReadinessGatesNotReady", ReasonPodMissing, ReasonWorkerLeftOver, ReasonLeaderMissing,
		"Terminating":
		return true
	default:
		return false
	}
}
