// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A third template in mid-promotion starts the release over. A rollback returns the promoted groups to the stable
// revision, although the template is at neither of the groups' two revisions.
//
// Proves: A promotion is rolled back in blue-green; after a third template.
func TestCanaryTemplateChangesInPromotion(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2, annotated("test.lockstep.dev/startup", "300ms")))
	// Groups are at two revisions when the release starts over, and some are restarted.
	w.observer.waive(ruleStableUntouched)
	w.edit(image("v2"))
	w.initialize("r1", policy("100%"))
	w.upgrade("r1", 0)
	w.promoteUntil("r1", 1)
	w.edit(image("v3"))
	w.await("the release starts over", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_HOLDING })
	w.finalize("r1", rollback)
	w.mustRun("v1")
	w.edit(image("v1"))
	w.awaitState(rolledBack)
	w.mustRun("v1")
	w.mustBeIdle()
}

// promoteUntil starts the promotion and returns once this many groups are promoted.
func (w *workload) promoteUntil(id string, groups int32) {
	w.t.Helper()
	if _, err := w.tryFinalize(id, promote, nil); err != nil {
		w.t.Fatal(err)
	}
	w.await("some groups are promoted", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_PROMOTING && c.GetUpdatedReady() >= groups
	})
}
