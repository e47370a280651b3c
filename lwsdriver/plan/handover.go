// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// A blue-green promotion may hand the workload over to the second set instead of rolling the user's own groups. Requests
// move as in any promotion. Then the user's groups stand by for the policy's ScaleDownDelay, so that one write returns
// the requests to them. After that, all that belongs to the workload is transferred one write at a time, in an order in
// which the stable Service always selects a complete set. Finally the user's object is deleted. The next step is derived
// from what has been transferred. Owner references are removed before their owner is deleted, so garbage collection deletes
// no group that serves.

// HandOver makes an added workload an independent one under hold, with the record as the only trace of the release. If the
// template of the user's workload was edited since, it is copied too, and waits under the hold.
type HandOver struct {
	Name   string
	Record record.Record
}

// DeleteStable deletes the user's workload, which has no groups and owns nothing any more.
type DeleteStable struct{ Name string }

// TransferHistory makes the successor the owner of a revision of the history.
type TransferHistory struct{ Revision, To string }

func (HandOver) action()        {}
func (DeleteStable) action()    {}
func (TransferHistory) action() {}

func (a HandOver) String() string {
	return fmt.Sprintf("hand workload %s over to %s", a.Record.Workload, a.Name)
}
func (a DeleteStable) String() string { return "delete " + a.Name + ", which was handed over" }
func (a TransferHistory) String() string {
	return fmt.Sprintf("transfer revision %s of the history to %s", a.Revision, a.To)
}

// Reasons of decisions about a handover.
const (
	ReasonScalingDown      = "StableScalingDown"
	ReasonHandingOver      = "HandingOver"
	ReasonSuccessorDeleted = "SuccessorDeleted"
	ReasonHistoryUnread    = "HistoryNotSynced"
)

// handsOver reports whether the release's promotion is a handover. That of a DisaggregatedSet always is: the new children become the
// workload's.
func (o Observation) handsOver() bool {
	return o.release() != nil && o.hasRoles() || o.switchesSets() && o.Policy.Adopt
}

// handingOver reports whether the handover has begun. Only that of a DisaggregatedSet can still be rolled back.
func (o Observation) handingOver() bool {
	return o.release() != nil && o.Record.Release.Phase == record.HandingOver
}

// stableDrained reports whether none of the user's own groups is left.
func (o Observation) stableDrained() bool {
	exist := o.Stable.Replicas > 0 || o.Stable.existingGroups() > 0 || o.hasRoles() && o.hasGroupsAt(o.stableSide(), "")
	return !exist && (len(o.deletedStable()) == 0 || o.leavesGroups(o.stableSide()))
}

// deletedStable returns the groups that are left of deleted children of the stable revision.
func (o Observation) deletedStable() []Group {
	return o.deletedGroups(func(c Child) bool { return c.Revision == o.stableSide() })
}

// requestsToSecondSet returns the routing of a handover while the user's own groups exist: the stable Service selects the
// second set.
func requestsToSecondSet() traffic.Desired { return traffic.Desired{HandedOver: true, Prepared: true} }

// requestsHandedOver returns the routing of a handover. Once requests have returned to the stable Service and the groups
// that received them are gone, nothing of the release is left on the user's objects.
func (o Observation) requestsHandedOver() traffic.Desired {
	d := requestsToSecondSet()
	if !o.stableDrained() || o.Traffic == nil || o.hasRoles() {
		return d // a set has nothing to transfer: the routing of its next revision is restored once it is promoted
	}
	// A gateway that still splits would lead requests to a Service that is deleted.
	if v := o.Traffic.Look(d); v.Weight > 0 || v.Prepared && !v.Withdrawn {
		return d
	}
	return traffic.Desired{HandedOver: true}
}

// stableUnchanged reports whether a handover has left the user's own groups at the stable revision.
func (o Observation) stableUnchanged() bool { return o.handsOver() && len(o.groupsOffRevision()) == 0 }

