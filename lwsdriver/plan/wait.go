// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Wait is what a decision without an Action waits for. Every wait but WaitTimer and WaitAdmission ends at the progress deadline.
type Wait int

const (
	// WaitProgress is for groups that are to become ready, and for LWS or another controller that is to act. It is the zero value, so a decision that
	// names no Wait has a deadline.
	WaitProgress Wait = iota
	// WaitCleanup is for pods and objects of the release that are being deleted.
	WaitCleanup
	// WaitTraffic is for routes, Services and gateways that are to follow.
	WaitTraffic
	// WaitTimer is for a time that the policy sets, while nothing else is awaited.
	WaitTimer
	// WaitCache is for a cache that the API server does not confirm.
	WaitCache
	// WaitAdmission is for groups of other releases, which have deadlines of their own.
	WaitAdmission
)

// Reasons of waits that have lasted longer than the progress deadline. ReasonDeadline is that of WaitProgress.
const (
	ReasonCleanupDeadline = "CleanupDeadlineExceeded"
	ReasonTrafficDeadline = "TrafficDeadlineExceeded"
)

// Waiting is a wait as the driver remembers it between two observations: no object tells when most waits began.
type Waiting struct {
	// For is what was asked for and is not reached: see [Observation.askedFor].
	For string `json:"for,omitzero"`
	// Since is the first observation at which it was not reached. Zero means that it is reached. Repairs in between do not change it.
	Since time.Time `json:"since,omitzero"`
	// Recorded is since when an earlier driver waited for the same, by the record that this one found. Zero means that none did.
	Recorded time.Time `json:"recorded,omitzero"`
	// Overwritten says which other client overwrote what meanwhile, last. Empty means none that is known.
	Overwritten string `json:"overwritten,omitzero"`
}

// progressDeadline returns the release's deadline, or the default one without a release.
func (o Observation) progressDeadline() time.Duration {
	if d := o.Policy.ProgressDeadline; d > 0 {
		return d
	}
	return record.DefaultProgressDeadline
}

// defaultGracePeriod is Kubernetes' default terminationGracePeriodSeconds.
const defaultGracePeriod = 30 * time.Second

// longestWait returns how long a wait may last. A deletion always has the default grace period.
func (w Wait) longestWait(o Observation) time.Duration {
	if w == WaitCleanup {
		return max(o.progressDeadline(), defaultGracePeriod)
	}
	return o.progressDeadline()
}

// isOverdue reports whether a wait that began at a time has lasted for the progress deadline.
func (o Observation) isOverdue(since time.Time) bool {
	return !since.IsZero() && !o.Now.Before(since.Add(o.progressDeadline()))
}

// limitWait fails a decision whose wait has lasted for the progress deadline. Otherwise it adds the deadline. It is the only
// place that does so. FAILED is not final: the release continues once what it waited for has happened.
func limitWait(o Observation, d Decision) Decision {
	if d.Reason == traffic.ReasonRecordInvalid {
		d.State = pb.State_STATE_FAILED // only a user can repair it
	}
	if o.release() != nil && d.Action == nil && !atRestIn(d.State) {
		d.Recheck = earliest(d.Recheck, o.nextChange())
	}
	now, same := o.currentWait(d)
	hasNoDeadline := d.Action == nil && (d.Wait == WaitTimer || d.Wait == WaitAdmission)
	if atRestIn(d.State) || hasNoDeadline {
		if r := o.release(); r != nil && r.Waiting.For == now.For {
			d.Waiting.For = now.For // it is reached, although the record still says that the release waits for it
		}
		return d
	}
	d.Waiting = now
	// Any other write moves the release on, unless it repairs what another client overwrites: the next decision has the deadline.
	forGroups := d.Wait == WaitProgress && !d.Since.IsZero()
	waits := d.Action == nil || forGroups || same && (allowsWait(d.Action) || d.Overwritten != "")
	if d.State == pb.State_STATE_FAILED || !waits {
		return d
	}
	since := now.deadlineStart(d)
	d.Deadline = since.Add(d.Wait.longestWait(o))
	d = recordWait(o, d, since)
	if left := d.Deadline.Sub(o.Now); left > 0 {
		d.Recheck = earliest(d.Recheck, left)
		return d
	}
	return failExpired(o, d, since)
}

// currentWait returns what a decision waits for, and whether the last one did, too. A driver that has started, or leads again, continues the
// wait in the record.
func (o Observation) currentWait(d Decision) (now Waiting, same bool) {
	now = Waiting{For: o.askedFor(), Since: o.Now}
	known := o.Waiting.For == now.For
	same = known && !o.Waiting.Since.IsZero()
	if same {
		now = o.Waiting
	} else if r := o.release(); !known && r != nil && r.Waiting.For == now.For {
		now.Recorded, now.Overwritten = r.Waiting.Since, r.Waiting.Overwritten
	}
	if d.Overwritten != "" {
		now.Overwritten = d.Overwritten
	}
	return now, same
}

