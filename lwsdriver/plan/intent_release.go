// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Begin requests a release.
type Begin struct {
	ReleaseID, Owner string
	// Policy is valid, and of a style that is supported.
	Policy *pb.ReleasePolicy
}

// decide records the release and holds the workload, in one write.
func (b Begin) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	d := Decision{Warnings: b.Warnings(o)}
	if begun, err := b.begun(o); begun || err != nil {
		return d, err
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
		ID: b.ReleaseID, Owner: b.Owner, Policy: policy,
		UpdateRevision: o.Stable.Revision, Phase: record.Progressing, StartedAt: o.Now.UTC(), PhaseAt: o.Now.UTC(),
	}
	if now := o.Stable.revisions(); len(now) == 1 {
		r.StableRevision = now[0]
	}
	if o.Stable.Replicas == 0 || r.UpdateRevision != "" && r.UpdateRevision == r.StableRevision {
		r.Phase = record.Nothing
	}
	rec := NewRecord(o)
	rec.Release = r
	d.Action = SetStable{Record: rec, Rolling: hold(), Why: fmt.Sprintf("begin release %s", r.ID)}
	return d, nil
}

// Obstacles are all reasons why the release could not begin now. Each has an ErrorReason.
func (b Begin) Obstacles(o Observation) []error {
	_, begun := b.begun(o)
	return append([]error{CheckWorkload(o), begun}, b.obstacles(o)...)
}

// begun reports whether the release exists already, and refuses what stands in the way of a new one.
func (b Begin) begun(o Observation) (bool, error) {
	r := o.release()
	if r == nil {
		return false, nil
	}
	if r.ID != b.ReleaseID {
		if err := checkRead(o); err != nil {
			return false, err
		}
		if InFlight(o) {
			return false, inProgress(o,
				"release %q of %q holds LeaderWorkerSet %s: wait for it, promote it or roll it back", r.ID, r.Owner, o.Key)
		}
		return false, nil
	}
	policy, err := r.PolicyMessage()
	if err != nil {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "release %s of LeaderWorkerSet %s: %v", r.ID, o.Key, err)
	}
	if !proto.Equal(policy, b.Policy) {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED,
			"release %q of LeaderWorkerSet %s has another policy, and a policy does not change during a release: choose another release_id", r.ID, o.Key)
	}
	return true, nil
}

// obstacles are, one each or nil, what would keep the release from adding its objects, from ending, or from a way back.
func (b Begin) obstacles(o Observation) []error {
	return []error{b.checkName(o), b.checkRevisions(o), b.checkNameFree(o), b.checkHandover(o), b.checkAutoscalers(o)}
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
	switch n := len(o.Stable.revisions()); {
	case n > 1:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS, "%s", heldTooLate(o)[0].GetMessage())
	case n == 0 && o.Stable.Replicas > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"no group of LeaderWorkerSet %s exists yet, so there is no stable revision to return to; a moment after it was created that "+
				"is normal: try again once its first group exists", o.Key)
	}
	return nil
}

func (b Begin) checkNameFree(o Observation) error {
	if o.CanaryNameTaken == "" || InPlace(b.Policy.GetStyle()) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"the canary would be named %s/%s, but a LeaderWorkerSet that is not Lockstep's has that name: rename or delete it",
		o.Key.Namespace, o.CanaryNameTaken)
}

// handsOver reports whether the second set is to become the workload.
func (b Begin) handsOver() bool {
	return b.Policy.GetBlueGreen().GetPromotion() == pb.BluePromotion_BLUE_PROMOTION_ADOPT
}

// checkHandover refuses a handover whose end would be undone, or would lose data.
func (b Begin) checkHandover(o Observation) error {
	switch i := o.Identity; {
	case !b.handsOver():
	case i.AppliedBy != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
			"LeaderWorkerSet %s is applied by a tool (it carries %s), which would make it again once BLUE_PROMOTION_ADOPT has deleted it: "+
				"promote with BLUE_PROMOTION_IN_PLACE, which keeps the object", o.Key, i.AppliedBy)
	case i.VolumeClaims > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"LeaderWorkerSet %s has %d volumeClaimTemplates, and what is in its volumes would go with it, since another object has volumes of "+
				"its own: promote with BLUE_PROMOTION_IN_PLACE", o.Key, i.VolumeClaims)
	}
	return nil
}

