// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Once a release moves requests, an autoscaler that follows the load of the user's own groups is wrong: their load falls,
// and it would remove groups that have to take the requests back. So a release holds autoscalers while requests or groups
// are split: a blue-green release in both directions, others only from removing groups.

// Autoscaler is an object that changes the workload's replicas.
type Autoscaler struct {
	Kind, Name string
	// Targets is true if it scales the workload. One that was pointed elsewhere may still be held.
	Targets bool
	// Passed is true if it scales the successor of a workload that is being handed over.
	Passed bool
	// Directions are those in which it may change the number of groups.
	autoscaler.Directions
	// ToZero is true if its user allows it to remove the last group, and Max is the most groups that its user allows.
	ToZero bool
	Max    int
	// Limited is true if it would remove groups now, but for the hold or its user's policies.
	Limited bool
	// Held is the hold that its note describes.
	Held autoscaler.Hold
	// Lingers names an object that still scales for a held autoscaler until its controller has observed the hold, or is
	// empty.
	Lingers string
	// Unreadable is why its note can't be trusted. Empty means that it can, or does not exist.
	Unreadable string
}

func (a Autoscaler) String() string { return a.Kind + " " + a.Name }

// HoldAutoscaler keeps an autoscaler from scaling the workload, and saves its user's settings in the same request.
type HoldAutoscaler struct {
	Kind, Name string
	Hold       autoscaler.Hold
}

// ReleaseAutoscaler restores the settings of an autoscaler's user, and may point it at another workload.
type ReleaseAutoscaler struct {
	Kind, Name string
	// To is the workload to scale. Empty means unchanged.
	To string
}

func (HoldAutoscaler) action()    {}
func (ReleaseAutoscaler) action() {}

func (a HoldAutoscaler) String() string {
	if a.Hold == autoscaler.HoldDown {
		return fmt.Sprintf("hold %s %s from removing groups", a.Kind, a.Name)
	}
	return fmt.Sprintf("hold %s %s", a.Kind, a.Name)
}
func (a ReleaseAutoscaler) String() string {
	if a.To != "" {
		return fmt.Sprintf("restore %s %s and point it at %s", a.Kind, a.Name, a.To)
	}
	return fmt.Sprintf("restore %s %s", a.Kind, a.Name)
}

// Reasons of decisions about autoscalers.
const (
	ReasonHoldingAutoscaler    = "HoldingAutoscaler"
	ReasonReleasingAutoscaler  = "ReleasingAutoscaler"
	ReasonAutoscalerLingers    = "WaitingForAutoscaler"
	ReasonAutoscalersNotSynced = "AutoscalersNotSynced"
)

// movesRequests reports whether the release has moved requests or groups, or is about to, and is not over.
func (o Observation) movesRequests() bool {
	r := o.release()
	if r == nil || !r.Phase.Unfinished() {
		return false
	}
	if r.Phase != record.Progressing || o.switchesSets() {
		return true
	}
	c := o.canary()
	hasGroups := c != nil && c.Replicas > 0
	return hasGroups || o.Target() != nil || r.Traffic.RequestedWeight() > 0
}

// wantedHold returns what an autoscaler is to be kept from.
func (o Observation) wantedHold(a Autoscaler) autoscaler.Hold {
	switch {
	case !a.Targets || o.Record == nil || o.Stable.Deleting:
		return autoscaler.HoldNone
	case o.movesRequests() && o.switchesSets():
		return autoscaler.HoldAll
	case o.movesRequests():
		return autoscaler.HoldDown
	case a.ToZero && o.mayEmpty() && o.Stable.Replicas > 0 && o.Stable.hasOtherRevisions(0):
		// Without groups LWS keeps no old revision: the next group would run the template that waits.
		return autoscaler.HoldDown
	}
	return autoscaler.HoldNone
}

