// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Intent is what a caller requests: one mutating RPC, decoded and validated. The set is closed.
type Intent interface {
	// decide returns the write that records the intent together with its first effect. No Action: the workload is as
	// requested already. The error has an ErrorReason.
	decide(o Observation) (Decision, error)
}

// Decide returns the next write and the state of the workload. Without an intent it carries on with what was requested
// before, and never fails: what keeps a release from going on is data. With one, the Decision is the write that records
// the intent, and warnings for its caller; the error, which has an ErrorReason, says why the intent is refused. A decision
// that would break a safety rule is a defect: it is reported and never applied.
func Decide(o Observation, i Intent) (Decision, error) {
	if i == nil {
		return carryOn(o), nil
	}
	d, err := i.decide(o)
	if err != nil {
		return Decision{}, err
	}
	if a, ok := d.Action.(SetStable); ok {
		d.Action = recordRolling(o, a)
	}
	err = checkObservation(o)
	if err == nil {
		err = checkDecision(o, i, d)
	}
	if err != nil {
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %s", o.Key, defect(err))
	}
	return d, nil
}

// defect describes a decision that would break a safety rule.
func defect(err error) string {
	return fmt.Sprintf("Lockstep stopped before a step that would break a safety rule: %v. This is a defect, please report it", err)
}

// CurrentRelease returns the release that a request names. The error has an ErrorReason.
func CurrentRelease(o Observation, id string) (*record.Release, error) {
	r := o.release()
	switch {
	case r == nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"LeaderWorkerSet %s has no release: Initialize begins one", o.Key)
	case r.ID != id:
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"LeaderWorkerSet %s has release %q, not %q", o.Key, r.ID, id), "release_id", r.ID)
	}
	return r, nil
}

// checkRevision refuses a request for another revision than the one that is being released. Empty: any revision.
func checkRevision(o Observation, r *record.Release, want string) error {
	if want == "" || r.UpdateRevision == want && o.Stable.Revision == want {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"the template of %s has changed since revision %q: the release starts over with revision %q", o.Key, want, o.Stable.Revision)
}

// phaseText describes a phase in which a release takes no further batch.
func phaseText(p record.Phase) string {
	switch p {
	case record.Nothing:
		return "over: there was nothing to release"
	case record.Promoting, record.Standby, record.HandingOver, record.Promoted:
		return "being promoted or is"
	default:
		return "rolled back or is being so"
	}
}