// checkAutoscalers refuses a release that would hold autoscalers while it is not known which there are.
func (b Begin) checkAutoscalers(o Observation) error {
	if o.Unscanned == nil || !HoldsAutoscalers(b.Policy.GetStyle()) {
		return nil
	}
	return drivererr.New(o.Unscanned.Reason, "%v holds the workload's autoscalers: %s", b.Policy.GetStyle(), o.Unscanned.Message)
}

// Warnings are what callers may not expect of the release.
func (b Begin) Warnings(o Observation) []*pb.Warning {
	return append(append(foundHeld(o), b.scaledBy(o)...), b.handover(o)...)
}

// scaledBy warns of what scales the workload: some styles hold it, with the others its load decides as always.
func (b Begin) scaledBy(o Observation) []*pb.Warning {
	var names []string
	for _, a := range o.Autoscalers {
		if a.Targets {
			names = append(names, a.String())
		}
	}
	switch all := strings.Join(names, ", "); {
	case len(names) == 0:
		return nil
	case HoldsAutoscalers(b.Policy.GetStyle()):
		return []*pb.Warning{{
			Code: "AutoscalerHeld",
			Message: fmt.Sprintf("%s scales %s and is held until the release is over: no load changes the number of groups meanwhile. "+
				"What it had is noted in its annotation %s and given back", all, o.Key, autoscaler.NoteAnnotation),
		}}
	default:
		return []*pb.Warning{{
			Code:    "AutoscalerPresent",
			Message: fmt.Sprintf("%s scales %s, also during the release: percentages are taken again of each new number of groups", all, o.Key),
		}}
	}
}

// handover warns of what a handover replaces.
func (b Begin) handover(o Observation) []*pb.Warning {
	if !b.handsOver() {
		return nil
	}
	successor := "another one"
	if o.Stable.Revision != "" {
		successor = record.CanaryName(o.knownAs(), o.Stable.Name, o.Stable.Revision)
	}
	text := fmt.Sprintf("promotion deletes LeaderWorkerSet %s, and %s serves in its place: requests of hosts may go on to name %s, but what "+
		"selects pods or an object by the old name has to be changed by whoever made it, but for the policy's Service and pool and for autoscalers",
		o.Key, successor, o.knownAs())
	if b.Policy.GetTraffic() == nil {
		text += ". The policy names no Service, so none is changed: use one that selects by a label of your own"
	}
	return []*pb.Warning{{Code: "AdoptReplacesObject", Message: text}}
}

// SetTarget requests that a release goes as far as one of its batches, or an absolute number of groups.
type SetTarget struct {
	ReleaseID string
	// Revision is the update revision that the caller means. Empty: any.
	Revision string
	// Batch is an index into the policy's batches. Nil: Groups, a valid quantity, is the target.
	Batch  *int
	Groups string
}

