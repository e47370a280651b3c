// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// The API server refuses reads of pods while the updated group breaks. Nothing is promoted by what the driver knew, and an abort is
// accepted; its effects follow once the pods are read again.
//
// Proves (test): Safety rule 13: reads of pods are refused in mid-release, in each style.
func TestStylesStale(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnvIn(t, cluster.Shared(t))
		p := newProxy(t, e, fault{})
		e.driver = driver.Start(t, p.kubeconfig, e.namespace)
		p.open()
		w := e.adopt(model("model", 3, 2))
		w.edit(image("v2"))
		w.initialize("r1", s.policy(policy("33%", "100%")))
		w.upgrade("r1", 0)
		before := w.stablePods()
		p.refuseReads("pods")
		stale := w.await("the cache counts as stale", func(c *pb.BatchContext) bool { return c.GetReason() == "CacheStale" })
		if stale.GetState() != pb.State_STATE_VERIFYING {
			t.Errorf("blind, the batch counts as %s", show(stale))
		}
		set, group := stale.GetCanaryWorkload(), 0
		if s.inPlace() {
			set, group = w.name, 2
		}
		w.patchPods(set, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, group)
		_, err := w.tryFinalize("r1", promote, nil)
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "cache of pods", "since", "abort")
		if _, err := w.tryUpgrade("r1", 1, nil); err != nil { // it is recorded, and no group is replaced for it
			t.Error(err)
		}
		w.await("the next batch waits for the cache", func(c *pb.BatchContext) bool { return c.GetTarget() == "100%" && c.GetReason() == "CacheStale" })
		w.sameGroups(before)
		if _, err := w.tryFinalize("r1", rollback, nil); err != nil {
			t.Fatalf("an abort is refused: %v", err)
		}
		if c := w.context(); c.GetState() != pb.State_STATE_ROLLING_BACK {
			t.Errorf("after the abort: %s", show(c))
		}

		p.refuseReads()
		w.awaitState(pb.State_STATE_ROLLED_BACK)
		w.mustBeIdle()
	})
}
