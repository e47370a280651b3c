// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A third template in mid-release deletes the canary and restarts the release; a host that decided on the second template gets
// an error.
func TestCanaryContinuousRelease(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2))
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	second := w.upgrade("r1", 1).GetContext()
	w.edit(image("v3"))
	third := w.await("the release starts over", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_HOLDING && c.GetUpdateRevision() != second.GetUpdateRevision()
	})
	if third.GetCanaryWorkload() == second.GetCanaryWorkload() || third.GetTarget() != "" || third.GetUpdated() != 0 {
		t.Errorf("starts over with %s", show(third))
	}
	w.sameGroups(before)
	_, err := w.driver.UpgradeBatch(t.Context(), &pb.UpgradeBatchRequest{
		Workload: w.ref(), ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Batch{Batch: 2},
		UpdateRevision: second.GetUpdateRevision(), Wait: long,
	})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_REVISION_CHANGED)
	if c := w.context(); c.GetUpdated() != 0 || c.GetDesired() != 0 {
		t.Errorf("a request with a stale revision updated groups: %s", show(c))
	}
	w.upgrade("r1", 2)
	w.finalize("r1", promote)
	w.mustRun("v3")
	w.mustBeIdle()
}

// The template changes repeatedly while groups are starting: there are never two canaries, and the last template wins.
func TestCanaryManyTemplates(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 3, 2, annotated("test.lockstep.dev/startup", "200ms")))
	w.edit(image("v2"))
	w.initialize("r1", policy("100%"))
	for _, tag := range []string{"v3", "v4", "v5", "v2", "v6"} {
		if _, err := w.tryUpgrade("r1", 0, nil); err != nil {
			mustFail(t, err, pb.ErrorReason_ERROR_REASON_CONFLICT)
		}
		w.edit(image(tag))
	}
	w.await("the release is at v6", func(c *pb.BatchContext) bool {
		object := w.get()
		return c.GetState() != pb.State_STATE_PREPARING && c.GetUpdateRevision() != "" && object.Status.ObservedGeneration == object.Generation &&
			(c.GetState() == pb.State_STATE_HOLDING || c.GetState() == pb.State_STATE_READY)
	})
	if c := w.upgrade("r1", 0).GetContext(); c.GetState() != pb.State_STATE_READY {
		t.Errorf("at the last template: %s", show(c))
	}
	w.finalize("r1", promote)
	w.mustRun("v6")
	w.mustBeIdle()
}

// Reverting the template in mid-release rolls back; groups that were not updated are not restarted.
func TestCanaryTemplateReverted(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2))
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	w.upgrade("r1", 1)
	w.edit(image("v1"))
	w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.sameGroups(before)
	w.mustBeIdle()
	if r := w.finalize("r1", rollback); r.GetAction() != unchanged {
		t.Errorf("Finalize(ROLLBACK) after the rollback: %v", r.GetAction())
	}
	if c := w.initialize("r2", quarters()).GetContext(); c.GetState() != pb.State_STATE_NOTHING_TO_RELEASE {
		t.Errorf("a release of the stable template: %s", show(c))
	}
	w.mustBeIdle()
}

// The template is reverted, or changes again, in mid-promotion: the groups follow by the user's rolling update settings.
func TestCanaryTemplateChangesInPromotion(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	t.Run("old", func(t *testing.T) {
		w := e.in(t).adopt(model("old", 4, 2, annotated("test.lockstep.dev/startup", "300ms")))
		w.edit(image("v2"))
		w.initialize("r1", policy("100%"))
		w.upgrade("r1", 0)
		w.promoteUntil("r1", 1)
		w.edit(image("v1"))
		w.awaitState(pb.State_STATE_ROLLED_BACK)
		w.mustRun("v1")
		w.mustBeIdle()
	})
	t.Run("third", func(t *testing.T) {
		w := e.in(t).adopt(model("third", 4, 2, annotated("test.lockstep.dev/startup", "300ms")))
		// Groups are at two revisions when the release starts over, and the stable ones among them may be recreated meanwhile.
		w.observer.waive(ruleStableUntouched)
		w.edit(image("v2"))
		w.initialize("r1", policy("100%"))
		w.upgrade("r1", 0)
		w.promoteUntil("r1", 1)
		w.edit(image("v3"))
		w.await("the release starts over", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_HOLDING })
		w.upgrade("r1", 0)
		w.finalize("r1", promote)
		w.mustRun("v3")
		w.mustBeIdle()
	})
}

// A rollback after a third template interrupted the promotion: the promoted groups return to the stable revision, although the
// template is at neither of the groups' two revisions.
func TestCanaryRollbackAfterInterruptedPromotion(t *testing.T) {
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
	w.awaitState(pb.State_STATE_ROLLED_BACK)
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
