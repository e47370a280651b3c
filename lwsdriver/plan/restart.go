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

// maxRestarts is how often one group is restarted in vain. A restart that overtakes the hold on its way to the leader
// StatefulSet brings the group back as it was; one that was in vain for another reason will be so again.
const maxRestarts = 3

func restartsExhausted(g Group) bool { return g.Restarts >= maxRestarts }

// restoreRevision are the groups that exist at none of the given revisions; without any given, at another than the stable one.
func (o Observation) groupsOffRevision(at ...string) []Group {
	if len(at) == 0 {
		at = []string{o.Record.Release.StableRevision}
	}
	var out []Group
	for _, g := range o.Stable.Groups {
		if g.Revision != "" && g.Index < o.Stable.Replicas && !slices.Contains(at, g.Revision) {
			out = append(out, g)
		}
	}
	return out
}

// restoreRevision: the release is rolled back, and groups are at other revisions than the stable one: somebody had LWS roll.
func restoreRevision(o Observation) Decision {
	switch o.Stable.Revision {
	case "":
		return waitForLWS(o, pb.State_STATE_ROLLING_BACK)
	case o.Record.Release.StableRevision:
		next := withRelease(o, func(n *record.Release) { n.Phase = record.RollingBack })
		return beginRollBack(o, next, "the stable template is back: roll back natively")
	}
	return beginRestarts(o)
}

// beginRestarts puts the hold in force, or renews it, for the groups to be restarted under it.
func beginRestarts(o Observation) Decision {
	const why = "hold, and bring groups back to the stable revision one after the other"
	next := withRelease(o, func(n *record.Release) { n.Phase = record.RollingBack })
	return Decision{
		State: pb.State_STATE_ROLLING_BACK, Reason: ReasonRestarting, Message: why,
		Action: SetStable{Record: next, Rolling: hold(), Why: why},
	}
}

// restartOffRevision brings groups back to the stable revision while the template is another one. Under the hold a group comes
// back at the revision that the StatefulSet completed last. Once that is no longer the stable one, only the stable
// template helps, if the release has saved it.
func restartOffRevision(o Observation, s Progress) Decision {
	r := o.Record.Release
	if held := record.Hold(); !record.SameRolling(o.Stable.Rolling, held) || !record.SameRolling(o.Record.LastSet(), held) {
		return beginRestarts(o)
	}
	strays := o.groupsOffRevision()
	if len(strays) == 0 {
		return awaitRestored(o, s)
	}
	ours := o.Stable.Revision == r.UpdateRevision && r.StableTemplate != nil
	inVain := slices.ContainsFunc(strays, restartsExhausted)
	switch {
	case ours && (inVain || len(strays) == o.Stable.existing()):
		next := withRelease(o, func(*record.Release) {})
		d := beginRollBack(o, next, "put the stable template back, since every group had been updated, and roll back natively")
		a, _ := d.Action.(SetStable)
		a.RestoreTemplate = true
		d.Action = a
		return d
	case inVain:
		if d := releaseMovedAutoscalers(o, pb.State_STATE_ROLLING_BACK); d != nil {
			return *d
		}
		return Decision{
			State: pb.State_STATE_FAILED, Reason: ReasonMixedRevisions,
			Message: fmt.Sprintf("the groups of %s are at %s, where only %s should be, and come back as they are when restarted: restore "+
				"the template of revision %[3]s to have them rolled back, or disown the workload to have LeaderWorkerSet roll them to "+
				"its present template", o.Stable.Name, strings.Join(o.StableRevisions(), ", "), r.StableRevision),
		}
	}
	return restart(o, s, strays, pb.State_STATE_ROLLING_BACK, ReasonRestarting)
}

// awaitRestored: nothing strays any more; the release is over when every group is available again.
func awaitRestored(o Observation, s Progress) Decision {
	if !o.Stable.Observed {
		return Decision{
			State: pb.State_STATE_ROLLING_BACK, Reason: ReasonRestarting,
			Message: fmt.Sprintf("waiting for the LeaderWorkerSet controller to see the hold on %s: it may take a group until then", o.Stable.Name),
		}
	}
	if s.available >= o.Stable.Replicas {
		const why = "every group is back"
		return Decision{
			State: pb.State_STATE_ROLLING_BACK, Reason: ReasonRestarting, Message: why,
			Action: SetStable{
				Record: withRelease(o, func(n *record.Release) { n.Phase = record.CleaningUp }), Rolling: hold(), Why: why,
			},
		}
	}
	return underDeadline(o, s, Decision{
		State: pb.State_STATE_ROLLING_BACK, Reason: ReasonRestarting,
		Message: fmt.Sprintf("%d of %d groups are back%s", s.available, o.Stable.Replicas, obstacles(o.Stable.Groups)),
	}, 0)
}