// standBy keeps the user's own groups, which receive no requests, for the policy's ScaleDownDelay.
func standBy(o Observation) Decision {
	r, c := o.Record.Release, o.canary()
	d := Decision{Reason: ReasonScaleDownDelay}
	until := r.PhaseAt.Add(o.Policy.ScaleDownDelay)
	left := until.Sub(o.Now)
	switch {
	case r.Phase == record.Promoting && o.Policy.ScaleDownDelay > 0:
		d.Message = fmt.Sprintf("%s receives all requests; the groups of %s stand by for %s", c.Name, o.Stable.Name, o.Policy.ScaleDownDelay)
		next := withRelease(o, func(r *record.Release) { r.Phase = record.Standby })
		d.Action = SetStable{Record: next, Rolling: hold(), Why: d.Message}
	case r.Phase == record.Standby && left > 0:
		d.Recheck, d.Wait = left, WaitTimer
		d.Message = fmt.Sprintf("%s receives all requests; the groups of %s stand by until %s, and a rollback returns the requests to them",
			c.Name, o.Stable.Name, clockTime(until))
	case c.hasOtherRevisions(0):
		d.Reason, d.Message = ReasonGroupsNotReady, mixedMessage(*c)
	default:
		d.Reason, d.Message = ReasonHandingOver, "hand over to "+c.Name
		next := withRelease(o, func(r *record.Release) {
			r.Phase, r.Successor, r.Groups = record.HandingOver, c.Name, o.batchReplicas()
		})
		d.Action = SetStable{Record: next, Rolling: hold(), Why: d.Message}
	}
	return d
}

func mixedMessage(w Workload) string {
	return fmt.Sprintf("the groups of %s are at revisions %s, since its template was edited; LeaderWorkerSet rolls them back",
		w.Name, strings.Join(w.distinctRevisions(), ", "))
}

// advanceHandover transfers what belongs to the user's workload, and deletes the workload.
func advanceHandover(o Observation, s Progress) Decision {
	c := o.canary()
	if c == nil || c.Deleting {
		return cancelHandover(o)
	}
	if d := cmp.Or(restoreHold(o), repairAdded(o)); d != nil {
		return *d
	}
	// The user, or an autoscaler, scales the object that it knows. The successor must not begin with fewer groups.
	n := max(o.Stable.Replicas, o.Record.Release.Groups)
	if o.hasRoles() {
		n = o.entryRole().Replicas * o.Slices // the object stays
	}
	if n != o.Record.Release.Groups {
		next := amendRelease(o, func(r *record.Release) { r.Groups = n })
		why := fmt.Sprintf("%s was scaled to %s: so is its successor", o.Stable.Name, Counted(n, "group", "groups"))
		return writeStable(SetStable{Record: next, Why: why}, ReasonScaling)
	}
	if c.Replicas != n {
		return Decision{
			Action: ScaleCanary{Name: c.Name, Replicas: n, Target: c.Target}, Reason: ReasonScaling,
			Message: fmt.Sprintf("%s was scaled; it is being restored to %s", c.Name, Counted(n, "group", "groups")),
		}
	}
	want := o.requestsHandedOver()
	if o.replacesUnits() { // the stable Service selects by the label, also those that take the place of the last old ones
		if d := labelLeaders(o, *c, n, false); d != nil {
			return *d
		}
	}
	v, d := reconcileTraffic(o, want)
	switch {
	case d != nil:
		return *d
	// The user's own groups are removed only once the Service is known to select the second set.
	case v.Stage <= traffic.Blocked, want.Prepared && !isWithdrawn(v):
		return *awaitTraffic(v)
	case !o.stableDrained():
		return scaleDownStable(o)
	}
	if d := transferAutoscalers(o, *c); d != nil {
		return *d
	}
	return handOver(o, s, *c)
}

