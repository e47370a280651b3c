// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Undo puts the template of an older revision back into the spec, where it waits under the hold for a release.
func (d *Driver) Undo(ctx context.Context, req *pb.UndoRequest) (*pb.UndoResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := d.awaitHistory(ctx, key); err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	undo := plan.Undo{Revision: req.GetRevision(), Template: req.GetTemplateRevision()}
	m, err := d.mutate(ctx, key, undo)
	if err != nil {
		return nil, err
	}
	revision, err := undo.Target(m.snapshot.Observation)
	if err != nil {
		return nil, err
	}
	return &pb.UndoResponse{Action: m.action, Revision: revision}, nil
}