// deadlineStart returns when the deadline of a decision's wait began to count: when the decision says that its wait began, or else when the driver
// began to wait. A driver that has just started sees a wait as new. What an earlier driver recorded counts then, unless there was progress since.
func (w Waiting) deadlineStart(d Decision) time.Time {
	progress, recorded := d.Progress.ProgressAt, w.Recorded
	began := d.Since
	if began.IsZero() {
		began = w.Since
	}
	recordedEarlier := !recorded.IsZero() && recorded.Before(began)
	if recordedEarlier && (d.Since.IsZero() || !recorded.Before(progress)) {
		began = recorded
	}
	if d.Since.IsZero() {
		return later(began, progress)
	}
	return began
}

// recordAfter divides a deadline: a wait is recorded after this part of it. Most waits end sooner, and cost no write.
const recordAfter = 10

// recordWait notes in the decision what the record is to have of its wait, once the wait has lasted long enough.
func recordWait(o Observation, d Decision, since time.Time) Decision {
	next := record.Waiting{For: d.Waiting.For, Since: since, Overwritten: d.Waiting.Overwritten}
	r := o.release()
	if r == nil || max(len(next.For), len(next.Overwritten)) > record.MaxWaiting {
		return d
	}
	recorded := r.Waiting.For == next.For && since.Sub(r.Waiting.Since).Abs() < time.Second
	if recorded && (r.Waiting.Overwritten != "" || next.Overwritten == "") {
		next = r.Waiting // another client's name is no reason to write
	}
	if left := since.Add(d.Wait.longestWait(o) / recordAfter).Sub(o.Now); left > 0 {
		d.Recheck = earliest(d.Recheck, left)
		return d
	}
	d.record = next
	return d
}

// keepWait adds to a write of the record what the release waits for, and removes from it what the release no longer waits for.
func keepWait(o Observation, d Decision) Decision {
	a, ok := d.Action.(SetStable)
	if !ok || a.Record.Release == nil {
		return d
	}
	next, r := o, *a.Record.Release
	next.Record = &a.Record
	switch asked := next.askedFor(); {
	case d.record.For == asked:
		r.Waiting = d.record
	case r.Waiting.For != asked, d.Waiting.For == asked && d.Waiting.Since.IsZero():
		r.Waiting = record.Waiting{}
	}
	a.Record.Release = &r
	d.Action = a
	return d
}

// whySaveWait describes the write of saveWait.
const whySaveWait = "note in the record what the release waits for"

// saveWait is keepWait, with a write of the record if no other write is due and the record would change.
func saveWait(o Observation, d Decision) Decision {
	r := o.release()
	if d.Action != nil || r == nil || o.Refused != nil || o.Stable.Deleting || d.Reason == ReasonStyleNotSupported {
		return keepWait(o, d)
	}
	save := d
	save.Action = SetStable{Record: *o.Record, Why: whySaveWait}
	save = keepWait(o, save)
	if a, _ := save.Action.(SetStable); a.Record.Release.Waiting != r.Waiting {
		return save
	}
	return d
}

// askedFor identifies what the release is asked for: its phase, revision, batch and requested share. Its deadline counts from the first
// time that it was not reached.
func (o Observation) askedFor() string {
	r := o.release()
	if r == nil {
		return "rest"
	}
	asked := fmt.Sprintf("%s/%s/%d", r.Phase, r.UpdateRevision, r.Traffic.RequestedWeight())
	if t := o.Target(); t != nil {
		asked += "/" + t.Groups
	}
	return asked
}

// atRestIn reports whether nothing is awaited in a state: the host or the user decides what happens next.
func atRestIn(s pb.State) bool {
	switch s {
	case pb.State_STATE_UNMANAGED, pb.State_STATE_HOLDING, pb.State_STATE_READY, pb.State_STATE_COMPLETED,
		pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE:
		return true
	default:
		return false
	}
}

// allowsWait reports whether a write is made beside a wait, which continues after it.
func allowsWait(a Action) bool {
	switch a.(type) {
	case LabelServing, LabelGroup, SaveRevision, DeleteRevision:
		return true
	default:
		return false
	}
}

