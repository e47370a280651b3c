// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// steps change the decision of a phase, in this order: each step gets what the one before it returns. The first ones withhold writes or explain
// them; the writes of labels, the history, and the record follow if no other is due.
var steps = []func(Observation, Decision) Decision{
	withinLimits, awaitFresh, awaitAdmission, explainShare, explainTemplate, labelPods, keepHistory, recordRolling,
	limitWait, saveWait, countInFlight, wakeForLoad, keepEffects,
}

// reconcile decides what follows from earlier requests.
func reconcile(o Observation) Decision {
	s := measureProgress(o)
	if err := checkObservation(o); err != nil {
		return invariantViolated(err, s)
	}
	if o.leftToNewer() {
		return Decision{State: pb.State_STATE_FAILED, Reason: ReasonNewerDriver, Message: newerText(o), Progress: s}
	}
	d := decide(o, s)
	d.State = cmp.Or(d.State, o.stateByPhase())
	if o.writesChildren() && d.Action != nil && o.roleAction(d.Action) == nil {
		d.Action = nil // the bounds are written, and LWS has yet to follow
	}
	d.Progress = s // some phases leave it out
	for _, step := range steps {
		d = step(o, d)
	}
	if err := checkDecision(o, nil, d); err != nil {
		return invariantViolated(err, s)
	}
	return inRoles(o, d)
}

func invariantViolated(err error, s Progress) Decision {
	return Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonInvariantViolation, Progress: s,
		Message: describeDefect(err),
	}
}

