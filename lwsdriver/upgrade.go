// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// UpgradeBatch moves the release to a batch or to an absolute target.
func (d *Driver) UpgradeBatch(ctx context.Context, req *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := checkUpgrade(req); err != nil {
		return nil, err
	}
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) { return upgrade(s, req) })
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, req.GetWait(), req.GetIncludeGroups())
	if err != nil {
		return nil, err
	}
	return &pb.UpgradeBatchResponse{Action: action, Context: c}, nil
}

func checkUpgrade(req *pb.UpgradeBatchRequest) error {
	bad := append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)
	switch t := req.GetTarget().(type) {
	case *pb.UpgradeBatchRequest_Batch:
		if t.Batch < 0 {
			bad = append(bad, drivererr.FieldViolation{Field: "batch", Description: fmt.Sprintf("%d is negative; batches count from 0", t.Batch)})
		}
	case *pb.UpgradeBatchRequest_Groups:
		if _, err := release.ParseQuantity(t.Groups); err != nil {
			bad = append(bad, drivererr.FieldViolation{Field: "groups", Description: err.Error()})
		}
	default:
		bad = append(bad, drivererr.FieldViolation{Field: "target", Description: "is required: batch or groups"})
	}
	return drivererr.Invalid(bad...)
}

// upgrade writes the new target, unless it asks for no more than the one that is set.
func upgrade(s *seen, req *pb.UpgradeBatchRequest) (plan.Action, error) {
	r, err := current(s, req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	switch r.Phase {
	case release.Nothing:
		return nil, nil //nolint:nilnil // no action, no error: every batch of nothing is done
	case release.Progressing:
	default:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is %s, so it has no further batch", r.ID, s.key, phaseText(r.Phase))
	}
	if err := checkRevision(s, r, req.GetUpdateRevision()); err != nil {
		return nil, err
	}
	next, err := target(s, req)
	if err != nil {
		return nil, err
	}
	planned, err := next.Planned(s.Stable.Replicas)
	if err != nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%v", err)
	}
	if covered(s, next, planned) {
		return nil, nil //nolint:nilnil // no action, no error: a retry never widens, and batches never decrease
	}
	for _, w := range s.Added {
		switch {
		case w.Carries != r.UpdateRevision || w.Deleting:
		case r.UpdateRevision == s.Stable.Revision:
			if s.Traffic != nil {
				planned = w.Replicas // only the loop knows when groups may come and go without harm to requests
			}
			return plan.ScaleCanary{Name: w.Name, Replicas: planned, Target: next}, nil
		case r.Target != nil && covers(r.Target, next, planned, s.Stable.Replicas):
			// The template was edited and LWS has not recorded a revision of it, so nothing is scaled, and the canary keeps
			// the target it has. The wish is recorded already.
			return nil, nil //nolint:nilnil // no action, no error
		}
	}
	record := *s.Record
	with := *r
	with.Target, record.Release = next, &with
	return plan.SetStable{Record: record, Rolling: s.Stable.Rolling, Why: "set the target to " + next.Groups}, nil
}

// covered says whether the target that is set already asks for as much. Equal groups under a later batch are news:
// the host is told which batch it is at.
func covered(s *seen, next *release.Target, planned int) bool {
	now := s.Target()
	return now != nil && covers(now, next, planned, s.Stable.Replicas)
}

// covers says whether one target asks for as much as the next, which means planned of replicas.
func covers(now, next *release.Target, planned, replicas int) bool {
	already, err := now.Planned(replicas)
	if err != nil {
		return false
	}
	if already != planned {
		return already > planned
	}
	return now.Batch == nil || next.Batch == nil || *now.Batch >= *next.Batch
}

// target is what the request asks for.
func target(s *seen, req *pb.UpgradeBatchRequest) (*release.Target, error) {
	t := &release.Target{At: s.Now.UTC()}
	switch want := req.GetTarget().(type) {
	case *pb.UpgradeBatchRequest_Groups:
		t.Groups = want.Groups
	case *pb.UpgradeBatchRequest_Batch:
		if n := len(s.Policy.Batches); int(want.Batch) >= n {
			return nil, drivererr.Invalid(drivererr.FieldViolation{
				Field: "batch", Description: fmt.Sprintf("%d is not there: the policy has %d batches, 0 to %d", want.Batch, n, n-1),
			})
		}
		batch := int(want.Batch)
		t.Groups, t.Batch = s.Policy.Batches[batch].String(), &batch
	}
	return t, nil
}

// checkRevision refuses a request that means another revision than the one that is released. Empty means any.
func checkRevision(s *seen, r *release.Release, want string) error {
	if want == "" || r.UpdateRevision == want && s.Stable.Revision == want {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"the template of %s has changed since revision %q: the release starts over with revision %q", s.key, want, s.Stable.Revision)
}

func phaseText(p release.Phase) string {
	switch p {
	case release.Nothing:
		return "over: there was nothing to release"
	case release.Promoting, release.Standby, release.Adopting, release.Promoted:
		return "being promoted or is"
	default:
		return "rolled back or is being so"
	}
}