// successorForeign stops a handover to a workload that no release of this one added.
func successorForeign(o Observation) Decision {
	return Decision{
		State: pb.State_STATE_FAILED, Reason: traffic.ReasonRecordInvalid,
		Message: fmt.Sprintf("annotation %s of LeaderWorkerSet %s hands it over to %s, which no release of it added. Nothing is changed. "+
			"Restore the annotation; or remove it, and the release is dropped", record.RecordAnnotation, o.Key, o.Record.Release.Successor),
	}
}

// finalizeSucceeded deletes the user's object, once another one is the workload.
func finalizeSucceeded(o Observation) Decision {
	d := Decision{
		Reason:  ReasonHandingOver,
		Message: fmt.Sprintf("%s serves as %s, and %s is being deleted", o.Record.Release.Successor, o.knownAs(), o.Stable.Name),
	}
	if !o.Stable.Deleting {
		d.Action = DeleteStable{Name: o.Stable.Name}
	}
	return d
}

// cancelHandover restores the user's own groups when the second set was deleted before the handover. They serve until a
// new second set exists. Autoscalers are restored first, since the record forgets the successor.
func cancelHandover(o Observation) Decision {
	for _, a := range o.Autoscalers {
		if a.Passed {
			return Decision{
				Action: ReleaseAutoscaler{Kind: a.Kind, Name: a.Name, To: o.Stable.Name},
				Reason: ReasonSuccessorDeleted, Message: fmt.Sprintf("%s is being pointed at %s again", a, o.Stable.Name),
			}
		}
	}
	r := o.Record.Release
	next := withRelease(o, func(r *record.Release) { r.Phase, r.Successor, r.Groups = record.Promoting, "", 0 })
	a := SetStable{
		Record: next, Rolling: hold(),
		Why: fmt.Sprintf("%s was deleted before the handover: restore the groups of %s", r.Successor, o.Stable.Name),
	}
	// The user's own groups were scaled to 0 for the second set.
	if o.Stable.Replicas == 0 && r.Groups > 0 {
		a.Replicas = ptr.To(r.Groups)
	}
	unreleased := o.Stable.Revision != r.UpdateRevision && o.Stable.Revision != r.StableRevision
	if a.Replicas != nil && unreleased && r.StableTemplate != nil {
		// From 0 groups LWS starts the template in the spec, which no release has released. Under the hold the StatefulSet would start it
		// even after the stable template is restored, since it has counted the update of 0 groups as complete.
		a.Record.Release.Phase = record.RollingBack
		a.RestoreTemplate = true
		a.Rolling = ptr.To(Pace(Saved(o), *a.Replicas))
	}
	return writeStable(a, ReasonSuccessorDeleted)
}

// scaleDownStable scales the user's own groups to 0, once their leaders have finished their requests and the second set
// is ready.
func scaleDownStable(o Observation) Decision {
	if d := awaitDrained(o); d != nil {
		return *d
	}
	r, c := o.Record.Release, o.canary()
	if o.Stable.Replicas > 0 && !o.secondSetCanServe(*c) {
		return Decision{
			Reason:  ReasonGroupsNotReady,
			Message: fmt.Sprintf("the groups of %s stay until those of %s are ready again%s%s", o.Stable.Name, c.Name, o.describeBatch(), o.describeUnready(c.All())),
		}
	}
	left := o.Stable.Groups
	if o.hasRoles() {
		left = slices.Concat(left, o.partnerGroups(o.stableSide()), o.deletedStable())
	}
	d := Decision{
		Reason: ReasonScalingDown, Wait: WaitCleanup, Remedy: cmp.Or(o.deletionRemedy(left), o.lwsRemedy()),
		Message: Counted(o.Stable.existingGroups(), "group of "+o.Stable.Name+" is", "groups of "+o.Stable.Name+" are") + " being deleted",
	}
	if o.hasRoles() {
		d.Message = fmt.Sprintf("the groups of revision %s that are left are being deleted%s%s", r.StableRevision,
			o.describeRoles((*pb.Role).GetStable, (*pb.Role).GetReplicas), o.describeTerminating(left))
	}
	scalesDown := o.Stable.Replicas > 0 || o.hasRoles() && !o.drainsRoles() // the entry role may have no groups
	if o.hasRoles() && o.awaitsNewGroups() {
		scalesDown = scalesDown || o.secondSetCanServe(*c) // a slice may have been added since
		d.Reason, d.Wait, d.Remedy = ReasonGroupsNotReady, WaitProgress, ""
		d.Message = fmt.Sprintf("the last groups of revision %s stay until those of %s are ready%s%s", r.StableRevision, r.UpdateRevision,
			o.describeBatch(), o.describeUnready(c.All()))
	}
	if scalesDown {
		a := SetStable{Record: *o.Record, Rolling: hold(), Replicas: ptr.To(0), Why: "scale " + o.Stable.Name + " to 0 groups"}
		if o.hasRoles() {
			a.Why = fmt.Sprintf("let the groups of revision %s go that no role needs any more", r.StableRevision)
		}
		d.Action = a
	}
	return d
}