// mayEmpty reports whether autoscalers may remove the last group of a workload: no role has groups that only its spec counts.
func (o Observation) mayEmpty() bool {
	return !slices.ContainsFunc(o.Roles, func(r Role) bool { return !r.External && r.Replicas > 0 })
}

// pendingHold returns the write that puts the wanted hold of an autoscaler in force, or nil if it is.
func (o Observation) pendingHold(a Autoscaler) Action {
	want := o.wantedHold(a)
	switch {
	case want == autoscaler.HoldNone && a.Held != autoscaler.HoldNone:
		return ReleaseAutoscaler{Kind: a.Kind, Name: a.Name}
	case want == autoscaler.HoldAll && a.Any(),
		want == autoscaler.HoldDown && (a.Down || a.Held == autoscaler.HoldAll):
		return HoldAutoscaler{Kind: a.Kind, Name: a.Name, Hold: want}
	}
	return nil
}

// reconcileAutoscalers puts the wanted hold of each autoscaler in force. Nil means done, or that an autoscaler has yet to observe its
// load. Rollbacks do not call it before requests have returned: they wait for no autoscaler.
func reconcileAutoscalers(o Observation) *Decision {
	for _, a := range o.Autoscalers {
		switch act := o.pendingHold(a).(type) {
		case ReleaseAutoscaler:
			if awaitLoad(o, a) == nil {
				return &Decision{Action: act, Reason: ReasonReleasingAutoscaler, Message: fmt.Sprintf("%s is being restored", a)}
			}
		case HoldAutoscaler:
			return &Decision{Action: act, Reason: ReasonHoldingAutoscaler, Message: o.whyHeld(a, act.Hold)}
		}
	}
	return nil
}

func (o Observation) whyHeld(a Autoscaler, hold autoscaler.Hold) string {
	switch {
	case hold == autoscaler.HoldAll:
		return fmt.Sprintf("%s is being held: it would follow the load of one of the two sets", a)
	case o.movesRequests():
		return fmt.Sprintf("%s is being held from removing groups: the release moves load away from the groups that it observes", a)
	}
	return fmt.Sprintf("%s is being held from removing the last group: from 0 groups LeaderWorkerSet would start revision %s, which waits for a release",
		a, o.Stable.Revision)
}

// holdAutoscalers puts the wanted holds in force and, before requests move, waits until they are known to be. Nil means done.
func holdAutoscalers(o Observation) *Decision {
	if d := reconcileAutoscalers(o); d != nil {
		return d
	}
	beforeMove := o.release().Phase == record.Progressing || o.completesSecondSet()
	if !beforeMove || !o.movesRequests() {
		return nil // once requests have moved, waiting is of no use
	}
	return awaitAutoscalers(o)
}

// awaitAutoscalers waits until it is known that no autoscaler acts against its hold. Nil means that none does.
func awaitAutoscalers(o Observation) *Decision {
	if o.awaitsScan() {
		return awaitScan(o)
	}
	for _, a := range o.Autoscalers {
		if a.Targets && a.Lingers != "" {
			return &Decision{
				Reason:  ReasonAutoscalerLingers,
				Message: fmt.Sprintf("%s is held, but %s still scales: check that KEDA is running, in version 2.18.2 or later", a, a.Lingers),
				Remedy:  "With an older KEDA pause it yourself: annotate it with autoscaling.keda.sh/paused=true",
			}
		}
	}
	return nil
}

// awaitsScan reports whether the release must not go on before the autoscalers are known. A canary or partition release
// continues without the permission to read them.
func (o Observation) awaitsScan() bool {
	return o.Unscanned != nil && (o.switchesSets() || o.Unscanned.Reason == pb.ErrorReason_ERROR_REASON_NOT_SYNCED)
}

func awaitScan(o Observation) *Decision {
	return &Decision{
		Reason: ReasonAutoscalersNotSynced, Message: "the autoscalers of " + o.Stable.Name + " are unknown: " + o.Unscanned.Message,
		Remedy: "Check that the driver may list, watch and patch horizontalpodautoscalers and scaledobjects",
	}
}