func decide(o Observation, s Progress) Decision {
	switch {
	case o.Identity.AddedTo != "":
		return Decision{
			State: pb.State_STATE_UNMANAGED, Reason: ReasonNotAdopted,
			Message: fmt.Sprintf("%s was added by the release of %s and is driven as a part of that workload", o.Stable.Name, o.Identity.AddedTo),
		}
	// A forged successor stops everything but the deletion of the workload itself.
	case o.handingOver() && o.SuccessorForeign && !o.Stable.Deleting:
		return successorForeign(o)
	// This comes before the deletion of the workload: what the workload owned is the successor's by now, and is not cleaned up.
	case o.handingOver() && o.Succeeded:
		return finalizeSucceeded(o)
	case o.Stable.Deleting, o.Gone:
		return finalizeDeleted(o)
	case o.Record == nil:
		return decideUnmanaged(o)
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
	if d := restoreChildren(o); d != nil {
		return *d
	}
	switch r.Phase {
	case record.Progressing:
		return progress(o, s)
	case record.Promoting, record.Standby:
		return promote(o, s)
	case record.HandingOver:
		return advanceHandover(o, s)
	case record.Promoted:
		updated := o.Stable.Replicas - len(o.groupsOffRevision(r.UpdateRevision))
		// The update revision is the stable side now.
		roles := o.describeRoles((*pb.Role).GetStable, (*pb.Role).GetReplicas)
		return cleanUp(o, describeEnd(o, Decision{
			State: pb.State_STATE_COMPLETED, Reason: ReasonPromoted,
			Message: Counted(updated, "group runs", "groups run") + " revision " + r.UpdateRevision + roles,
		}))
	case record.RollingBack:
		if o.hasRoles() {
			return returnUnits(o, s)
		}
		return rollBack(o, s)
	case record.CleaningUp:
		return cleanUp(o, rolledBack(o))
	default:
		return cleanUp(o, describeEnd(o, Decision{
			State: pb.State_STATE_NOTHING_TO_RELEASE, Reason: ReasonNothing,
			Message: fmt.Sprintf("the groups of %s already ran its template when the release began", o.Stable.Name),
		}))
	}
}

// stateByPhase returns the state of a workload whose decision has none of its own: what the release is doing, by its phase and the template in the spec.
func (o Observation) stateByPhase() pb.State {
	r := o.release()
	if r == nil {
		return pb.State_STATE_ROLLING_BACK // another client has deleted the record
	}
	now := o.Stable.Revision
	released := now == r.UpdateRevision
	restored := now == r.StableRevision && !released // the user took the template back
	switch r.Phase {
	case record.RollingBack, record.CleaningUp:
		return pb.State_STATE_ROLLING_BACK
	case record.HandingOver, record.Promoted:
		return pb.State_STATE_PROMOTING
	case record.Promoting, record.Standby:
		switch {
		case restored:
			return pb.State_STATE_ROLLING_BACK
		case released, now == "":
			return pb.State_STATE_PROMOTING
		}
	case record.Progressing:
		c := o.canary()
		added := o.inPlace() || c != nil && !c.Deleting
		switch {
		case restored:
			return pb.State_STATE_ROLLING_BACK
		case released && added && o.Target() != nil:
			return pb.State_STATE_UPGRADING
		}
	default:
	}
	return pb.State_STATE_PREPARING
}

// describeEnd adds to the final decision of a release that another revision waits, or that LWS has started one by itself.
func describeEnd(o Observation, d Decision) Decision {
	now, r := o.Stable.Revision, o.Record.Release
	runs := r.UpdateRevision
	if d.State != pb.State_STATE_COMPLETED {
		runs = r.StableRevision
	}
	// The message of a rollback names the update revision itself. The StatefulSet may have recreated a group at the other revision, if that
	// group was lost before the StatefulSet had completed the update.
	known := now == runs || now == r.UpdateRevision
	if now == "" || known && len(o.groupsOffRevision(runs)) == 0 {
		return explainEmpty(o, runs, d)
	}
	if o.Stable.existingGroups() > 0 && !o.Stable.hasOtherRevisions(0) {
		d.Reason = ReasonUnreleased
		d.Message = fmt.Sprintf("every group of %s runs revision %s, which no release has released: the workload was scaled to 0 groups, or another client removed the hold", o.Stable.Name, now)
		if runs != "" {
			d.Message += fmt.Sprintf(". To go back to revision %s, %s, and release the restored template", runs, o.howToRestore(runs))
		}
	} else {
		d.Reason = ReasonNewRevisionWaits
		d.Message = fmt.Sprintf("%s; revision %s waits for a release", d.Message, now)
	}
	return explainEmpty(o, runs, d)
}

// explainEmpty says of a LeaderWorkerSet without groups that no hold covers the next group. Last is the revision that its groups had, "" if it
// is unknown.
func explainEmpty(o Observation, last string, d Decision) Decision {
	now, name := o.Stable.Revision, o.Stable.Name
	empty := !o.hasRoles() && o.Stable.Replicas == 0 && o.Stable.existingGroups() == 0
	if !empty || now == "" || now == last {
		return d
	}
	d.Message = fmt.Sprintf("%s has 0 groups: LeaderWorkerSet starts revision %s with the next one, released or not", name, now)
	if last != "" {
		d.Reason = ReasonScaledToZero
		d.Message += fmt.Sprintf(". To go back to revision %s, %s before you scale it up", last, o.howToRestore(last))
	}
	return d
}

// rolledBack returns the decision about a rollback whose added workloads are gone.
func rolledBack(o Observation) Decision {
	r := o.Record.Release
	if len(o.groupsOffRevision()) > 0 {
		return restoreRevision(o)
	}
	d := Decision{
		State: pb.State_STATE_ROLLED_BACK, Reason: ReasonRolledBack,
		Message: fmt.Sprintf("the groups of %s are at revision %s%s", o.Stable.Name, r.StableRevision, o.exceptGivenUp()),
	}
	if failed := failLacking(o); failed != nil {
		return *failed
	}
	if now := o.Stable.Revision; now != "" && now == r.UpdateRevision && now != r.StableRevision {
		d.Message += fmt.Sprintf("; its template still asks for %s, which waits under the hold; to withdraw it, %s", now, o.howToRestore(r.StableRevision))
	}
	return describeEnd(o, d)
}

// finalizeDeleted cleans up after the user's workload was deleted. Garbage collection deletes the added workloads once
// their finalizers are removed.
func finalizeDeleted(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_FAILED, Reason: ReasonDeleting,
		Message: fmt.Sprintf("%s is being deleted, and so is what its release added", o.Stable.Name),
	}
	// Routes and Services first, as far as they can be written: no event triggers that later, and the next workload may
	// use them. Removing the isolation loses no request, since the stable leaders are being deleted, too. Deletion does not
	// wait for what only a user can repair.
	want := traffic.Desired{}
	if o.orphansServe() {
		want = preparedRouting() // the stable leaders stay, and the isolation keeps their requests from the canary's until these are deleted
	}
	v, write := reconcileTraffic(o, want)
	switch {
	case write != nil && (o.Refused == nil || v.Write.Moves && !v.Write.AfterOthers):
		d.Action = write.Action
		return d
	case o.Refused == nil && v.Stage == traffic.Unread:
		if o.Gone {
			d.Recheck = time.Second // there may be no event
		}
		return d
	}
	for _, w := range o.Workloads() {
		if !w.HasFinalizer {
			continue
		}
		collected := !o.Gone && !o.isOrphan(w) // garbage collection deletes it with its owner
		switch {
		case !collected && !w.Deleting:
			d.Action = DeleteCanary{Name: w.Name}
		case o.isOrphan(w) && slices.ContainsFunc(w.Groups, Group.isAlive):
			// Routes and Services are restored first, as its annotations say.
		default:
			d.Action = RemoveFinalizer{Name: w.Name}
		}
		return d
	}
	// Autoscalers come last: they have nothing to scale until the workload exists again.
	if o.Refused == nil {
		if last := reconcileAutoscalers(o); last != nil {
			d.Action = last.Action
		}
	}
	return d
}