// belongings are what a handover transfers to the successor: the autoscalers that scale the workload, and its history.
type belongings struct {
	autoscalers   []Autoscaler
	history       []Entry
	historyUnread bool
}

// belongings returns what the successor is to own. A DisaggregatedSet transfers nothing: the object stays.
func (o Observation) belongings() belongings {
	if o.hasRoles() {
		return belongings{}
	}
	targets := slices.DeleteFunc(slices.Clone(o.Autoscalers), func(a Autoscaler) bool { return !a.Targets })
	return belongings{autoscalers: targets, history: o.History, historyUnread: o.HistoryUnread}
}

// transferAutoscalers restores the workload's autoscalers and points them at its successor. It returns nil once that is done.
func transferAutoscalers(o Observation, c Workload) *Decision {
	own := o.belongings().autoscalers
	if len(own) == 0 {
		return restoreAutoscalers(o)
	}
	return &Decision{
		Action: ReleaseAutoscaler{Kind: own[0].Kind, Name: own[0].Name, To: c.Name}, Reason: ReasonReleasingAutoscaler,
		Message: fmt.Sprintf("%s is being pointed at %s", own[0], c.Name),
	}
}

// secondSetCanServe reports whether the second set can serve without the user's own groups. At least one group must be
// ready, whatever the policy's failure threshold.
func (o Observation) secondSetCanServe(c Workload) bool {
	n := o.beforePromotion(o.Record.Release.Groups)
	return c.servingGroups(c.Replicas) >= max(n-o.Policy.Threshold(n), min(o.Record.Release.Groups, 1))
}

// handOver transfers what remains: the history and the record.
func handOver(o Observation, s Progress, c Workload) Decision {
	own := o.belongings()
	d := Decision{Reason: ReasonHandingOver, Message: fmt.Sprintf("%s becomes the workload %s", c.Name, o.knownAs())}
	switch {
	case c.hasOtherRevisions(0):
		d.Reason, d.Message = ReasonGroupsNotReady, mixedMessage(c) // under the hold the groups would stay mixed
	case c.existingGroups() < c.Replicas:
		d.Reason = ReasonGroupsNotReady // under the hold a missing group may be recreated at its old revision
		d.Message = fmt.Sprintf("%d of %d groups of %s exist%s", c.existingGroups(), c.Replicas, c.Name, o.describeUnready(c.All()))
	case o.replacesUnits() && s.available < c.Replicas-o.Policy.Threshold(c.Replicas):
		d.Reason, d.Remedy = ReasonGroupsNotReady, "Repair them, or scale their role down"
		d.Message = fmt.Sprintf("the last groups of %s take the place of old ones, and are not ready yet%s%s", c.Name, o.describeBatch(), o.describeUnready(c.All()))
	case own.historyUnread:
		d.Reason, d.Message = ReasonHistoryUnread, "the caches do not show the history of "+o.Stable.Name+" yet"
	case len(own.history) > 0:
		d.Action = TransferHistory{Revision: own.history[0].Revision, To: c.Name}
	default:
		d.Action = HandOver{Name: c.Name, Record: successorRecord(o)}
	}
	return d
}

