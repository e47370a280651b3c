// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Intent is what a caller requests: a mutating RPC, decoded and validated. The set is closed.
type Intent interface {
	// decide returns the write that records the intent together with its first effect. No Action: nothing changes. The
	// error has an ErrorReason.
	decide(o Observation) (Decision, error)
}

// Decide returns the next write and the state of the workload.
//
// Without an intent it continues what was requested before and never fails: what blocks a release is data. With an
// intent, the Decision is the write that records it and warnings for the caller; an error, which has an ErrorReason,
// refuses the intent. A decision that would break a safety rule is a defect: it is reported and never applied.
func Decide(o Observation, i Intent) (Decision, error) {
	if i == nil {
		return reconcile(o), nil
	}
	if err := checkKnown(o, i); err != nil {
		return Decision{}, err
	}
	d, err := i.decide(o)
	if err != nil {
		return Decision{}, err
	}
	if err := checkFresh(o, d.Action); err != nil {
		return Decision{}, err
	}
	// The request is recorded whatever its effect waits for: the caller must not have to repeat it.
	d.Action = recordOnly(o, d.Action)
	d = keepWait(o, recordRolling(o, d))
	d.InFlight, d.Starts = o.inFlight(pb.State_STATE_UPGRADING, time.Time{}), o.startedGroups(d.Action)
	err = checkObservation(o)
	if err == nil {
		err = checkDecision(o, i, d)
	}
	if err != nil {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %s", o.objectName(), describeDefect(err))
	}
	if o.hasRoles() && d.Action != nil {
		d.Action = o.roleAction(d.Action)
		// The write that it becomes may take groups away where the one of units does not.
		if err := checkFresh(o, d.Action); err != nil {
			return Decision{}, err
		}
	}
	return d, nil
}

// describeDefect describes a decision that would break a safety rule.
func describeDefect(err error) string {
	return fmt.Sprintf("Lockstep stopped before a step that would break a safety rule: %v. This is a defect, please report it", err)
}

// CurrentRelease returns the release that a request names. The error has an ErrorReason.
func CurrentRelease(o Observation, id string) (*record.Release, error) {
	r := o.release()
	switch {
	case r == nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"%s has no release", o.objectName())
	case r.ID != id:
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"%s has release %q, not %q", o.objectName(), r.ID, id), "release_id", r.ID)
	}
	return r, nil
}

// checkRevision refuses a request that means another revision than the one being released. Empty means any revision. A template that changed
// after the promotion does not matter.
func checkRevision(o Observation, r *record.Release, want string) error {
	over := r.Phase == record.Promoted || r.Phase == record.HandingOver
	if want == "" || r.UpdateRevision == want && (over || o.Stable.Revision == want) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"revision %q was meant, but the update revision of release %q of %s is %q, and the template is at %q: read the context again, and decide on that",
		want, r.ID, o.objectName(), r.UpdateRevision, o.Stable.Revision)
}

// checkTemplateRevision refuses a request that was decided on another template than the present one. "" is any.
func checkTemplateRevision(o Observation, want string) error {
	if want == "" || want == o.Stable.Revision {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"the template of %s is revision %q, not %q: read the context again, and decide on the present template", o.objectName(), o.Stable.Revision, want)
}

// phaseText describes a phase in which a release takes no further batch.
func phaseText(p record.Phase) string {
	switch p {
	case record.Nothing:
		return "over: there was nothing to release"
	case record.Promoting, record.Standby, record.HandingOver, record.Promoted:
		return "being promoted, or promoted already"
	default:
		return "being rolled back, or rolled back already"
	}
}

// Adopt requests the hold at rest.
type Adopt struct{}

// Disown requests that the driver stops managing the workload and restores the user's spec.
type Disown struct {
	// Revision is the template at which the host decided, or "" for the present one.
	Revision string
}

func (Adopt) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	if err := checkFirstHold(o); err != nil {
		return Decision{}, err
	}
	d := Decision{Warnings: append(heldTooLate(o), foundHeld(o)...)}
	if o.Record == nil { // the loop repairs a hold that drifted
		d.Action = SetStable{Record: NewRecord(o), Rolling: hold(), Why: "set the hold"}
	}
	return d, nil
}