// failExpired returns the failure of a wait: what has lasted too long, since when, and what to do.
func failExpired(o Observation, d Decision, since time.Time) Decision {
	d.State = pb.State_STATE_FAILED
	lasted := fmt.Sprintf("for %s (since %s): %s", d.Wait.longestWait(o), clockTime(since), d.Message)
	if by := d.Waiting.Overwritten; by != "" && by != d.Overwritten {
		lasted += "; " + by
	}
	reason := d.Reason
	switch d.Wait {
	case WaitCleanup:
		d.Reason = ReasonCleanupDeadline
		d.Message = "the deletion has lasted " + lasted + ". " + d.remedyOr("See the finalizers and events of the object") +
			continuationText(o, "that is deleted")
	case WaitTraffic:
		d.Reason = ReasonTrafficDeadline
		d.Message = fmt.Sprintf("requests are not routed as required %s. Reason %s: %s%s", lasted, reason, d.remedyOr(o.trafficRemedy(reason)),
			continuationText(o, "that is repaired"))
	case WaitCache:
		d.Message = "the API server has not confirmed what the driver knows " + lasted + ". " + d.Remedy + continuationText(o, "it is confirmed")
	default:
		d.Reason = ReasonDeadline
		d.Message = "no progress " + lasted
		if d.Since.IsZero() && (d.Remedy != "" || d.Progress.blocking == nil) {
			d.Message += ". " + d.remedyOr("See the driver's log and "+o.kubectlDescribe()) + continuationText(o, "that is repaired")
		} else {
			d.Message += d.Progress.diagnosis(o, d.Message)
		}
	}
	return d
}

func (d Decision) remedyOr(fallback string) string {
	if d.Remedy != "" {
		return d.Remedy
	}
	return fallback
}

// continuationText returns how the release continues after a wait that has failed.
func continuationText(o Observation, once string) string {
	text := ". The release continues by itself once " + once
	if r := o.release(); r != nil && (r.Phase == record.Progressing || r.Phase == record.Promoting) {
		text += "; otherwise abort"
	}
	return text
}

// trafficRemedy returns what to do about routing that is not in force.
func (o Observation) trafficRemedy(reason string) string {
	switch reason {
	case traffic.ReasonBlocked:
		return "repair the object that the message names, or let the driver read it"
	case traffic.ReasonRouteNotObserved, traffic.ReasonPoolNotObserved:
		return "check that the gateway's controller runs and serves each parentRef"
	case traffic.ReasonIsolationNotInForce, traffic.ReasonEndpointsNotFollowing:
		return "check that the endpointslice controller runs"
	case traffic.ReasonNoPicker:
		return "check that the endpoint picker of the canary's pool runs"
	case traffic.ReasonNoStableEndpoints:
		return "check why the Service has no ready leader" + o.describeUnready(o.Stable.All())
	case traffic.ReasonNoCanaryEndpoints:
		return "check why the Service has no ready leader"
	default:
		return "check the object that the message names"
	}
}

// awaitLWS returns a decision that waits for the LeaderWorkerSet controller.
func (o Observation) awaitLWS(reason, message string, args ...any) *Decision {
	d := &Decision{Reason: reason, Message: fmt.Sprintf(message, args...), Remedy: o.lwsRemedy()}
	if !o.hasRoles() {
		d.Remedy += ": it never observes a change of volumeClaimTemplates, for example"
	}
	return d
}

// lwsRemedy returns what to do while LWS does not act.
func (o Observation) lwsRemedy() string {
	return "Check that the LeaderWorkerSet controller runs (kubectl -n lws-system get pods), and whether its log and " + o.kubectlDescribe() + " show an error"
}

// awaitGroups makes d wait for the groups of the release's goal. More than the tolerated number must be missing for the deadline to count from
// their loss.
func awaitGroups(s Progress, d Decision, tolerated int) Decision {
	d.Recheck, d.Since = s.nextReady, s.stuckSince(tolerated)
	return d
}

// awaitPlace returns what a batch waits for if it replaces units and has no place for the last of them. Old units may have to stay for the
// requests that the host's weight leaves to them: another weight helps. Or no role may lack or add a group: another pace helps. Nil means neither.
func awaitPlace(o Observation, s Progress, d Decision) *Decision {
	if !o.replacesUnits() || o.shiftsBack() || len(o.leavingGroups()) > 0 {
		return nil
	}
	b, r := o.desiredBounds(), o.Record.Release
	placed := 0
	for slice := range o.Slices {
		placed += b.Exact[Member(slice, o.entryRole().Name)]
	}
	if placed > s.ready || o.boundsAction(*b, "") != nil {
		return nil // units that are placed start, or the bounds move
	}
	enough := o.weightOf(s.Planned)
	if o.Traffic != nil && r.Traffic != nil && r.Traffic.Weight < enough {
		d.Message = fmt.Sprintf("%d of %d groups ready; there is no place for the others: the host asked for %d %% of the requests, so %d units of "+
			"revision %s stay for the rest", s.ready, s.Planned, r.Traffic.Weight, o.Stable.existingGroups(), r.StableRevision)
		d.Remedy = fmt.Sprintf("Ask for a weight of %d %%, or for a batch of %s", enough, Counted(s.ready, "group", "groups"))
		return &d
	}
	return o.failShift()
}