// decide writes the new target, unless the present one covers it: a retry never widens, and batches never decrease.
func (t SetTarget) decide(o Observation) (Decision, error) {
	r, err := CurrentRelease(o, t.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	switch r.Phase {
	case record.Nothing:
		return Decision{}, nil // every batch of nothing is done
	case record.Progressing:
	default:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is %s, so it has no further batch", r.ID, o.Key, phaseText(r.Phase))
	}
	if err := checkRevision(o, r, t.Revision); err != nil {
		return Decision{}, err
	}
	next, err := t.target(o)
	if err != nil {
		return Decision{}, err
	}
	planned, err := next.Planned(o.Stable.Replicas)
	if err != nil {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%v", err)
	}
	if now := o.Target(); now != nil && covers(now, next, planned, o.Stable.Replicas) {
		return Decision{}, nil
	}
	for _, w := range o.Added {
		switch {
		case w.Carries != r.UpdateRevision || w.Deleting:
		case r.UpdateRevision == o.Stable.Revision:
			if o.Traffic != nil {
				planned = w.Replicas // the loop scales, once that costs no request
			}
			return Decision{Action: ScaleCanary{Name: w.Name, Replicas: planned, Target: next}}, nil
		case r.Target != nil && covers(r.Target, next, planned, o.Stable.Replicas):
			// The template was edited and LWS has not recorded a revision of it, so nothing is scaled, and the canary keeps
			// its target. This one is recorded already.
			return Decision{}, nil
		}
	}
	record, with := *o.Record, *r
	with.Target, record.Release = next, &with
	return Decision{Action: SetStable{Record: record, Why: "set the target to " + next.Groups}}, nil
}

// covers reports whether one target asks for as much as the next, which means planned of replicas. Equal groups in a later
// batch are news: hosts are told which batch they are at.
func covers(now, next *record.Target, planned, replicas int) bool {
	already, err := now.Planned(replicas)
	if err != nil {
		return false
	}
	if already != planned {
		return already > planned
	}
	return now.Batch == nil || next.Batch == nil || *now.Batch >= *next.Batch
}

func (t SetTarget) target(o Observation) (*record.Target, error) {
	next := &record.Target{At: o.Now.UTC(), Groups: t.Groups, Batch: t.Batch}
	if t.Batch == nil {
		return next, nil
	}
	n := len(o.Policy.Batches)
	if *t.Batch >= n {
		return nil, drivererr.Invalid(drivererr.FieldViolation{
			Field: "batch", Description: fmt.Sprintf("%d is not there: the policy has %d batches, 0 to %d", *t.Batch, n, n-1),
		})
	}
	next.Groups = o.Policy.Batches[*t.Batch].String()
	return next, nil
}

// Promote requests that every group of the workload runs the update revision.
type Promote struct {
	ReleaseID string
	// Revision is the update revision that the caller means. Empty: any.
	Revision string
}

// RollBack requests that every group of the workload runs the stable revision.
type RollBack struct{ ReleaseID string }

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
			"release %q of %s was rolled back: begin a new release to promote", r.ID, o.Key)
	case record.Promoting, record.Standby, record.HandingOver, record.Promoted:
		return Decision{}, p.checkRevision(o, r)
	case record.Progressing:
	}
	if err := p.checkRevision(o, r); err != nil {
		return Decision{}, err
	}
	if r.UpdateRevision == "" || r.UpdateRevision != o.Stable.Revision {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template of %s is not the one that release %q brings (%q): look at the context again before promoting", o.Key, r.ID, r.UpdateRevision)
	}
	return Decision{Action: promoteNow(o)}, nil
}

// checkRevision refuses to promote another revision than the host has decided on. A template that came once the
// promotion was over takes nothing back from it.
func (p Promote) checkRevision(o Observation, r *record.Release) error {
	over := r.Phase == record.Promoted || r.Phase == record.HandingOver
	if p.Revision == "" || p.Revision == r.UpdateRevision && (over || p.Revision == o.Stable.Revision) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"the promotion of revision %q was asked for, but release %q of %s brings %q, and the template is at %q: look at the context again before promoting",
		p.Revision, r.ID, o.Key, r.UpdateRevision, o.Stable.Revision)
}

// promoteNow records the intent to promote and takes the hold off, unless requests come first.
func promoteNow(o Observation) SetStable {
	next := withRelease(o, func(r *record.Release) { r.Phase, r.Unfenced = record.Promoting, o.routesInPlace() })
	pace := o.pace(Saved(o))
	switch {
	case o.routesInPlace():
		pace = o.unmoved() // the batch stays as it is until its share has gone
	case o.Traffic != nil || o.switches():
		pace = record.Hold()
	}
	// Once every group is updated, only the stable template leads back.
	save := next.Release.StableTemplate == nil && slices.Contains(o.Stable.Recorded, next.Release.StableRevision)
	return SetStable{Record: next, Rolling: &pace, SaveTemplate: save, Why: "promote release " + next.Release.ID}
}

func (b RollBack) decide(o Observation) (Decision, error) {
	r, err := CurrentRelease(o, b.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	switch r.Phase {
	case record.Nothing, record.CleaningUp, record.RollingBack:
		return Decision{}, nil
	case record.HandingOver:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is promoted: %s serves in its place. To go back, release the old template: `lockstep undo` restores it",
			r.ID, o.Key, r.Successor)
	case record.Promoted:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is promoted: every group runs revision %s. To go back, release the old template: `lockstep undo` restores it",
			r.ID, o.Key, r.UpdateRevision)
	case record.Progressing, record.Promoting, record.Standby:
	}
	return Decision{Action: rollBackNow(o)}, nil
}

// rollBackNow records the intent to roll back, and puts the hold on.
func rollBackNow(o Observation) SetStable {
	phase := record.CleaningUp
	if o.inPlace() || o.Record.Release.Phase != record.Progressing && !o.stableUntouched() {
		phase = record.RollingBack // batches or the promotion have reached the user's own groups
	}
	next := withRelease(o, func(r *record.Release) { r.Phase = phase })
	return SetStable{Record: next, Rolling: hold(), Why: "roll back release " + next.Release.ID}
}
