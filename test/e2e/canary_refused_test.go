// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Requests that LeaderWorkerSets of the cluster do not allow are refused with a reason and details, and write nothing.
//
// Proves: SPEC errors: the cluster's refusals have a reason and write nothing.
func TestCanaryRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)

	t.Run("long name", func(t *testing.T) {
		w := e.in(t).deploy(model(strings.Repeat("n", 48), 2, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG, "48", "43", "63", "controller-revision-hash")
		w.mustBeUntouched()
	})
	t.Run("longest name", func(t *testing.T) {
		w := e.in(t).adopt(model(strings.Repeat("m", 43), 2, 2))
		w.edit(image("v2"))
		w.release("r1", policy("100%"))
	})
	t.Run("mixed revisions", func(t *testing.T) {
		w := e.in(t).deploy(model("mixed", 4, 1, rolling("1", "0", 2)))
		w.edit(image("v2"))
		w.awaitObject("LWS has updated half of the groups", func() bool {
			s := w.get()
			return s.Status.ObservedGeneration == s.Generation && s.Status.UpdatedReplicas == 2 && s.Status.ReadyReplicas == 4
		})
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS)
		w.mustBeUntouched()
		r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		if err != nil || len(r.GetWarnings()) != 1 || r.GetWarnings()[0].GetCode() != "AdoptedDuringRoll" {
			t.Errorf("Adopt: %v, %v", r, err)
		}
	})
	t.Run("name taken", func(t *testing.T) {
		w := e.in(t).adopt(model("taken", 2, 1))
		w.edit(image("v2"))
		c := w.await("the new revision is known", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
		name := fmt.Sprintf("taken-%.6s", c.GetUpdateRevision())
		w.env.in(t).deploy(model(name, 1, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, name)
		w.mustBeIdle()
	})
}

// mustBeUntouched fails if the driver has written to the workload.
func (w *workload) mustBeUntouched() {
	w.t.Helper()
	s := w.get()
	if s.Annotations[recordAnnotation] != "" || isHold(s.Spec.RolloutStrategy.RollingUpdateConfiguration) || len(s.Finalizers) > 0 {
		w.t.Errorf("the workload was touched: %s", asJSON(s.ObjectMeta))
	}
	if c := w.context(); c.GetState() != pb.State_STATE_UNMANAGED {
		w.t.Errorf("not unmanaged: %s", show(c))
	}
}
