// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func inPlace(batches ...string) *pb.ReleasePolicy {
	p := policy(batches...)
	p.Style = pb.Style_STYLE_PARTITION
	return p
}

// A whole release in place: no group more than the user has, and groups that no batch has reached stay as they are.
func TestPartitionPromote(t *testing.T) {
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
		w.mustStand(w.awaitState(pb.State_STATE_READY), want)
		if batch == 0 {
			w.sameGroupsBelow(before, 3)
		}
	}
	w.finalize("r1", promote)
	w.mustStand(w.awaitState(pb.State_STATE_COMPLETED), want{pb.State_STATE_COMPLETED, 4, 4, 4, 0, 4, 100})
	w.mustRun("v2")
	w.mustRest()
}

// A rollback in place brings back what the batches had reached, and touches nothing else.
func TestPartitionRollback(t *testing.T) {
	e := newEnv(t)
	for name, tc := range map[string]struct {
		batches []string
		same    int
	}{
		"one":  {[]string{"25%", "100%"}, 3},
		"half": {[]string{"50%", "100%"}, 2},
		"all":  {[]string{"100%"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := e.in(t).adopt(model("back-"+name, 4, 2))
			before := w.stablePods()
			w.edit(image("v2"))
			w.initialize("r1", inPlace(tc.batches...))
			w.upgrade("r1", 0)
			w.awaitState(pb.State_STATE_READY)
			w.finalize("r1", rollback)
			w.awaitState(pb.State_STATE_ROLLED_BACK)
			w.mustRun("v1")
			w.mustRest()
			w.sameGroupsBelow(before, tc.same)
		})
	}
}
