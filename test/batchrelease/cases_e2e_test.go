// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/test/behavior"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// The following are cases of Kruise's own end-to-end tests, adapted to groups.

// A template whose groups never start is followed by one whose groups do.
//
// Proves: BatchRelease: the other verbs in docs/kruise-batchrelease.md.
func TestBrokenTemplateThenAnother(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"Canary", "BlueGreen", "Partition"} {
		t.Run(style, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.Deploy(groups, nil)
			e.Apply(manifest(name, quarters(style)))
			e.awaitHeld()
			e.PatchWorkload(behavior.Edit("v2", cluster.BehaviorNeverReady))
			e.await(name, "it waits for its first group", func(s status) bool {
				return s.CanaryStatus.CurrentBatchState == v1beta1.VerifyingBatchState && s.CanaryStatus.UpdatedReplicas == 1 &&
					s.CanaryStatus.UpdatedReadyReplicas == 0
			})
			first := e.mustRelease().Status.UpdateRevision
			e.PatchWorkload(behavior.Edit("v3", ""))
			e.await(name, "the other one's first batch", func(s status) bool {
				return s.UpdateRevision != first && s.CanaryStatus.CurrentBatch == 0 && s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState
			})
			e.patch(`{"batchPartition":2}`)
			e.awaitBatch(2)
			e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
			e.awaitPhase(v1beta1.RolloutPhaseCompleted)
			e.MustRest("v3")
		})
	}
}
