// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Adopt puts a workload under hold while no release runs.
func (d *Driver) Adopt(ctx context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, plan.Adopt{})
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, m, nil, false)
	if err != nil {
		return nil, err
	}
	return &pb.AdoptResponse{Action: m.action, Context: c, Warnings: m.decision.Warnings}, nil
}

// Disown removes the hold and restores the user's own rolling update configuration.
func (d *Driver) Disown(ctx context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	m, err := d.mutate(ctx, key, plan.Disown{Revision: req.GetTemplateRevision()})
	if err != nil {
		return nil, err
	}
	return &pb.DisownResponse{Action: m.action, Warnings: m.decision.Warnings}, nil
}
