// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
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
	m, err := d.mutate(ctx, key, targetOf(req))
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, m, req.GetWait(), req.GetIncludeGroups())
	if err != nil {
		return nil, err
	}
	return &pb.UpgradeBatchResponse{Action: m.action, Context: c}, nil
}

func checkUpgrade(req *pb.UpgradeBatchRequest) error {
	bad := append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)
	switch t := req.GetTarget().(type) {
	case *pb.UpgradeBatchRequest_Batch:
		if t.Batch < 0 {
			bad = append(bad, drivererr.FieldViolation{Field: "batch", Description: fmt.Sprintf("%d is negative; batches count from 0", t.Batch)})
		}
	case *pb.UpgradeBatchRequest_Groups:
		if _, err := record.ParseQuantity(t.Groups); err != nil {
			bad = append(bad, drivererr.FieldViolation{Field: "groups", Description: err.Error()})
		}
	default:
		bad = append(bad, drivererr.FieldViolation{Field: "target", Description: "is required: batch or groups"})
	}
	return drivererr.Invalid(bad...)
}
