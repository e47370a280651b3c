// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The record is removed by hand, which is the remedy for an invalid record: the release is dropped, the hold stays until Adopt
// and Disown remove it, and LWS rolls the workload again.
//
// Proves: Safety rule 9: a record copied or removed by hand.
func TestCanaryRecordRemoved(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.observer.waive(ruleIntent)
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	w.mergePatch(`{"metadata":{"annotations":{"` + recordAnnotation + `":null}}}`)
	w.eventually("the canary is deleted", w.leftovers)
	if !isHold(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration) {
		t.Error("the hold was removed with the record")
	}
	w.sameGroups(before)
	r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	if err != nil || len(r.GetWarnings()) != 1 || r.GetWarnings()[0].GetCode() != "HoldFound" {
		t.Fatalf("Adopt: %v, %v", r, err)
	}
	w.sameGroups(before)
	w.disown(w.ref())
	if c := w.get().Spec.RolloutStrategy.RollingUpdateConfiguration; ptr.Deref(c.Partition, 0) != 0 || c.MaxUnavailable != intstr.FromInt32(1) {
		t.Errorf("Disown restored %s", asJSON(c))
	}
	w.awaitRolled()
	w.mustRun("v2")
}

func (w *workload) mergePatch(patch string) {
	w.t.Helper()
	suite.Patch(w.t, w.dynamicSets(), w.name, patch)
}

// After a scale-down under the hold the user's percentages round to zero groups, which LWS refuses: Disown fails with a remedy,
// and the remedy works.
//
// Proves: Labels of batches; Disown after a scale-down.
func TestCanaryDisownRoundsToZero(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 1, rolling("25%", "0", -1)))
	w.observer.waive(ruleHold) // the remedy edits the hold
	w.scale(2)
	w.await("the driver has observed the scale-down", func(c *pb.BatchContext) bool { return c.GetReplicas() == 2 })
	disown := func() error {
		_, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()})
		return err
	}
	mustFail(t, disown(), pb.ErrorReason_ERROR_REASON_REJECTED, "25%", "2 groups", "maxSurge")
	w.mustBeIdle()
	w.edit(func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxSurge = intstr.FromInt32(1)
	})
	w.awaitObject("the hold is restored", func() bool { return isHold(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration) })
	await.True(t, "the log names who changed it", func() bool {
		return strings.Contains(w.driver.Log(), "e2e-user has changed the rolling update configuration")
	})
	require.NoError(t, disown())
	if c := w.get().Spec.RolloutStrategy.RollingUpdateConfiguration; c.MaxUnavailable != intstr.FromString("25%") || c.MaxSurge != intstr.FromInt32(1) {
		t.Errorf("Disown restored %s", asJSON(c))
	}
}
