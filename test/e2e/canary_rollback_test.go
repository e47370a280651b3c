// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// After a rollback the same template can be released under another id.
//
// Proves: Labels of batches; leader metadata; slow termination; a retry.
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
