// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// A blue-green promotion may adopt the second set instead of rolling the user's own groups. Requests move as for any other;
// then those groups stand by for the policy's ScaleDownDelay, so that one write returns the requests to them. After that
// everything that is the workload's passes on, a write at a time and in an order in which the stable Service leads to a
// whole set at any instant, and the user's object goes. What is next is told by what has passed on already.

// HandOver makes an added workload a held one of its own: nothing of the release is left on it but the record. If the
// template in the spec of the user's workload was edited since, it gets that one too, which waits under the hold.
type HandOver struct {
	Name   string
	Record record.Record
}

// DeleteStable asks for the deletion of the user's workload, which has no groups any more and nothing that is its own.
type DeleteStable struct{ Name string }

// TransferHistory makes an entry of the history the successor's.
type TransferHistory struct{ Revision, To string }

func (HandOver) action()        {}
func (DeleteStable) action()    {}
func (TransferHistory) action() {}

func (a HandOver) String() string {
	return fmt.Sprintf("make %s the workload that is known as %s", a.Name, a.Record.Workload)
}
func (a DeleteStable) String() string { return "delete " + a.Name + ", which has passed everything on" }
func (a TransferHistory) String() string {
	return fmt.Sprintf("pass revision %s of the history on to %s", a.Revision, a.To)
}

// Reasons of decisions about an adoption.
const (
	ReasonScalingDown   = "StableScalingDown"
	ReasonHandingOver   = "HandingOver"
	ReasonSuccessorGone = "SuccessorGone"
	ReasonHistoryUnread = "HistoryNotSynced"
)

// handsOver says whether the release's promotion adopts the second set.
func (o Observation) handsOver() bool { return o.switches() && o.Policy.Adopt }

// handingOver says whether there is no way back any more.
func (o Observation) handingOver() bool {
	return o.release() != nil && o.Record.Release.Phase == record.HandingOver
}

// stableDrained says whether nothing is left of the user's own groups.
func (o Observation) stableDrained() bool { return o.Stable.Replicas == 0 && o.Stable.existing() == 0 }

// requestsReturned is where requests go in an adoption while the user's own groups are there: by the stable Service, which leads to
// the second set.
func requestsReturned() traffic.Desired { return traffic.Desired{HandedOver: true, Prepared: true} }

// requestsHandedOver is where requests go in an adoption: nothing is left of the release on the user's objects once they have returned
// and the groups that had them are gone.
func (o Observation) requestsHandedOver() traffic.Desired {
	d := requestsReturned()
	if !o.stableDrained() || o.Traffic == nil {
		return d
	}
	if v := o.Traffic.Look(d); v.Weight > 0 || v.Prepared && !v.Withdrawn {
		return d
	}
	return traffic.Desired{HandedOver: true}
}

// stableUntouched says whether a promotion that adopts has left the user's own groups as they were. It has not where they had to
// be brought back.
func (o Observation) stableUntouched() bool { return o.handsOver() && len(o.groupsOffRevision()) == 0 }

// standDown is the way back of a promotion that has not touched the user's own groups, when their template is back.
func standDown(o Observation) Decision {
	const why = "the stable template is back while its groups stand by: roll back"
	next := withRelease(o, func(r *record.Release) { r.Phase = record.CleaningUp })
	return Decision{
		State: pb.State_STATE_ROLLING_BACK, Reason: ReasonTemplateReturned, Message: why,
		Action: SetStable{Record: next, Rolling: hold(), Why: why},
	}
}

