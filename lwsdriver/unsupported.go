// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The RPCs of the contract that this version does not serve. GetDriverInfo does not list their capabilities.

func unsupported(rpc string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		"this driver does not serve %s yet: GetDriverInfo lists what it can do", rpc)
}

// Plan is not served yet.
func (d *Driver) Plan(context.Context, *pb.PlanRequest) (*pb.PlanResponse, error) {
	return nil, unsupported("WorkloadDriver.Plan")
}
