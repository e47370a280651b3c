// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Plan decides. A decision that would break an invariant is a defect; it is reported and never acted on.
func Plan(o Observation) Decision {
	s := measure(o)
	if err := checkObservation(o); err != nil {
		return violation(err, s)
	}
	d := decide(o, s)
	d.Standing = s
	if err := checkDecision(o, d); err != nil {
		return violation(err, s)
	}
	return d
}

func violation(err error, s Standing) Decision {
	return Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonInvariantViolation, Standing: s,
		Message: fmt.Sprintf("Lockstep stopped before a step that would break a safety rule: %v. This is a defect, please report it", err),
	}
}

// style is what distinguishes one way of releasing from another: a value, not a controller.
type style struct {
	// advance takes the workload towards the target.
	advance func(Observation, Standing) Decision
}

// styles are the ones this driver can plan.
var styles = map[pb.Style]style{
	pb.Style_STYLE_CANARY: {advance: advanceCanary},
}

// Supports says whether a release of this style can be planned.
func Supports(s pb.Style) bool {
	_, ok := styles[s]
	return ok
}

func decide(o Observation, s Standing) Decision {
	switch {
	case o.Stable.Deleting:
		return farewell(o)
	case o.Record == nil:
		return unmanaged(o)
	case o.Record.Release == nil:
		return atRest(o)
	}
	r := o.Record.Release
	if !Supports(o.Policy.Style) {
		return Decision{
			State: pb.State_STATE_FAILED, Reason: ReasonStyleNotSupported,
			Message: fmt.Sprintf("release %s has style %s, which this driver does not know: run the driver that began it", r.ID, o.Policy.Style),
		}
	}
	switch r.Phase {
	case release.Progressing:
		return progress(o, s)
	case release.Promoting:
		return promote(o, s)
	case release.Promoted:
		return cleanUp(o, pb.State_STATE_PROMOTING, ended(o, Decision{
			State: pb.State_STATE_COMPLETED, Reason: ReasonPromoted,
			Message: fmt.Sprintf("%d groups run revision %s", o.Stable.Replicas, r.UpdateRevision),
		}))
	case release.RollingBack:
		return cleanUp(o, pb.State_STATE_ROLLING_BACK, ended(o, Decision{
			State: pb.State_STATE_ROLLED_BACK, Reason: ReasonRolledBack,
			Message: rolledBack(o),
		}))
	default:
		return cleanUp(o, pb.State_STATE_NOTHING_TO_RELEASE, ended(o, Decision{
			State: pb.State_STATE_NOTHING_TO_RELEASE, Reason: ReasonNothing,
			Message: fmt.Sprintf("the groups of %s already ran its template when the release began", o.Stable.Name),
		}))
	}
}

// ended adds to the end of a release, which stays its end, that there is something newer to release.
func ended(o Observation, d Decision) Decision {
	now, r := o.Stable.Revision, o.Record.Release
	if now != "" && now != r.UpdateRevision && now != r.StableRevision {
		d.Reason = ReasonNewRevisionWaits
		d.Message = fmt.Sprintf("%s; revision %s waits for a release", d.Message, now)
	}
	return d
}

func rolledBack(o Observation) string {
	at := fmt.Sprintf("the groups of %s are at revision %s", o.Stable.Name, o.Record.Release.StableRevision)
	if all := o.StableRevisions(); len(all) > 1 {
		at = fmt.Sprintf("the groups of %s are at revisions %s, since a promotion had begun", o.Stable.Name, strings.Join(all, ", "))
	}
	if o.Stable.Revision != o.Record.Release.UpdateRevision {
		return at
	}
	return fmt.Sprintf("%s; its template still asks for %s, which waits under the hold", at, o.Stable.Revision)
}

// farewell: the user's workload is going. Garbage collection takes what the release added, once we let go of it.
func farewell(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonDeleting,
		Message: fmt.Sprintf("%s is being deleted; so is what its release added", o.Stable.Name),
	}
	for _, w := range o.Added {
		if w.Held {
			d.Action = LetGo{Name: w.Name}
			break
		}
	}
	return d
}

