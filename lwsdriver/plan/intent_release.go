// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Begin requests a release.
type Begin struct {
	ReleaseID, Owner string
	// User is the authenticated caller. Empty means unknown.
	User string
	// Policy is valid, and its style is supported.
	Policy *pb.ReleasePolicy
	// Revision is the template that the host decided to release, or "" for the present one.
	Revision string
}

// decide records the release and holds the workload, in one write.
func (b Begin) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	d := Decision{Warnings: b.Warnings(o)}
	if begun, err := b.alreadyBegun(o); begun || err != nil {
		return d, err
	}
	if err := checkTemplateRevision(o, b.Revision); err != nil {
		return Decision{}, err
	}
	for _, err := range b.obstacles(o) {
		if err != nil {
			return Decision{}, err
		}
	}
	policy, err := record.EncodePolicy(b.Policy)
	if err != nil {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%v", err)
	}
	r := &record.Release{
		ID: b.ReleaseID, Owner: b.Owner, StartedBy: b.User, Policy: policy,
		UpdateRevision: o.Stable.Revision, Phase: record.Progressing, StartedAt: o.Now.UTC(), PhaseAt: o.Now.UTC(),
		Replicas: o.Stable.Replicas, EntryRole: o.EntryRole,
	}
	// The groups, not the spec, say what serves: the spec may have the new template already.
	if now := o.Stable.distinctRevisions(); len(now) == 1 {
		r.StableRevision = now[0]
	}
	// Without groups there is nothing that could be kept or replaced: LWS starts the next one at the template anyway.
	if o.Stable.Replicas == 0 || r.UpdateRevision != "" && r.UpdateRevision == r.StableRevision {
		r.Phase = record.Nothing
	}
	rec := NewRecord(o)
	rec.Release = r
	d.Action = SetStable{Record: rec, Rolling: hold(), Why: fmt.Sprintf("begin release %s", r.ID)}
	return d, nil
}

// Obstacles returns all reasons why the release can't begin now. Each has an ErrorReason.
func (b Begin) Obstacles(o Observation) []error {
	_, begun := b.alreadyBegun(o)
	return append([]error{CheckWorkload(o), begun}, b.obstacles(o)...)
}

// alreadyBegun reports whether the release exists already. The error refuses a new one.
func (b Begin) alreadyBegun(o Observation) (bool, error) {
	r := o.release()
	if r == nil {
		return false, nil
	}
	if r.ID != b.ReleaseID {
		if err := checkRead(o); err != nil {
			return false, err
		}
		// The record of the last release is overwritten, so its effects and its outcome have to be done.
		if InFlight(o) || o.isEnding() {
			return false, inProgress(o,
				"release %q of %q holds %s: wait for it, promote it or roll it back", r.ID, r.Owner, o.objectName())
		}
		return false, nil
	}
	policy, err := r.PolicyMessage()
	if err != nil {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "release %s of %s: %v", r.ID, o.objectName(), err)
	}
	// Half of a release would follow one policy, half the other.
	if !proto.Equal(policy, b.Policy) {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED,
			"release %q of %s began with another policy, and a policy does not change during a release", r.ID, o.objectName())
	}
	return true, nil
}

// obstacles returns, each possibly nil, what would prevent the release from creating its objects, ending, or rolling
// back.
func (b Begin) obstacles(o Observation) []error {
	names := o.checkRoleNames(b.Policy)
	if o.hasRoles() {
		return []error{names, b.checkRoles(o), b.checkRevisions(o), b.checkAutoscalers(o), b.checkTemplate(o)}
	}
	return []error{names, b.checkName(o), b.checkRevisions(o), b.checkNameFree(o), b.checkHandover(o), b.checkAutoscalers(o), b.checkTemplate(o)}
}

func (b Begin) checkName(o Observation) error {
	limit, known := record.MaxStableName(o.Stable.Replicas), o.knownAs()
	if len(known) <= limit || InPlace(b.Policy.GetStyle()) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG,
		"the name %q has %d characters, its canary allows %d with %d groups: the canary's name, \"-\" and a hash must fit "+
			"the 63 characters of StatefulSet's controller-revision-hash label", known, len(known), limit, o.Stable.Replicas)
}

