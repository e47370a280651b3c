// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Adopt takes a workload under hold at rest.
func (d *Driver) Adopt(ctx context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	var warnings []*pb.Warning
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		if err := checkWorkload(s); err != nil {
			return nil, err
		}
		warnings = append(heldTooLate(s), foundHeld(s)...)
		if s.Record != nil {
			return nil, nil //nolint:nilnil // no action, no error; the loop repairs a hold that drifted
		}
		return plan.SetStable{Record: adopted(s), Rolling: release.Hold(), Why: "adopt: hold at rest"}, nil
	})
	if err != nil {
		return nil, err
	}
	c, _, err := d.contextOf(key, false)
	if err != nil {
		return nil, err
	}
	return &pb.AdoptResponse{Action: action, Context: c, Warnings: warnings}, nil
}

// adopted is the record of a workload that had none. A hold that is in force without a record is a driver's, left
// behind when somebody removed the record: saving it as the user's own would keep the workload from ever rolling again.
// What is not as the hold has it was set since and is the user's; for the rest LWS's defaults are saved.
func adopted(s *seen) release.Record {
	switch {
	case s.Record != nil:
		return *s.Record
	case leftHeld(s):
		return release.Record{Saved: release.Absorb(release.Native(release.Hold()), release.Hold(), s.Stable.Rolling)}
	}
	return release.Record{Saved: s.Stable.Rolling}
}

// leftHeld says whether the hold is in force without a record. Its partition tells: no user has one so high.
func leftHeld(s *seen) bool {
	return s.Record == nil && ptr.Deref(s.Stable.Rolling.Partition, 0) == ptr.Deref(release.Hold().Partition, 0)
}

// foundHeld warns of settings that can't be given back because nobody knows them any more.
func foundHeld(s *seen) []*pb.Warning {
	if !leftHeld(s) {
		return nil
	}
	saved := adopted(s).Saved
	return []*pb.Warning{{
		Code: "FoundHeld",
		Message: fmt.Sprintf("%s was under hold without a record of its own rolling update settings, as after the annotation %s was "+
			"removed: partition %d, maxUnavailable %s and maxSurge %s are taken for them. Set others, if those are not right",
			s.key, release.RecordAnnotation, ptr.Deref(saved.Partition, 0), saved.MaxUnavailable.String(), saved.MaxSurge.String()),
	}}
}

// heldTooLate warns of groups at more than one revision: LWS had begun to roll before it was held.
func heldTooLate(s *seen) []*pb.Warning {
	revisions := s.StableRevisions()
	if len(revisions) < 2 {
		return nil
	}
	return []*pb.Warning{{
		Code: "HeldTooLate",
		Message: fmt.Sprintf("the groups of %s are at revisions %s: LeaderWorkerSet had begun to roll before Lockstep held it. "+
			"Disown it to let that finish, and adopt it before its template changes again", s.key, strings.Join(revisions, ", ")),
	}}
}

// Disown gives a workload back with its spec as the user had it.
func (d *Driver) Disown(ctx context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	res := &pb.DisownResponse{}
	res.Action, err = d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		res.Warnings = nil
		if s.Record == nil {
			return nil, nil //nolint:nilnil // no action, no error
		}
		if err := checkRead(s); err != nil {
			return nil, err
		}
		if inFlight(s) {
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS,
				"release %q of LeaderWorkerSet %s is not over: promote it or roll it back first", s.Record.Release.ID, s.key)
		}
		if r := s.StableRevisions(); len(r) > 0 && s.Stable.Revision != "" && (len(r) > 1 || r[0] != s.Stable.Revision) {
			res.Warnings = []*pb.Warning{{
				Code: "RollsNow",
				Message: fmt.Sprintf("revision %s of %s waited under the hold; LeaderWorkerSet rolls it out from now on",
					s.Stable.Revision, s.key),
			}}
		}
		if err := checkGiveBack(s); err != nil {
			return nil, err
		}
		return plan.GiveBackNow(s.Observation), nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// checkGiveBack refuses what LWS's webhook would refuse in words that help less: a scale-down under the hold can make
// both of the user's percentages round to 0.
func checkGiveBack(s *seen) error {
	saved := plan.Saved(s.Observation)
	if release.SameRolling(plan.Pace(saved, s.Stable.Replicas), release.Native(saved)) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REJECTED,
		"LeaderWorkerSet %s can't be given back: its own maxUnavailable %s and maxSurge %s both come to 0 of %d groups, which "+
			"LeaderWorkerSet does not accept. Scale it up, or set its maxUnavailable to 2 or more or its maxSurge to 1 or more "+
			"(Lockstep saves what is set under hold; a maxUnavailable of 1 is the hold's own), then Disown again",
		s.key, saved.MaxUnavailable.String(), saved.MaxSurge.String(), s.Stable.Replicas)
}