func unmanaged(o Observation) Decision {
	return cleanUp(o, pb.State_STATE_ROLLING_BACK, Decision{
		State: pb.State_STATE_UNMANAGED, Reason: ReasonNotAdopted,
		Message: fmt.Sprintf("%s is not adopted: LeaderWorkerSet rolls it by itself as soon as its template changes", o.Stable.Name),
	})
}

func atRest(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_HOLDING, Reason: ReasonHeld,
		Message: fmt.Sprintf("%s is held: a change of its template moves no group until a release does", o.Stable.Name),
	}
	if old := o.Stable.revisions(); o.Stable.Revision != "" && len(old) > 0 && (len(old) > 1 || old[0] != o.Stable.Revision) {
		d.Reason = ReasonNewRevisionWaits
		d.Message = fmt.Sprintf("revision %s of %s waits for a release", o.Stable.Revision, o.Stable.Name)
	}
	return cleanUp(o, pb.State_STATE_ROLLING_BACK, d)
}

// cleanUp keeps the hold, takes away whatever was added, and answers rest once nothing is left.
func cleanUp(o Observation, busy pb.State, rest Decision) Decision {
	if len(o.Added) == 0 {
		busy = rest.State
	}
	if o.Record != nil {
		if a := repairHold(o); a != nil {
			return Decision{Action: a, State: busy, Reason: ReasonHoldDrifted, Message: "the hold is being put back"}
		}
	}
	if len(o.Added) == 0 {
		return rest
	}
	return retire(o.Added[0], busy, ReasonCleaningUp)
}

// retire takes one added workload away, a write at a time. Nothing but its groups hangs on it by now. Deletion comes
// first: were the finalizer to go first, a template that returns in between would find a canary that nothing protects.
func retire(w Workload, state pb.State, reason string) Decision {
	d := Decision{State: state, Reason: reason, Message: fmt.Sprintf("%s and its groups are going", w.Name)}
	switch {
	case !w.Deleting:
		d.Action = DeleteCanary{Name: w.Name}
	case w.Held:
		d.Action = LetGo{Name: w.Name}
	}
	return d
}

// repairHold returns the write that puts the hold back, or nil if it is in force.
func repairHold(o Observation) Action {
	hold := release.Hold()
	if release.SameRolling(o.Stable.Rolling, hold) {
		return nil
	}
	next := *o.Record
	next.Saved = Saved(o)
	return SetStable{Record: next, Rolling: hold, Why: "put the hold back, which somebody changed"}
}

// moved returns the record with its release changed by f, as of now.
func moved(o Observation, f func(*release.Release)) release.Record {
	next := *o.Record
	r := *o.Record.Release
	r.PhaseAt = o.Now
	f(&r)
	next.Release = &r
	return next
}

func progress(o Observation, s Standing) Decision {
	r := o.Record.Release
	if a := repairHold(o); a != nil {
		return Decision{Action: a, State: pb.State_STATE_PREPARING, Reason: ReasonHoldDrifted, Message: "the hold is being put back"}
	}
	if o.Stable.Revision == "" {
		return waitForLWS(o, pb.State_STATE_PREPARING)
	}
	if o.Stable.Revision != r.UpdateRevision {
		return followTemplate(o)
	}
	for _, w := range o.Added {
		if w.Carries != r.UpdateRevision {
			return retire(w, pb.State_STATE_PREPARING, ReasonNewRevision)
		}
	}
	return styles[o.Policy.Style].advance(o, s)
}

func waitForLWS(o Observation, state pb.State) Decision {
	return Decision{
		State: state, Reason: ReasonWaitingForLWS,
		Message: fmt.Sprintf("waiting for the LeaderWorkerSet controller to record a revision for the template of %s", o.Stable.Name),
	}
}

// followTemplate: the template is not the one that the release brings. Either it is the stable one again, which ends
// the release, or it is a new one, for which the release starts over once the old canary is gone.
func followTemplate(o Observation) Decision {
	r := o.Record.Release
	if o.Stable.Revision == r.StableRevision {
		phase, why := release.RollingBack, "the stable template is back: roll back"
		if r.UpdateRevision == "" {
			phase, why = release.Nothing, "nothing to release after all"
		}
		return Decision{
			State: pb.State_STATE_ROLLING_BACK, Reason: ReasonTemplateReturned, Message: why,
			Action: SetStable{Record: moved(o, func(r *release.Release) { r.Phase = phase }), Rolling: o.Stable.Rolling, Why: why},
		}
	}
	if len(o.Added) > 0 {
		return retire(o.Added[0], pb.State_STATE_PREPARING, ReasonNewRevision)
	}
	return startOver(o)
}