func (d Disown) decide(o Observation) (Decision, error) {
	if o.Record == nil {
		return Decision{}, nil
	}
	if err := checkRead(o); err != nil {
		return Decision{}, err
	}
	if err := checkTemplateRevision(o, d.Revision); err != nil {
		return Decision{}, err
	}
	// Without its record an outcome would never reach the history, and an autoscaler would remove groups at once.
	if InFlight(o) && !o.mayGiveUp() || o.isEnding() {
		return Decision{}, inProgress(o, "release %q of %s is not over: wait for it, promote it or roll it back first", o.release().ID, o.objectName())
	}
	if b := o.Bounds; o.release() == nil && b != nil && b.Routes != "" && o.trafficDrifted() { // they alone name the routes
		return Decision{}, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS,
			"requests are not routed yet as before release %q of %s, whose record was deleted: wait until they are", b.Routes, o.objectName()), "release_id", b.Routes)
	}
	saved := Saved(o)
	if err := checkRestoreRolling(o, saved); err != nil {
		return Decision{}, err
	}
	decision := Decision{Action: RemoveRecord{Rolling: saved}}
	if r := o.Stable.distinctRevisions(); len(r) > 0 && o.Stable.Revision != "" && (len(r) > 1 || r[0] != o.Stable.Revision) {
		decision.Warnings = []*pb.Warning{{
			Code: "RollStarts",
			Message: fmt.Sprintf("revision %s of %s waited under the hold; LeaderWorkerSet rolls it out from now on",
				o.Stable.Revision, o.objectName()),
		}}
	}
	return decision, nil
}

// checkRestoreRolling refuses a configuration that LWS's webhook would refuse with a less helpful message: after a
// scale-down under the hold both of the user's percentages can round to 0.
func checkRestoreRolling(o Observation, saved rolling) error {
	if o.hasRoles() || record.SameRolling(Pace(saved, o.Stable.Replicas), record.Native(saved)) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REJECTED,
		"%s can't be disowned: its own maxUnavailable %s and maxSurge %s both round to 0 of %d groups, which "+
			"LeaderWorkerSet does not accept. Scale it up, or set its maxUnavailable to 2 or more or its maxSurge to 1 or more "+
			"(Lockstep saves what is set under hold; a maxUnavailable of 1 is the hold's own), then Disown again",
		o.objectName(), saved.MaxUnavailable.String(), saved.MaxSurge.String(), o.Stable.Replicas)
}

// NewRecord returns the record of a workload that is about to be held: its present one, or a new one.
//
// A hold without a record is left over from a record that was removed. Saving it as the user's configuration would keep
// the workload from ever rolling again, so fields that still equal the hold are saved as LWS's defaults; fields that
// differ were set since and are the user's.
func NewRecord(o Observation) record.Record {
	switch {
	case o.Record != nil:
		return *o.Record
	case o.hasRoles():
		return record.Record{}
	case leftHeld(o):
		return record.Record{Saved: record.Absorb(record.Native(record.Hold()), record.Hold(), o.Stable.Rolling)}
	}
	return record.Record{Saved: o.Stable.Rolling}
}

// leftHeld reports whether the hold is in force without a record. Its partition identifies it: no user sets one so high.
func leftHeld(o Observation) bool {
	return o.Record == nil && !o.hasRoles() && isHold(o.Stable.Rolling)
}

// foundHeld warns that the user's settings are unknown, since they were removed with the record.
func foundHeld(o Observation) []*pb.Warning {
	if !leftHeld(o) {
		return nil
	}
	saved := NewRecord(o).Saved
	return []*pb.Warning{{
		Code: "HoldFound",
		Message: fmt.Sprintf("%s was under hold without a record of its own rolling update settings, as after the annotation %s was "+
			"removed: partition %d, maxUnavailable %s and maxSurge %s are assumed. Set others if these are wrong",
			o.objectName(), record.RecordAnnotation, ptr.Deref(saved.Partition, 0), saved.MaxUnavailable.String(), saved.MaxSurge.String()),
	}}
}

// checkRolled refuses, temporarily, a hold while LWS has surge groups, which it would delete at once.
func checkRolled(o Observation) error {
	if isHold(o.Stable.Rolling) || o.hasRoles() || !o.Stable.hasSurge() {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"LeaderWorkerSet is replacing groups of %s, and would delete its surge groups under the hold: try again once it has deleted them", o.objectName())
}

// checkFirstHold is checkRolled for a workload that lacks groups, and whose surge groups serve in their place.
func checkFirstHold(o Observation) error {
	n, serving := o.Stable.Replicas, o.Stable.servingGroups(o.Stable.Replicas)
	if o.Record != nil || n-serving <= scaledValue(o.Stable.Rolling.MaxUnavailable, n, false) || o.Stable.servingGroups(math.MaxInt) == serving {
		return nil
	}
	return checkRolled(o)
}

// heldTooLate warns of groups at more than one revision: LWS had begun to roll before the hold.
func heldTooLate(o Observation) []*pb.Warning {
	revisions := o.Stable.distinctRevisions()
	if len(revisions) < 2 {
		return nil
	}
	return []*pb.Warning{{
		Code: "AdoptedDuringRoll",
		Message: fmt.Sprintf("the groups of %s are at revisions %s: LeaderWorkerSet had begun to roll before Lockstep held it. "+
			"Disown it to let that finish, and adopt it before its template changes again", o.objectName(), strings.Join(revisions, ", ")),
	}}
}
