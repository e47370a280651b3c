// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
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
	case release.Returning:
		return comeBack(o, s)
	case release.RollingBack:
		return cleanUp(o, pb.State_STATE_ROLLING_BACK, rolledBack(o))
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

// rolledBack is how a rollback stands once nothing added is left.
func rolledBack(o Observation) Decision {
	r := o.Record.Release
	if o.strayed() {
		return strayed(o)
	}
	d := Decision{
		State: pb.State_STATE_ROLLED_BACK, Reason: ReasonRolledBack,
		Message: fmt.Sprintf("the groups of %s are at revision %s", o.Stable.Name, r.StableRevision),
	}
	if o.Stable.Revision == r.UpdateRevision && r.UpdateRevision != r.StableRevision {
		d.Message += fmt.Sprintf("; its template still asks for %s, which waits under the hold", o.Stable.Revision)
	}
	return ended(o, d)
}

// strayed: groups are at other revisions than the stable one, most likely since a promotion had begun. LWS takes groups to the template
// in the spec and to no other: the way back is open once that is the stable one again.
func strayed(o Observation) Decision {
	r := o.Record.Release
	switch o.Stable.Revision {
	case "":
		return waitForLWS(o, pb.State_STATE_ROLLING_BACK)
	case r.StableRevision:
	default:
		return Decision{
			State: pb.State_STATE_FAILED, Reason: ReasonMixedRevisions,
			Message: fmt.Sprintf("the groups of %s are at %s, where only %s should be: restore the template of revision %[3]s "+
				"to have them rolled back, or disown the workload to have LeaderWorkerSet roll them to its present template",
				o.Stable.Name, strings.Join(o.StableRevisions(), ", "), r.StableRevision),
		}
	}
	next := moved(o, func(n *release.Release) { n.Phase = release.Returning })
	next.Saved = Saved(o)
	return returning(o, next, "the stable template is back: roll back natively")
}

func returning(o Observation, next release.Record, why string) Decision {
	return Decision{
		State: pb.State_STATE_ROLLING_BACK, Reason: ReasonTemplateReturned, Message: why,
		Action: SetStable{Record: next, Rolling: Pace(next.Saved, o.Stable.Replicas), Why: why},
	}
}

// strayed says whether a group is at another revision than the stable one.
func (o Observation) strayed() bool {
	stable := o.Record.Release.StableRevision
	return slices.ContainsFunc(o.Stable.revisions(), func(r string) bool { return r != stable })
}

// farewell: the user's workload is going. Garbage collection takes what the release added, once we let go of it.
func farewell(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonDeleting,
		Message: fmt.Sprintf("%s is being deleted; so is what its release added", o.Stable.Name),
	}
	// Routes and Services first, as far as they can be written: nobody knows of them later, and they may be there for the
	// next workload. That the fence goes with them loses nobody: the stable leaders are going, too.
	v, write := steer(o, traffic.Desired{}, d.State)
	switch {
	case write != nil:
		d.Action = write.Action
		return d
	case unknown(v):
		return d
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
	d := Decision{
		State: pb.State_STATE_UNMANAGED, Reason: ReasonNotAdopted,
		Message: fmt.Sprintf("%s is not adopted: LeaderWorkerSet rolls it by itself as soon as its template changes", o.Stable.Name),
	}
	if release.SameRolling(o.Stable.Rolling, release.Hold()) {
		d.Reason = ReasonHeldUnmanaged
		d.Message = fmt.Sprintf("%s is not adopted, and yet held by a partition that Lockstep once set: "+
			"adopt it to have that managed, and then disown it to have LeaderWorkerSet roll it by itself", o.Stable.Name)
	}
	return cleanUp(o, pb.State_STATE_ROLLING_BACK, d)
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
			return Decision{Action: a, State: busy, Reason: ReasonHoldDrifted, Message: drifted}
		}
	}
	if len(o.Added) > 0 {
		return retire(o, o.Added[0], busy, ReasonCleaningUp)
	}
	if d := giveBackTraffic(o, tidying(rest.State)); d != nil {
		return *d
	}
	return rest
}

// tidying is the state of a release of which nothing is left but marks on the user's objects.
func tidying(rest pb.State) pb.State {
	switch rest {
	case pb.State_STATE_COMPLETED:
		return pb.State_STATE_PROMOTING
	case pb.State_STATE_ROLLED_BACK:
		return pb.State_STATE_ROLLING_BACK
	default:
		return rest
	}
}

// retire takes one added workload away, a write at a time. Nothing but its groups hangs on it by now. Deletion comes
// first: were the finalizer to go first, a template that returns in between would find a canary that nothing protects.
func retire(o Observation, w Workload, state pb.State, reason string) Decision {
	last := o.onlyAdded()
	if last && w.Deleting && w.existing() == 0 {
		if d := giveBackTraffic(o, state); d != nil {
			return *d
		}
	} else if d := withdraw(o, state); d != nil {
		return *d
	}
	d := Decision{State: state, Reason: reason, Message: fmt.Sprintf("%s and its groups are going", w.Name)}
	switch {
	case !w.Deleting, last && w.Lingers && w.existing() > 0:
		d.Action = DeleteCanary{Name: w.Name}
	case w.Held && (!last || w.existing() == 0):
		d.Action = LetGo{Name: w.Name}
	}
	return d
}

// onlyAdded says whether nothing but what was added tells where the requests go, since the record is gone. It has to stay,
// without its groups, until routes and Services are given back.
func (o Observation) onlyAdded() bool {
	return o.Traffic != nil && (o.Record == nil || o.Record.Release == nil)
}