// standBy keeps the user's own groups, which have no requests, for as long as the policy says.
func standBy(o Observation) Decision {
	r, c := o.Record.Release, o.canary()
	d := Decision{State: pb.State_STATE_PROMOTING, Reason: ReasonScaleDownDelay}
	until := r.PhaseAt.Add(o.Policy.ScaleDownDelay)
	switch left := until.Sub(o.Now); {
	case r.Phase == record.Promoting && o.Policy.ScaleDownDelay > 0:
		d.Message = fmt.Sprintf("%s has the requests; the groups of %s stand by for %s", c.Name, o.Stable.Name, o.Policy.ScaleDownDelay)
		next := withRelease(o, func(r *record.Release) { r.Phase = record.Standby })
		d.Action = SetStable{Record: next, Rolling: hold(), Why: d.Message}
	case r.Phase == record.Standby && left > 0:
		d.Recheck = left
		d.Message = fmt.Sprintf("%s has the requests; the groups of %s stand by until %s, and a rollback returns the requests to them",
			c.Name, o.Stable.Name, until.UTC().Format("15:04:05 MST"))
	case c.mixed():
		d.Reason, d.Message = ReasonGroupsNotReady, mixedMessage(*c)
	default:
		d.Reason, d.Message = ReasonHandingOver, "adopt "+c.Name
		next := withRelease(o, func(r *record.Release) {
			r.Phase, r.Successor, r.Groups = record.HandingOver, c.Name, o.Stable.Replicas
		})
		d.Action = SetStable{Record: next, Rolling: hold(), Why: d.Message}
	}
	return d
}

// mixed says whether a group is not at the workload's revision: somebody edited its template, and LWS takes them back.
func (w Workload) mixed() bool {
	return slices.ContainsFunc(w.Groups, func(g Group) bool { return g.Revision != "" && !g.at(w.Revision) })
}

func mixedMessage(w Workload) string {
	return fmt.Sprintf("the groups of %s are at revisions %s, since its template was edited; LeaderWorkerSet takes them back",
		w.Name, strings.Join(w.revisions(), ", "))
}

// advanceHandover passes on what is the user's workload's, and takes it away.
func advanceHandover(o Observation) Decision {
	const state = pb.State_STATE_PROMOTING
	c := o.canary()
	if o.Succeeded {
		return finalizeSucceeded(o)
	}
	if c == nil || c.Deleting {
		return cancelHandover(o)
	}
	if a := repairHold(o); a != nil {
		return Decision{Action: *a, State: state, Reason: ReasonHoldDrifted, Message: drifted}
	}
	if c.Drifted {
		return Decision{
			Action: RepairCanary{Name: c.Name}, State: state, Reason: ReasonCanaryDrifted,
			Message: fmt.Sprintf("somebody edited %s; it is being put back", c.Name),
		}
	}
	if n := o.Record.Release.Groups; c.Replicas != n {
		return Decision{
			Action: ScaleCanary{Name: c.Name, Replicas: n, Target: c.Target}, State: state, Reason: ReasonScaling,
			Message: fmt.Sprintf("somebody scaled %s; it is being put back to %d groups", c.Name, n),
		}
	}
	want := o.requestsHandedOver()
	v, d := steer(o, want, state)
	switch {
	case d != nil:
		return *d
	case v.Stage <= traffic.Blocked, want.Prepared && !withdrawn(v):
		return *awaitTraffic(v, state)
	case !o.stableDrained():
		return scaleDownStable(o)
	}
	if d := transferAutoscalers(o, *c, state); d != nil {
		return *d
	}
	return handOver(o, *c, state)
}

// finalizeSucceeded: another object is the workload. This one goes.
func finalizeSucceeded(o Observation) Decision {
	d := Decision{
		State: pb.State_STATE_PROMOTING, Reason: ReasonHandingOver,
		Message: fmt.Sprintf("%s serves as %s, and %s is going", o.Record.Release.Successor, o.knownAs(), o.Stable.Name),
	}
	if !o.Stable.Deleting {
		d.Action = DeleteStable{Name: o.Stable.Name}
	}
	return d
}

