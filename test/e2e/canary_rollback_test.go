// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Rollback right after Initialize and in each batch: the stable groups are not restarted.
func TestCanaryRollback(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for batch := int32(-1); batch < 4; batch++ {
		name := fmt.Sprintf("batch-%d", batch)
		if batch < 0 {
			name = "initialized"
		}
		t.Run(name, func(t *testing.T) {
			w := e.in(t).adopt(model(name, 4, 2))
			before := w.stablePods()
			w.edit(image("v2"))
			w.initialize("r1", policy("25%", "50%", "75%", "100%"))
			for b := int32(0); b <= batch; b++ {
				if c := w.upgrade("r1", b).GetContext(); c.GetState() != pb.State_STATE_READY || c.GetUpdatedReady() != b+1 {
					t.Errorf("batch %d: %s", b, show(c))
				}
			}
			w.mustBeIdempotent("Finalize", func() (pb.Action, error) {
				r, err := w.tryFinalize("r1", rollback, long)
				return r.GetAction(), err
			})
			if c := w.context(); c.GetState() != pb.State_STATE_ROLLED_BACK {
				t.Errorf("after the rollback: %s", show(c))
			}
			w.sameGroups(before)
			w.mustBeIdle()
			_, err := w.tryFinalize("r1", promote, long)
			mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
			_, err = w.tryUpgrade("r1", 0, long)
			mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
		})
	}
}

// After a rollback the same template can be released under another id.
func TestCanaryRetryAfterRollback(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	w.finalize("r1", rollback)
	w.initialize("r2", policy("100%"))
	w.upgrade("r2", 0)
	w.finalize("r2", promote)
	w.mustRun("v2")
	w.mustBeIdle()
	_, err := w.tryFinalize("r1", rollback, long)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND, "r2")
}