// isOrphan reports whether garbage collection does not delete an added workload, since its owner reference is being removed.
func (o Observation) isOrphan(w Workload) bool {
	return w.Name != o.Stable.Name && (w.Orphaned || o.Stable.Orphans)
}

// orphansServe reports whether an orphan has a group that is not being deleted.
func (o Observation) orphansServe() bool {
	return slices.ContainsFunc(o.Added, func(w Workload) bool { return o.isOrphan(w) && slices.ContainsFunc(w.Groups, Group.isAlive) })
}

func decideUnmanaged(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_UNMANAGED, Reason: ReasonNotAdopted,
		Message: fmt.Sprintf("%s is not adopted: LeaderWorkerSet rolls it by itself as soon as its template changes", o.Stable.Name),
	}
	if record.SameRolling(o.Stable.Rolling, record.Hold()) {
		by := "a partition"
		if o.hasRoles() {
			by = "bounds of its children"
		}
		d.Reason = ReasonHoldWithoutRecord
		d.Message = fmt.Sprintf("%s is not adopted, but held by %s that Lockstep once set: "+
			"adopt it to have the hold managed, and then disown it to have LeaderWorkerSet roll it by itself", o.Stable.Name, by)
	}
	if len(o.Added) > 0 {
		if stay := limitRemoval(o, DeleteCanary{Name: o.Added[0].Name}); stay != nil {
			d.Message += "; " + stay.Message
			if o.hasRoles() {
				d.Message += ", which return once it is adopted"
			}
			return d
		}
	}
	return cleanUp(o, d)
}

func atRest(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_HOLDING, Reason: ReasonHeld,
		Message: fmt.Sprintf("%s is held: a change of its template moves no group until a release does", o.Stable.Name),
	}
	// Mixed groups wait too: LWS had begun to roll, and the hold stopped it halfway.
	old := o.Stable.distinctRevisions()
	if o.hasRoles() && len(old) == 0 && o.stableSide() != "" {
		old = []string{o.stableSide()} // the bounds keep the revision of a set without groups
	}
	if o.Stable.Revision != "" && len(old) > 0 && (len(old) > 1 || old[0] != o.Stable.Revision) {
		d.Reason = ReasonNewRevisionWaits
		d.Message = fmt.Sprintf("revision %s of %s waits for a release", o.Stable.Revision, o.Stable.Name)
	}
	d = explainEmpty(o, o.newestServed(""), d)
	if refused := refuseTemplate(o); refused != nil {
		d.Reason, d.Message = refused.Reason, refused.Message
	}
	return cleanUp(o, d)
}

// cleanUp keeps the hold, deletes the added workloads, and returns rest once nothing is left.
func cleanUp(o Observation, rest Decision) Decision {
	if o.Record != nil {
		if d := restoreHold(o); d != nil {
			if len(o.Added) == 0 {
				d.State = rest.State // a hold that is repaired after the end is no reason to report the release as running again
			}
			return *d
		}
	}
	if d := repairAdded(o); d != nil { // until it gets no more requests
		return *d
	}
	if len(o.Added) > 0 {
		return deleteAdded(o, o.Added[0], ReasonCleaningUp)
	}
	if d := cmp.Or(restoreTraffic(o), restoreAutoscalers(o)); d != nil {
		d.State = cleanUpState(rest.State)
		if _, ok := d.Action.(HoldAutoscaler); ok {
			d.State = rest.State // for a template that waits: the release is over
		}
		return *d
	}
	return warnLeftovers(o, warnUnscanned(o, rest))
}

// cleanUpState returns the state of a release that is over except for what it left on the user's objects.
func cleanUpState(rest pb.State) pb.State {
	switch rest {
	case pb.State_STATE_COMPLETED:
		return pb.State_STATE_PROMOTING
	case pb.State_STATE_ROLLED_BACK:
		return pb.State_STATE_ROLLING_BACK
	default:
		return rest
	}
}