// drifted is what people are told meanwhile, perhaps by a driver that only looks.
const drifted = "the hold was overwritten, and LeaderWorkerSet may roll until a driver has put it back"

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
		return Decision{Action: a, State: pb.State_STATE_PREPARING, Reason: ReasonHoldDrifted, Message: drifted}
	}
	if o.Stable.Revision == "" {
		return waitForLWS(o, pb.State_STATE_PREPARING)
	}
	if o.Stable.Revision != r.UpdateRevision {
		return followTemplate(o)
	}
	for _, w := range o.Added {
		if w.Carries != r.UpdateRevision {
			return retire(o, w, pb.State_STATE_PREPARING, ReasonNewRevision)
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
		return retire(o, o.Added[0], pb.State_STATE_PREPARING, ReasonNewRevision)
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
			r.Target, r.Traffic = nil, nil
		}
		if o.promotedAll() {
			r.StableRevision = r.UpdateRevision
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
		next := moved(o, func(n *release.Release) { n.Phase = release.Returning })
		next.Saved = absorbPace(o)
		return returning(o, next, "the stable template is back in mid-promotion: roll back natively")
	case o.Stable.Revision != r.UpdateRevision:
		return startOver(o)
	}
	v, d := routeCanary(o, o.capacity(), pb.State_STATE_PROMOTING)
	if d == nil {
		d = evade(o, v)
	}
	if d != nil {
		return *d
	}
	return roll(o, s, nativeRoll{
		state: pb.State_STATE_PROMOTING, then: release.Promoted,
		begin: "release the hold to promote", done: "every group is promoted: hold again", participle: "promoted",
	})
}

// comeBack is promote in the other direction: LWS rolls the groups that a promotion had reached back.
func comeBack(o Observation, s Standing) Decision {
	switch r := o.Record.Release; {
	case o.Stable.Revision == "":
		return waitForLWS(o, pb.State_STATE_ROLLING_BACK)
	case o.Stable.Revision != r.StableRevision:
		// A third template must not undo the decision to roll back. Under the hold it moves no group.
		why := "another template came in mid-rollback: hold"
		next := moved(o, func(n *release.Release) { n.Phase = release.RollingBack })
		next.Saved = absorbPace(o)
		return Decision{
			State: pb.State_STATE_ROLLING_BACK, Reason: ReasonNewRevision, Message: why,
			Action: SetStable{Record: next, Rolling: release.Hold(), Why: why},
		}
	}
	if v, d := steer(o, prepared(), pb.State_STATE_ROLLING_BACK); d != nil && !servesAlone(o, v) {
		return *d
	}
	return roll(o, s, nativeRoll{
		state: pb.State_STATE_ROLLING_BACK, then: release.RollingBack,
		begin: "release the hold to roll back", done: "every group is back: hold again", participle: "rolled back",
	})
}

// nativeRoll is one of the two times that the hold is off.
type nativeRoll struct {
	state pb.State
	// then is the phase that follows once every group is at the revision.
	then release.Phase
	// begin and done say what is written, participle what happened to a group.
	begin, done, participle string
}

// roll has LWS take every group to the template in the spec, at the user's own pace.
func roll(o Observation, s Standing, n nativeRoll) Decision {
	if !paced(o) {
		// The hold goes, or somebody changed the user's pace in mid-roll.
		next := *o.Record
		next.Saved = absorbPace(o)
		return Decision{
			State: n.state, Reason: ReasonRolling, Message: n.begin,
			Action: SetStable{Record: next, Rolling: Pace(next.Saved, o.Stable.Replicas), Why: n.begin},
		}
	}
	if s.available >= o.Stable.Replicas && len(o.Stable.Groups) == o.Stable.Replicas {
		return Decision{
			State: n.state, Reason: ReasonCleaningUp, Message: n.done,
			Action: SetStable{
				Record:  moved(o, func(r *release.Release) { r.Phase = n.then }),
				Rolling: release.Hold(), Why: n.done,
			},
		}
	}
	d := Decision{State: n.state, Reason: ReasonRolling}
	d.Message = fmt.Sprintf("%d of %d groups %s%s", s.available, o.Stable.Replicas, n.participle, obstacles(o.Stable.Groups))
	if s.available >= o.Stable.Replicas {
		return d // only LWS's surge is left to go
	}
	return underDeadline(o, s, d, 0)
}

// promotedAll says whether a promotion has reached every group, though it is not known to be over.
func (o Observation) promotedAll() bool {
	r := o.Record.Release
	all := o.Stable.revisions()
	return r.Phase == release.Promoting && len(all) == 1 && all[0] == r.UpdateRevision && o.Stable.existing() >= o.Stable.Replicas
}

// underDeadline fails d when its goal, of which some groups may be missing, has not come nearer for too long, and
// otherwise says when that would be.
func underDeadline(o Observation, s Standing, d Decision, tolerated int) Decision {
	if s.nextReady > 0 {
		d.Recheck = s.nextReady
	}
	since := s.stuckSince(tolerated)
	left := o.Policy.ProgressDeadline - o.Now.Sub(since)
	if left > 0 {
		if d.Recheck == 0 || left < d.Recheck {
			d.Recheck = left
		}
		return d
	}
	d.State, d.Reason = pb.State_STATE_FAILED, ReasonDeadline
	d.Message = fmt.Sprintf("no progress for %s (since %s): %s", o.Policy.ProgressDeadline, since.UTC().Format("15:04:05 MST"), d.Message)
	return d
}