// successorRecord returns the successor's record: the promoted release, and the user's settings.
func successorRecord(o Observation) record.Record {
	next := withRelease(o, func(r *record.Release) {
		r.Phase, r.Successor, r.Groups = record.Promoted, "", 0
		r.Target, r.Traffic, r.StableTemplate = nil, nil, nil
	})
	if o.hasRoles() {
		next.Release.SlicesWait = o.SlicesWaiting > 0
		return next // the object stays
	}
	next.Saved, next.Workload, next.Predecessor, next.UID = Saved(o), o.knownAs(), o.Stable.Name, ""
	return next.WithSet(record.Hold())
}

// knownAs returns the name that hosts know the workload by.
func (o Observation) knownAs() string { return o.Record.KnownAs(o.Stable.Name) }

// checkHandover: each step of a handover finds requests and groups where it expects them.
func checkHandover(o Observation, action Action) error {
	switch a := action.(type) {
	case SetStable:
		return checkHandoverStep(o, a)
	case HandOver:
		c, own := o.canary(), o.belongings()
		switch {
		case !o.handingOver() || c == nil || c.Deleting || c.Name != a.Name:
			return errors.New("a workload is handed over without a handover in progress")
		case c.hasOtherRevisions(0):
			return errors.New("a workload is handed over whose groups are at several revisions")
		case c.existingGroups() < c.Replicas:
			return errors.New("a workload is handed over that lacks groups")
		case !o.stableDrained() || len(own.history) > 0:
			return errors.New("a workload is handed over before its groups and history")
		case o.Traffic != nil && o.Traffic.Facts().Weight > 0:
			return errors.New("a workload is handed over while a route splits its requests")
		case len(own.autoscalers) > 0:
			return errors.New("a workload is handed over before its autoscalers")
		}
	case ScaleCanary:
		if o.handingOver() && a.Replicas != o.Record.Release.Groups {
			return fmt.Errorf("a workload that is being handed over is scaled to %d groups", a.Replicas)
		}
	case DeleteStable:
		if !o.handingOver() || !o.Succeeded {
			return errors.New("the user's workload is deleted without a successor")
		}
	case TransferHistory:
		if !o.handingOver() {
			return errors.New("the history is transferred without a handover")
		}
	}
	return nil
}

// checkHandoverStep: the user's own groups are deleted only once the second set receives requests without them.
func checkHandoverStep(o Observation, a SetStable) error {
	r := a.Record.Release
	if r == nil || o.release() == nil {
		return nil
	}
	before := o.Record.Release.Phase
	switch r.Phase {
	case record.Standby, record.HandingOver:
		follows := before == r.Phase || before == record.Promoting || before == record.Standby
		if !o.handsOver() || !follows {
			return fmt.Errorf("a handover begins in phase %q", before)
		}
	default:
	}
	begins := r.Phase == record.HandingOver && before != record.HandingOver
	if begins && o.Traffic != nil && o.Stable.Replicas > 0 {
		if weight := o.Traffic.Facts().Weight; weight != 100 {
			return fmt.Errorf("the workload is handed over to a second set with %d %% of the requests", weight)
		}
		return nil
	}
	if a.Replicas == nil {
		return nil
	}
	cancels := r.Phase == record.Promoting || a.RestoreTemplate
	switch {
	case *a.Replicas == 0 && !o.secondSetCanServe(ptr.Deref(o.canary(), Workload{})):
		return errors.New("groups are deleted while the second set is not ready")
	case before != record.HandingOver || *a.Replicas != 0 && !cancels:
		return fmt.Errorf("the workload is scaled to %d groups in phase %q", *a.Replicas, r.Phase)
	case *a.Replicas == 0 && o.Traffic != nil:
		if v := o.Traffic.Look(requestsToSecondSet()); v.Stage < traffic.Written || !isWithdrawn(v) {
			return errors.New("groups are deleted before the stable Service selects the second set")
		}
	}
	return nil
}
