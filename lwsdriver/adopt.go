// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"strings"

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
		warnings = heldTooLate(s)
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

// adopted is the record of a workload that had none.
func adopted(s *seen) release.Record {
	if s.Record != nil {
		return *s.Record
	}
	return release.Record{Saved: s.Stable.Rolling}
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
			"Disown it to let that finish, or restore the old template", s.key, strings.Join(revisions, ", ")),
	}}
}

// Disown gives a workload back with its spec as the user had it.
func (d *Driver) Disown(ctx context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	res := &pb.DisownResponse{}
	res.Action, err = d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		res.Warnings = nil
		if s.Record == nil {
			return nil, nil //nolint:nilnil // no action, no error
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
		return plan.GiveBackNow(s.Observation), nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