func (b Begin) checkRevisions(o Observation) error {
	now := o.Stable.distinctRevisions()
	switch n := len(now); {
	case n > 1:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS, "%s", heldTooLate(o)[0].GetMessage())
	case n == 0 && o.Stable.Replicas > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"no group of %s exists yet, so there is no stable revision to return to; a moment after it was created that "+
				"is normal: try again once its first group exists", o.objectName())
	// LWS has the template of each revision that this workload runs.
	case n == 1 && !o.hasRoles() && o.Stable.Revision != "" && o.Stable.Revision != now[0] && !slices.Contains(o.Stable.Recorded, now[0]):
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the groups of %s are those of an earlier workload of its name: try again once they are gone", o.objectName())
	}
	return checkRolled(o)
}

func (b Begin) checkNameFree(o Observation) error {
	if o.CanaryNameTaken == "" || InPlace(b.Policy.GetStyle()) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"the canary would be named %s/%s, but a LeaderWorkerSet that is not Lockstep's has that name: rename or delete it",
		o.Key.Namespace, o.CanaryNameTaken)
}

// handsOver reports whether promotion hands the workload over to the second set.
func (b Begin) handsOver() bool {
	return b.Policy.GetBlueGreen().GetPromotion() == pb.BluePromotion_BLUE_PROMOTION_ADOPT
}

// checkHandover refuses a handover that would be undone by a tool, or would lose data.
func (b Begin) checkHandover(o Observation) error {
	switch i := o.Identity; {
	case !b.handsOver():
	case i.AppliedBy != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
			"%s is applied by a tool (it carries %s), which would recreate it after a handover has deleted it: "+
				"promote in place (blue_green.promotion of the policy), which keeps the object", o.objectName(), i.AppliedBy)
	case i.VolumeClaims > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"%s has %d volumeClaimTemplates, and the data in its volumes would be lost, since the new object has volumes of "+
				"its own: promote in place (blue_green.promotion of the policy)", o.objectName(), i.VolumeClaims)
	}
	return nil
}

// checkAutoscalers refuses a release that would hold autoscalers before they are known. Each promotion of a DisaggregatedSet does.
func (b Begin) checkAutoscalers(o Observation) error {
	if o.Unscanned == nil || !Switches(b.Policy.GetStyle()) && !o.hasRoles() {
		return nil
	}
	return drivererr.New(o.Unscanned.Reason, "the release holds the workload's autoscalers: %s", o.Unscanned.Message)
}

// Warnings returns what callers may not expect of the release.
func (b Begin) Warnings(o Observation) []*pb.Warning {
	policy, _ := record.ParsePolicy(b.Policy) // what is invalid is refused elsewhere
	return slices.Concat(foundHeld(o), policy.Warnings(o.Stable.Replicas), b.scaledBy(o), b.warnHandover(o), b.warnUnsafe(o))
}

// scaledBy warns of autoscalers, which the release holds.
func (b Begin) scaledBy(o Observation) []*pb.Warning {
	var names []string
	var toZero []*pb.Warning
	for _, a := range o.Autoscalers {
		if !a.Targets {
			continue
		}
		if names = append(names, a.String()); a.ToZero && o.mayEmpty() {
			toZero = append(toZero, &pb.Warning{
				Code: "AutoscalerToZero",
				Message: fmt.Sprintf("%s may remove the last group of %s, and from 0 groups LeaderWorkerSet starts the template in the spec, released or not. "+
					"So it is held while a template waits. Set its minimum to 1 or more", a, o.objectName()),
			})
		}
	}
	if len(names) == 0 {
		return nil
	}
	what := "may add groups during the release, but not remove any: the release moves load away from the groups that it observes"
	if Switches(b.Policy.GetStyle()) {
		what = "is held until the release is over: the number of groups does not follow the load meanwhile"
	}
	return append([]*pb.Warning{{
		Code: "AutoscalerHeld",
		Message: fmt.Sprintf("%s scales %s and %s. Its settings are saved in its annotation %s and restored",
			strings.Join(names, ", "), o.objectName(), what, autoscaler.NoteAnnotation),
	}}, toZero...)
}

