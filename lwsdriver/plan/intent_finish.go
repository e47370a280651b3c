// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
