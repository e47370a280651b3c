// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// lose makes the pods of stable groups not ready until the test heals them.
func (w *workload) lose(groups ...int) {
	w.t.Helper()
	w.patchPods(w.name, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, groups...)
	for _, g := range groups {
		w.await("the driver has observed the lost group", func(c *pb.BatchContext) bool {
			return slices.ContainsFunc(c.GetGroups(), func(row *pb.Group) bool { return int(row.GetIndex()) == g && !row.GetReady() })
		})
	}
}

// A broken stable group uses up maxUnavailable: a rollback in place waits for it, names it and the way out, and with force
// continues past it, also in another process. The broken group itself is never restarted.
//
// Proves: A rollback with force goes past broken stable groups, and a driver that restarts completes it.
func TestForcedRollback(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2))
	w.observer.waive(ruleAvailable, ruleDown) // that is what force is for
	w.edit(image("v2"))
	w.initialize("r1", inPlace("50%", "100%"))
	w.upgrade("r1", 0)
	w.awaitState(pb.State_STATE_READY)
	w.lose(0)
	broken := w.stablePods()["model-0"].UID
	if _, err := w.tryFinalize("r1", rollback, nil); err != nil {
		t.Fatal(err)
	}
	c := w.await("the rollback names the broken group", func(c *pb.BatchContext) bool {
		return strings.Contains(c.GetMessage(), "uses up maxUnavailable 1")
	})
	w.mustContain(c.GetMessage(), "Group 0 (model-0), not ready since ", "lockstep abort --force")
	if n := w.groupsWith("v2"); n != 2 {
		t.Errorf("%d groups are at v2, although the rollback is blocked", n)
	}
	_, err := w.driver.Finalize(t.Context(), &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: "r1", Intent: promote, Force: true})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, "force", "ROLLBACK only")

	if out, code := w.lockstep(w.toDriver("abort", "model", "--force", "--no-wait")...); code != 0 {
		t.Fatalf("abort --force exits with %d: %s", code, out)
	}
	w.driver.Kill()
	w.driver.Restart()
	w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.mustRun("v1")
	w.mustBeIdle()
	if now := w.stablePods()["model-0"].UID; now != broken {
		t.Error("the broken group was restarted")
	}
}