// startOver records the new update revision and forgets the target: the host decides anew about the new template.
func startOver(o Observation) Decision {
	why := fmt.Sprintf("release revision %s", o.Stable.Revision)
	if o.Record.Release.UpdateRevision != "" {
		why = fmt.Sprintf("start over with the new revision %s", o.Stable.Revision)
	}
	next := moved(o, func(r *release.Release) {
		if r.UpdateRevision != "" {
			r.Target = nil
		}
		r.Phase, r.UpdateRevision = release.Progressing, o.Stable.Revision
	})
	if o.Record.Release.Phase == release.Promoting {
		next.Saved = absorbPace(o)
	}
	return Decision{
		State: pb.State_STATE_PREPARING, Reason: ReasonNewRevision, Message: why,
		Action: SetStable{Record: next, Rolling: release.Hold(), Why: why},
	}
}

// promote lets LWS roll the user's workload, by the user's own maxUnavailable and maxSurge, and puts the hold back.
func promote(o Observation, s Standing) Decision {
	r := o.Record.Release
	switch {
	case o.Stable.Revision == "":
		return waitForLWS(o, pb.State_STATE_PROMOTING)
	case o.Stable.Revision == r.StableRevision && o.Stable.Revision != r.UpdateRevision:
		// Groups are at both revisions already, so the way back is the way forward: a native roll to this template.
		why := "the stable template is back in mid-promotion: roll to it"
		next := moved(o, func(n *release.Release) { n.UpdateRevision = r.StableRevision })
		next.Saved = absorbPace(o)
		return Decision{
			State: pb.State_STATE_PROMOTING, Reason: ReasonTemplateReturned, Message: why,
			Action: SetStable{Record: next, Rolling: Pace(next.Saved, o.Stable.Replicas), Why: why},
		}
	case o.Stable.Revision != r.UpdateRevision:
		return startOver(o)
	}
	if !paced(o) {
		return releaseHold(o)
	}
	if s.UpdatedReady >= o.Stable.Replicas && len(o.Stable.Groups) == o.Stable.Replicas {
		why := "every group is promoted: hold again"
		return Decision{
			State: pb.State_STATE_PROMOTING, Reason: ReasonCleaningUp, Message: why,
			Action: SetStable{
				Record:  moved(o, func(n *release.Release) { n.Phase = release.Promoted }),
				Rolling: release.Hold(), Why: why,
			},
		}
	}
	d := Decision{State: pb.State_STATE_PROMOTING, Reason: ReasonRolling}
	d.Message = fmt.Sprintf("%d of %d groups promoted%s", s.UpdatedReady, o.Stable.Replicas, obstacles(o.Stable.Groups))
	return underDeadline(o, s, d, s.firstReady < o.Stable.Replicas)
}

// releaseHold takes the hold off, or puts the user's pace back when somebody changed it in mid-promotion.
func releaseHold(o Observation) Decision {
	next := *o.Record
	next.Saved = absorbPace(o)
	why := "release the hold to promote"
	return Decision{
		State: pb.State_STATE_PROMOTING, Reason: ReasonRolling, Message: why,
		Action: SetStable{Record: next, Rolling: Pace(next.Saved, o.Stable.Replicas), Why: why},
	}
}

// underDeadline fails d when no new group became ready for too long, and otherwise says when that would be.
func underDeadline(o Observation, s Standing, d Decision, expecting bool) Decision {
	if s.nextReady > 0 {
		d.Recheck = s.nextReady
	}
	if !expecting {
		return d
	}
	left := o.Policy.ProgressDeadline - o.Now.Sub(s.ProgressAt)
	if left > 0 {
		if d.Recheck == 0 || left < d.Recheck {
			d.Recheck = left
		}
		return d
	}
	d.State, d.Reason = pb.State_STATE_FAILED, ReasonDeadline
	d.Message = fmt.Sprintf("no new group became ready for %s (since %s): %s",
		o.Policy.ProgressDeadline, s.ProgressAt.UTC().Format("15:04:05 MST"), d.Message)
	return d
}
