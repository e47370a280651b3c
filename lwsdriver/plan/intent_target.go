// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