// restart takes the next of the groups that stray down, so that it comes back under the hold: those that do not serve first,
// and of those that do no more than the user's maxUnavailable allows.
func restart(o Observation, s Progress, strays []Group, state pb.State, reason string) Decision {
	d := Decision{State: state, Reason: reason, Message: fmt.Sprintf(
		"%d groups of %s are to come back at revision %s%s", len(strays), o.Stable.Name, o.Record.Release.StableRevision, obstacles(o.Stable.Groups))}
	if !o.Stable.Observed {
		d.Message = fmt.Sprintf("waiting for the LeaderWorkerSet controller to see the hold on %s", o.Stable.Name)
		return d
	}
	if g := o.restartable(strays); g != nil {
		a := RestartGroup{Leader: g.Leader}
		d.Action, d.Message = a, fmt.Sprintf("%s: %s", a, d.Message)
		return d
	}
	s.nextReady = o.nextAvailable()
	return underDeadline(o, s, d, 0)
}

// nextAvailable is when the next of the ready groups will have been so for minReady. Zero: none is on its way.
func (o Observation) nextAvailable() time.Duration {
	var next time.Duration
	for _, g := range o.Stable.above(0) {
		if left := g.ReadySince.Add(o.Policy.MinReady).Sub(o.Now); g.Ready && left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// restartable is the group to restart next. Nil: none, for now.
func (o Observation) restartable(strays []Group) *Group {
	var next *Group
	for i, g := range strays {
		switch {
		case g.Terminating:
		case !g.Ready:
			return &strays[i]
		case o.unavailableBut(g) < o.mayBeUnavailable():
			next = &strays[i]
		}
	}
	return next
}

// unavailableBut is how many of the groups wanted do not serve, one of them not counted.
func (o Observation) unavailableBut(one Group) int {
	n := o.Stable.Replicas - 1
	for _, g := range o.Stable.above(0) {
		if g.Index != one.Index && g.available(o.Now, o.Policy.MinReady) {
			n--
		}
	}
	return n
}

// mayBeUnavailable is how many groups the user lets be down at a time; at least one, or nothing could move in place.
func (o Observation) mayBeUnavailable() int {
	return max(scaled(inPlacePace(Saved(o)).MaxUnavailable, o.Stable.Replicas, false), 1)
}

// On the way back natively LWS counts a group that is broken at the revision it leaves against maxUnavailable, and takes no
// group above it; nobody will mend that one. So it is restarted by itself, which costs nothing that serves and brings it
// back at the stable revision, unless the leader StatefulSet had completed the other one. Then LWS is led around it.

// blockingGroup is a group to restart while LWS rolls natively: it strays and does not serve. One that was ready before may be
// so again, and is left alone until the release is stuck. Nil: there is none.
func (o Observation) blockingGroup(stuck bool) *Group {
	if !o.Stable.Observed {
		return nil // the StatefulSet may have the other template still
	}
	strays := o.groupsOffRevision()
	for i, g := range strays {
		if !g.Ready && !g.Terminating && !restartsExhausted(g) && (stuck || g.FirstReady.IsZero()) {
			return &strays[i]
		}
	}
	return nil
}

// skipBrokenGroups is the pace at which LWS takes the groups that serve past those that are broken for good: these count no more
// against maxUnavailable, and the partition sees to it that of those no more are taken at a time for that. Pace, the
// user's, where there are none.
func (o Observation) skipBrokenGroups(pace rolling) rolling {
	r := o.release()
	if r.Phase != record.RollingBack || o.Stable.Revision != r.StableRevision {
		return pace
	}
	broken, serving := 0, make([]bool, o.Stable.Replicas)
	moves := len(o.Stable.above(0)) < o.Stable.Replicas
	for _, g := range o.Stable.above(0) {
		stray := g.Revision != "" && !g.at(r.StableRevision)
		switch {
		case stray && !g.Ready && !g.Terminating && restartsExhausted(g):
			broken++
		case stray && g.Ready && !g.Terminating:
			serving[g.Index] = true
		case !g.available(o.Now, o.Policy.MinReady):
			moves = true
		}
	}
	switch {
	case broken == 0:
		return pace
	case moves && !record.SameRolling(o.Record.LastSet(), record.Hold()):
		return o.Record.LastSet() // no further, until what was taken is back
	case moves:
		return pace
	}
	may := scaled(pace.MaxUnavailable, o.Stable.Replicas, false)
	pace.MaxUnavailable = intstr.FromInt(may + broken)
	pace.Partition = ptr.To(int32(lowest(serving, max(may, 1)))) //nolint:gosec // a number of groups
	return pace
}

// lowest is the lowest index such that, from it on, no more groups than may go serve.
func lowest(serving []bool, may int) int {
	for i := len(serving) - 1; i >= 0; i-- {
		if serving[i] {
			may--
		}
		if may < 0 {
			return i + 1
		}
	}
	return 0
}