// cancelHandover: somebody deleted the second set before it could be adopted. The user's own groups come back, and serve until there
// is another one. What scales them is told before, since the record forgets the successor.
func cancelHandover(o Observation) Decision {
	for _, a := range o.Autoscalers {
		if a.Passed {
			return Decision{
				Action: ReleaseAutoscaler{Kind: a.Kind, Name: a.Name, To: o.Stable.Name},
				State:  pb.State_STATE_PROMOTING, Reason: ReasonSuccessorGone, Message: fmt.Sprintf("%s is to scale %s again", a, o.Stable.Name),
			}
		}
	}
	why := fmt.Sprintf("%s is gone or going, and was to be adopted: bring the groups of %s back", o.Record.Release.Successor, o.Stable.Name)
	next := withRelease(o, func(r *record.Release) { r.Phase, r.Successor, r.Groups = record.Promoting, "", 0 })
	a := SetStable{Record: next, Rolling: hold(), Why: why}
	if n := o.Record.Release.Groups; o.Stable.Replicas == 0 && n > 0 {
		a.Replicas = &n
	}
	return Decision{Action: a, State: pb.State_STATE_PROMOTING, Reason: ReasonSuccessorGone, Message: why}
}

// scaleDownStable takes the user's own groups away, once their leaders have finished their requests, and not while their successors are
// not ready.
func scaleDownStable(o Observation) Decision {
	const state = pb.State_STATE_PROMOTING
	if d := drained(o, state); d != nil {
		return *d
	}
	if c := o.canary(); o.Stable.Replicas > 0 && !o.secondSetCarries(*c) {
		return Decision{
			State: state, Reason: ReasonGroupsNotReady,
			Message: fmt.Sprintf("the groups of %s stay until those of %s are ready again%s", o.Stable.Name, c.Name, obstacles(c.Groups)),
		}
	}
	d := Decision{State: state, Reason: ReasonScalingDown, Message: fmt.Sprintf("%d groups of %s are going", o.Stable.existing(), o.Stable.Name)}
	if o.Stable.Replicas > 0 {
		a := SetStable{Record: *o.Record, Rolling: hold(), Replicas: ptr.To(0), Why: "scale " + o.Stable.Name + " to 0 groups"}
		d.Action = a
	}
	return d
}

// transferAutoscalers has what scaled the workload scale its successor, as its user set it. Nil: that is so.
func transferAutoscalers(o Observation, c Workload, state pb.State) *Decision {
	for _, a := range o.Autoscalers {
		if a.Targets {
			return &Decision{
				Action: ReleaseAutoscaler{Kind: a.Kind, Name: a.Name, To: c.Name}, State: state, Reason: ReasonReleasingAutoscaler,
				Message: fmt.Sprintf("%s is to scale %s", a, c.Name),
			}
		}
	}
	return releaseAutoscalers(o, state)
}

// secondSetCarries says whether the second set can do without the user's own groups. One group must be ready, whatever the policy's
// failure threshold.
func (o Observation) secondSetCarries(c Workload) bool {
	n, ready := o.Record.Release.Groups, 0
	for _, g := range c.Groups {
		if g.mayServe(n) {
			ready++
		}
	}
	return ready >= max(n-o.Policy.Threshold(n), min(n, 1))
}

// handOver is the last of what the successor gets: the history, and the record.
func handOver(o Observation, c Workload, state pb.State) Decision {
	d := Decision{State: state, Reason: ReasonHandingOver, Message: fmt.Sprintf("%s becomes the workload that is known as %s", c.Name, o.knownAs())}
	switch {
	case len(o.Budgets) > 0 || o.BudgetsUnread: // guard sees to them
		d.Reason, d.Message = ReasonBudgetGoing, "the disruption budgets of the release are going"
	case c.mixed():
		d.Reason, d.Message = ReasonGroupsNotReady, mixedMessage(c) // under the hold they would stay so
	case c.existing() < c.Replicas:
		d.Reason = ReasonGroupsNotReady // under the hold one may come back as it was before
		d.Message = fmt.Sprintf("%d of %d groups of %s exist%s", c.existing(), c.Replicas, c.Name, obstacles(c.Groups))
	case o.HistoryUnread:
		d.Reason, d.Message = ReasonHistoryUnread, "the caches do not tell yet what the history of "+o.Stable.Name+" has"
	case len(o.History) > 0:
		d.Action = TransferHistory{Revision: o.History[0].Revision, To: c.Name}
	default:
		d.Action = HandOver{Name: c.Name, Record: successorRecord(o)}
	}
	return d
}