// deleteAdded deletes one added workload, a write at a time; only its groups depend on it by now. The deletion comes before
// the removal of the finalizer: if the template returned in between, the canary would be unprotected.
func deleteAdded(o Observation, w Workload, reason string) Decision {
	// Without a release, only the added workload names the routes. It stays, without groups, until requests are routed as before.
	namesRoutes := o.Traffic != nil && o.release() == nil
	hasGroups := w.existingGroups() > 0
	moveRequests := awaitWithdrawn
	switch {
	case namesRoutes && w.Deleting && !hasGroups:
		moveRequests = restoreTraffic
	case o.inPlace(): // another client has restored it, and the requests are with groups of the workload
		moveRequests = awaitWithdrawnInPlace
	}
	if d := moveRequests(o); d != nil {
		return *d
	}
	d := awaitDeletion(o, Decision{Reason: reason, Message: fmt.Sprintf("%s and its groups are being deleted%s", w.Name, o.describeDegraded())}, w)
	left := o.scaleDownIn()
	if left > 0 && !w.Deleting {
		d.Reason, d.Recheck, d.Wait = ReasonScaleDownDelay, left, WaitTimer
		d.Message = fmt.Sprintf("requests have left %s, which is deleted at %s", w.Name, clockTime(o.Now.Add(left)))
		return d
	}
	mustOutlive := namesRoutes && hasGroups
	switch {
	// A deletion in the background would delete the object before its groups, so it is requested again, in the foreground.
	case !w.Deleting, mustOutlive && w.Lingers:
		d.Action = DeleteCanary{Name: w.Name}
	case w.HasFinalizer && !mustOutlive:
		if d.Action = renewLoadWait(o, w); d.Action == nil {
			d.Action = RemoveFinalizer{Name: w.Name}
		}
	}
	return d
}

// restoreHold returns the decision until the hold is restored, possibly by another driver, or nil if it is in force.
func restoreHold(o Observation) *Decision {
	a := repairHold(o)
	if a == nil {
		return nil
	}
	return &Decision{
		Action: *a, Reason: ReasonHoldDrifted,
		Message: "the hold was overwritten, and LeaderWorkerSet may roll until a driver has restored it",
	}
}

// repairHold returns the write that restores the hold, or nil if it is in force. If LWS rolled, its surge groups stay while a group is unavailable:
// they serve in its place.
func repairHold(o Observation) *SetStable {
	held := record.Hold()
	if rolled := !isHold(o.Stable.Rolling) || record.SameRolling(o.Record.LastSet(), o.Stable.Rolling); rolled && o.Stable.hasSurge() {
		for g, n := range o.Stable.Wanted(0) {
			if o.mayBecomeAvailable(g, n) {
				held = o.holdWithSurge()
				break
			}
		}
	}
	if record.SameRolling(o.Stable.Rolling, held) {
		return nil
	}
	return &SetStable{Record: *o.Record, Rolling: &held, Why: "restore the hold, which was changed"}
}

// withRelease returns the record with its release changed by f. The deadline of another phase begins now. Another end than the one that was
// requested has neither the user nor the message of that request.
func withRelease(o Observation, f func(*record.Release)) record.Record {
	return amendRelease(o, func(r *record.Release) {
		was := *r
		r.GivenUp = slices.DeleteFunc(slices.Clone(r.GivenUp), o.offRevision) // such a group exists again, and is restored like the others
		if f(r); r.Phase != was.Phase || r.UpdateRevision != was.UpdateRevision {
			r.PhaseAt = o.Now
		}
		if r.Phase.Intent() != was.Phase.Intent() {
			r.EndedBy, r.EndMessage = "", ""
		}
	})
}

// amendRelease returns the record with its release changed by f, within a phase: the phase's deadline continues.
func amendRelease(o Observation, f func(*record.Release)) record.Record {
	next := *o.Record
	r := *o.Record.Release
	f(&r)
	next.Release = &r
	return next
}

// progress carries out batches: it makes the groups of the target run the update revision.
func progress(o Observation, s Progress) Decision {
	r := o.Record.Release
	keepHold := restoreHold
	if o.inPlace() {
		keepHold = stopBatch
	}
	// Requests come before every wait below: LWS may be down for long, and no request may stay with groups that were lost.
	if d := cmp.Or(keepHold(o), protectRequests(o)); d != nil {
		return *d
	}
	if o.Stable.Revision == "" {
		return waitForLWS(o)
	}
	if o.Stable.Revision != r.UpdateRevision {
		return followTemplate(o)
	}
	for _, w := range o.Added {
		if w.Carries != r.UpdateRevision || o.inPlace() || w.Orphaned {
			return deleteAdded(o, w, ReasonNewRevision)
		}
	}
	if d := cmp.Or(followScaleDown(o), holdAutoscalers(o)); d != nil {
		return *d
	}
	if o.lostStable() {
		return advanceUnreleased(o, s)
	}
	if o.inPlace() {
		return advancePartition(o, s)
	}
	return advanceCanary(o, s)
}

