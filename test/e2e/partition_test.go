// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func inPlace(batches ...string) *pb.ReleasePolicy { return partitionStyle.policy(policy(batches...)) }

// A release in place: it adds no groups, and groups outside the batch are not restarted.
//
// Proves (smoke): Partition: groups are replaced in place, only those of the batch.
func TestPartitionPromote(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 2))
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", inPlace("25%", "50%", "100%"))
	for batch, want := range []want{
		{pb.State_STATE_READY, 1, 1, 1, 3, 4, 25},
		{pb.State_STATE_READY, 2, 2, 2, 2, 4, 50},
		{pb.State_STATE_READY, 4, 4, 4, 0, 4, 100},
	} {
		w.upgrade("r1", int32(batch))
		w.awaitMatch(want)
		if batch == 0 {
			w.sameGroupsBelow(before, 3)
		}
	}
	w.finalize("r1", promote)
	w.awaitMatch(want{pb.State_STATE_COMPLETED, 4, 4, 4, 0, 4, 100})
	w.mustRun("v2")
	w.mustBeIdle()
}