// successorRecord is what the successor remembers: that this release was promoted, and what is its user's.
func successorRecord(o Observation) record.Record {
	next := withRelease(o, func(r *record.Release) {
		r.Phase, r.Successor, r.Groups = record.Promoted, "", 0
		r.Target, r.Traffic, r.StableTemplate = nil, nil, nil
	})
	next.Saved, next.Workload, next.Predecessor, next.UID = Saved(o), o.knownAs(), o.Stable.Name, ""
	return next.WithSet(record.Hold())
}

// knownAs is the name that hosts know the workload by.
func (o Observation) knownAs() string { return o.Record.KnownAs(o.Stable.Name) }

// checkHandover: requests and groups are where each step of an adoption presumes them.
func checkHandover(o Observation, action Action) error {
	switch a := action.(type) {
	case SetStable:
		return checkHandoverStep(o, a)
	case HandOver:
		c := o.canary()
		switch {
		case !o.handingOver() || c == nil || c.Deleting || c.Name != a.Name:
			return errors.New("a workload is handed over that is not being adopted")
		case c.mixed():
			return errors.New("a workload is handed over whose groups are at several revisions")
		case c.existing() < c.Replicas:
			return errors.New("a workload is handed over that lacks groups")
		case !o.stableDrained() || len(o.Budgets) > 0 || len(o.History) > 0:
			return errors.New("the workload is handed over before all that is its own")
		case o.Traffic != nil && o.Traffic.Facts().Weight > 0:
			return errors.New("a workload is handed over whose requests come by a share")
		case slices.ContainsFunc(o.Autoscalers, func(a Autoscaler) bool { return a.Targets }):
			return errors.New("the workload is handed over before what scales it")
		}
	case ScaleCanary:
		if o.handingOver() && a.Replicas != o.Record.Release.Groups {
			return fmt.Errorf("a workload that is being adopted is scaled to %d groups", a.Replicas)
		}
	case DeleteStable:
		if !o.handingOver() || !o.Succeeded {
			return errors.New("the user's workload goes, and no other serves in its place")
		}
	case TransferHistory:
		if !o.handingOver() {
			return errors.New("the history is passed on, and nothing is adopted")
		}
	}
	return nil
}

// checkHandoverStep: the user's own groups go only once requests come to the second set without them.
func checkHandoverStep(o Observation, a SetStable) error {
	r := a.Record.Release
	if r == nil || o.release() == nil {
		return nil
	}
	before := o.Record.Release.Phase
	switch r.Phase {
	case record.Standby, record.HandingOver:
		if !o.handsOver() || before != r.Phase && before != record.Promoting && before != record.Standby {
			return fmt.Errorf("an adoption begins in phase %q", before)
		}
	default:
	}
	switch {
	case r.Phase == record.HandingOver && before != record.HandingOver && o.Traffic != nil && o.Stable.Replicas > 0:
		if v := o.Traffic.Facts(); v.Weight != 100 {
			return fmt.Errorf("a second set is adopted that gets %d %% of the requests", v.Weight)
		}
	case a.Replicas == nil:
	case *a.Replicas == 0 && !o.secondSetCarries(ptr.Deref(o.canary(), Workload{})):
		return errors.New("groups go while their successors are not ready")
	case before != record.HandingOver || *a.Replicas != 0 && r.Phase != record.Promoting:
		return fmt.Errorf("the workload is scaled to %d groups in phase %q", *a.Replicas, r.Phase)
	case *a.Replicas == 0 && o.Traffic != nil:
		if v := o.Traffic.Look(requestsReturned()); v.Stage < traffic.Written || !withdrawn(v) {
			return errors.New("groups go before the stable Service leads to their successors")
		}
	}
	return nil
}