func waitForLWS(o Observation) Decision {
	return *o.awaitLWS(ReasonWaitingForLWS, "waiting for the LeaderWorkerSet controller to observe %s, and to record a revision for its template", o.Stable.Name)
}

// followTemplate handles a template that is not at the update revision. If it is the stable one, the release is rolled
// back; if it is a new one, the release starts over once the old canary is gone.
func followTemplate(o Observation) Decision {
	r := o.Record.Release
	if o.Stable.Revision == r.StableRevision {
		return takeBack(o)
	}
	if d := refuseTemplate(o); d != nil {
		return *cmp.Or(stopBatch(o), d)
	}
	if o.shiftsBack() {
		if d := shiftBack(o, measureProgress(o)); d != nil {
			return *d
		}
	}
	if len(o.Added) > 0 {
		return deleteAdded(o, o.Added[0], ReasonNewRevision)
	}
	return startOver(o)
}

// takeBack rolls back a release whose stable template is restored.
func takeBack(o Observation) Decision {
	phase := o.rollbackPhase()
	why := "the stable template is restored: roll back"
	if o.Record.Release.UpdateRevision == "" { // LWS had not recorded the template, which turns out to be the stable one
		phase = record.Nothing
		why = "nothing to release after all"
	}
	next := withRelease(o, func(r *record.Release) { r.Phase = phase })
	if phase == record.RollingBack && !o.replacesUnits() {
		return beginRollBack(o, next, why)
	}
	return writeStable(SetStable{Record: next, Rolling: hold(), Why: why}, ReasonTemplateRestored)
}

// startOver records the new update revision and drops the target: the host decides again for the new template.
func startOver(o Observation) Decision {
	if d := awaitWithdrawnInPlace(o); d != nil {
		// The hold does not wait for requests: LWS would roll to a template that no release has.
		if a := repairHold(o); a != nil {
			return writeStable(*a, ReasonNewRevision)
		}
		return *d
	}
	why := fmt.Sprintf("release revision %s", o.Stable.Revision)
	if o.Record.Release.UpdateRevision != "" {
		why = fmt.Sprintf("start over with the new revision %s", o.Stable.Revision)
	}
	next := withRelease(o, func(r *record.Release) {
		// A target that was set while LWS had not recorded the revision was meant for this one.
		if r.UpdateRevision != "" {
			r.Target, r.Traffic = nil, nil
		}
		if o.promotedAll() {
			r.StableRevision, r.StableTemplate, r.SplitEnded = r.UpdateRevision, nil, false
		}
		r.Phase, r.UpdateRevision, r.RestartsExhausted = record.Progressing, o.Stable.Revision, ""
	})
	return writeStable(SetStable{Record: next, Rolling: hold(), Why: why}, ReasonNewRevision)
}

// promotedAll reports whether every group serves the update revision although the promotion is not recorded as complete.
// In place the last batch may update every group before the promotion is requested.
func (o Observation) promotedAll() bool {
	r := o.Record.Release
	all := o.Stable.distinctRevisions()
	replaces := r.Phase == record.Promoting || o.inPlace()
	return replaces && len(all) == 1 && all[0] == r.UpdateRevision && o.Stable.existingGroups() >= o.Stable.Replicas
}

// Supports reports whether releases of a style are supported.
func Supports(s pb.Style) bool {
	return s == pb.Style_STYLE_CANARY || Switches(s) || InPlace(s)
}

// InPlace reports whether releases of a style replace the groups of the user's own workload. Others add groups beside them.
func InPlace(s pb.Style) bool { return s == pb.Style_STYLE_PARTITION }

// Switches reports whether a promotion of a style moves all requests at once, to a second set that is complete. Autoscalers are then held in
// both directions.
func Switches(s pb.Style) bool { return s == pb.Style_STYLE_BLUE_GREEN }

// inPlace reports whether the release replaces the groups of a LeaderWorkerSet. Units of a DisaggregatedSet are shifted instead: see shifts.
func (o Observation) inPlace() bool {
	return o.release() != nil && InPlace(o.Policy.Style) && !o.hasRoles()
}

// switchesSets reports whether the promotion moves all requests to a complete second set. That of a DisaggregatedSet always does.
func (o Observation) switchesSets() bool {
	r := o.release()
	if r == nil || o.shiftsBack() {
		return false
	}
	return Switches(o.Policy.Style) || o.hasRoles() && r.Phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
}