// restoreAutoscalers is the last effect of a release: it restores the autoscalers that no longer need a hold. Nil means done.
func restoreAutoscalers(o Observation) *Decision {
	if d := reconcileAutoscalers(o); d != nil {
		return d
	}
	for _, a := range o.Autoscalers {
		if d := awaitLoad(o, a); d != nil {
			return d
		}
	}
	if o.release() != nil && o.awaitsScan() {
		return awaitScan(o)
	}
	return nil
}

// loadReturns is how long an autoscaler is given to observe the requests that a release has returned. It is the default of
// its stabilization window for scale-down.
const loadReturns = 5 * time.Minute

// awaitLoad waits until an autoscaler has observed the requests that have returned to the groups that it scales: its
// metrics may be minutes old, and would have it remove groups at once. Nil means that it has, or has had the time.
func awaitLoad(o Observation, a Autoscaler) *Decision {
	if !o.wouldShrink(a) {
		return nil
	}
	until := o.Record.Release.PhaseAt.Add(loadReturns)
	if !until.After(o.Now) {
		return nil
	}
	return &Decision{
		Reason: ReasonAutoscalerLingers, Recheck: until.Sub(o.Now), Wait: WaitTimer,
		Message: fmt.Sprintf("%s would still remove groups: it is restored once its metrics show the requests that have returned, or at %s", a, clockTime(until)),
	}
}

// wouldShrink reports whether an autoscaler whose hold a release no longer needs would remove groups at once.
func (o Observation) wouldShrink(a Autoscaler) bool {
	_, due := o.pendingHold(a).(ReleaseAutoscaler)
	return due && a.Targets && a.Limited && o.release() != nil && !o.Stable.Deleting
}

// renewLoadWait returns the write by which autoscalers have the time from the deletion of an added workload on, if requests returned long
// after the abort. Nil means that there is none.
func renewLoadWait(o Observation, w Workload) Action {
	r := o.release()
	late := phaseOf(r) == record.CleaningUp && w.DeletingSince.Sub(r.PhaseAt) > loadReturns/5
	if !late || o.Refused != nil || !slices.ContainsFunc(o.Autoscalers, o.wouldShrink) {
		return nil
	}
	next := amendRelease(o, func(r *record.Release) { r.PhaseAt = later(o.Now, w.DeletingSince) })
	return SetStable{Record: next, Why: "note that requests have returned: autoscalers are restored later"}
}

// wakeForLoad has the driver decide again once an autoscaler has had the time: in mid-release nothing waits for it.
func wakeForLoad(o Observation, d Decision) Decision {
	for _, a := range o.Autoscalers {
		if wait := awaitLoad(o, a); wait != nil {
			d.Recheck = earliest(d.Recheck, wait.Recheck)
		}
	}
	return d
}

// warnUnscanned adds autoscalers that only a user can restore.
func warnUnscanned(o Observation, d Decision) Decision {
	for _, a := range o.Autoscalers {
		if a.Unreadable != "" && !a.Any() {
			d.Message += fmt.Sprintf("; %s does not scale, and its saved settings can't be read: %s. Set it as you want it, and remove that annotation",
				a, a.Unreadable)
		}
	}
	return d
}

// checkAutoscalers: no canary is created and no share of the requests grows while an autoscaler acts against its hold.
func checkAutoscalers(o Observation, action Action) error {
	set, routes := action.(SetTraffic)
	_, creates := action.(CreateCanary)
	grows := routes && set.Desired.Weight > o.canaryWeight() && o.Traffic.Look(set.Desired).Write.Grows
	if !creates && !grows {
		return nil
	}
	for _, a := range o.Autoscalers {
		if _, due := o.pendingHold(a).(HoldAutoscaler); due {
			return errors.New(a.String() + " scales while requests move")
		}
	}
	return nil
}