// warnHandover warns of what a handover replaces.
func (b Begin) warnHandover(o Observation) []*pb.Warning {
	if !b.handsOver() || o.hasRoles() {
		return nil
	}
	successor := "another object"
	if o.Stable.Revision != "" {
		successor = record.CanaryName(o.knownAs(), o.Stable.Name, o.Stable.Revision)
	}
	text := fmt.Sprintf("promotion deletes %s, and %s serves in its place: hosts may continue to use the name %s, but whatever "+
		"selects pods or an object by the old name must be changed by its owner, except for the policy's Service and pool and for autoscalers",
		o.objectName(), successor, o.knownAs())
	if b.Policy.GetTraffic() == nil {
		text += ". The policy names no Service, so none is changed: use one that selects by a label of your own"
	}
	return []*pb.Warning{{Code: "HandoverReplacesObject", Message: text}}
}

// SetTarget requests that a release updates the groups of one of its batches, or an absolute number of groups.
type SetTarget struct {
	ReleaseID string
	// Revision is the update revision that the caller means. Empty means any.
	Revision string
	// Batch is an index into the policy's batches. Nil means Groups, a valid quantity, is the target.
	Batch  *int
	Groups string
}

// decide writes the new target unless the present one covers it: batches never decrease, and a retry has no effect.
func (t SetTarget) decide(o Observation) (Decision, error) {
	r, err := CurrentRelease(o, t.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	switch r.Phase {
	case record.Nothing:
		return Decision{}, nil // nothing to release: every batch is complete
	case record.Progressing:
	default:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is %s, so it has no further batch", r.ID, o.objectName(), phaseText(r.Phase))
	}
	if err := checkRevision(o, r, t.Revision); err != nil {
		return Decision{}, err
	}
	next, err := t.nextTarget(o)
	if err != nil {
		return Decision{}, err
	}
	planned, _ := next.Planned(o.batchReplicas()) // Groups is valid, and the policy's batches are
	// A retry, or an earlier batch from a host that has restarted, takes no group away.
	if now := o.Target(); now != nil && coversTarget(now, next, planned, o.batchReplicas()) {
		return Decision{}, nil
	}
	// The target is recorded for a set, whose bounds another client may delete, after an edit of the template, and if the record is to be written
	// anyway. The loop then scales the canary.
	recorded := o.hasRoles() || r.UpdateRevision != o.Stable.Revision
	if c := o.canary(); c != nil && !c.Deleting && !recorded {
		if o.Traffic != nil {
			planned = c.Replicas // the loop scales once no request is lost by it
		}
		return Decision{Action: ScaleCanary{Name: c.Name, Replicas: planned, Target: next}}, nil
	}
	return Decision{Action: SetStable{Record: amendRelease(o, func(r *record.Release) { r.Target = next }), Why: "set the target to " + next.Groups}}, nil
}

// coversTarget reports whether the present target asks for at least the planned groups of the next. Equal groups in a later
// batch are not covered: hosts are told which batch they are at.
func coversTarget(now, next *record.Target, planned, replicas int) bool {
	if already, _ := now.Planned(replicas); already != planned { // observe refuses an unreadable target
		return already > planned
	}
	return now.Batch == nil || next.Batch == nil || *now.Batch >= *next.Batch
}

func (t SetTarget) nextTarget(o Observation) (*record.Target, error) {
	next := &record.Target{At: o.Now.UTC(), Groups: t.Groups, Batch: t.Batch}
	if now := o.Target(); now != nil {
		next.At = later(next.At, now.At.Add(1)) // the later one counts, and the clock of another driver may be ahead
	}
	if t.Batch == nil {
		return next, nil
	}
	n := len(o.Policy.Batches)
	if *t.Batch >= n {
		return nil, drivererr.Invalid(drivererr.FieldViolation{
			Field: "batch", Description: fmt.Sprintf("%d does not exist: the policy has %d batches, 0 to %d", *t.Batch, n, n-1),
		})
	}
	next.Groups = o.Policy.Batches[*t.Batch].String()
	return next, nil
}

// Promote requests that every group of the workload runs the update revision.
type Promote struct {
	ReleaseID string
	// Revision is the update revision that the caller means. Empty means any.
	Revision string
	// User is the authenticated caller. Empty means unknown.
	User string
	// Message is why, for people. Empty means unknown.
	Message string `json:",omitempty"`
}

// RollBack requests that every group of the workload runs the stable revision.
type RollBack struct {
	ReleaseID string
	// Force: groups that will not recover do not hold the rollback up. See force.go.
	Force bool
	// User is the authenticated caller. Empty means unknown.
	User string
	// Message is why, for people. Empty means unknown.
	Message string `json:",omitempty"`
}

func (p Promote) decide(o Observation) (Decision, error) {
	r, err := CurrentRelease(o, p.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	switch r.Phase {
	case record.Nothing:
		return Decision{}, nil
	case record.CleaningUp, record.RollingBack:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s was rolled back: begin a new release to promote", r.ID, o.objectName())
	case record.Progressing, record.Promoting, record.Standby, record.HandingOver, record.Promoted:
	}
	if err := checkRevision(o, r, p.Revision); err != nil || r.Phase != record.Progressing {
		return Decision{}, err
	}
	// LWS promotes the template in the spec, whatever the host has seen.
	if r.UpdateRevision == "" || r.UpdateRevision != o.Stable.Revision {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template of %s is not at the update revision of release %q (%q): read the context again before promoting", o.objectName(), r.ID, r.UpdateRevision)
	}
	a := promoteNow(o)
	a.Record.Release.EndedBy, a.Record.Release.EndMessage = p.User, p.Message
	return Decision{Action: a}, nil
}

// promoteNow records the intent to promote and releases the hold, unless requests have to move first.
func promoteNow(o Observation) SetStable {
	next := withRelease(o, func(r *record.Release) { r.Phase, r.SplitEnded = record.Promoting, o.routesInPlace() })
	pace := o.rollingPace(Saved(o))
	switch {
	case o.routesInPlace():
		pace = o.unchangedPace() // the batch stays until its share of the requests is withdrawn
	case o.Traffic != nil || o.switchesSets():
		pace = record.Hold()
	}
	// Once every group is updated, a rollback needs the stable template.
	return SetStable{Record: next, Rolling: &pace, SaveTemplate: o.canSaveTemplate(), Why: "promote release " + next.Release.ID}
}

func (b RollBack) decide(o Observation) (Decision, error) {
	r, err := CurrentRelease(o, b.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	switch r.Phase {
	case record.Nothing:
		return Decision{}, nil
	case record.CleaningUp, record.RollingBack:
		return b.addForce(o), nil
	case record.HandingOver, record.Promoted:
		if o.handingOver() && o.hasRoles() {
			break // the object stays, and LWS creates its children again
		}
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is promoted: revision %s serves. To go back, release the old template: `lockstep undo %s` restores it once the promotion is over",
			r.ID, o.objectName(), r.UpdateRevision, o.inCommands())
	case record.Progressing, record.Promoting, record.Standby:
	}
	a := rollBackNow(o)
	a.Record.Release.EndedBy, a.Record.Release.EndMessage = b.User, b.Message
	if b.Force {
		o.recordForce(a.Record.Release)
	}
	return Decision{Action: a}, nil
}

// rollBackNow records the intent to roll back, and sets the hold.
func rollBackNow(o Observation) SetStable {
	next := withRelease(o, func(r *record.Release) { r.Phase, r.Successor, r.Groups = o.rollbackPhase(), "", 0 })
	return SetStable{Record: next, Rolling: ptr.To(o.holdWithSurge()), SaveTemplate: o.lostStable() && o.canSaveTemplate(), Why: "roll back release " + next.Release.ID}
}
