// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// release runs a whole release with the given policy, to the promotion.
func (w *workload) release(id string, p *pb.ReleasePolicy) {
	w.t.Helper()
	w.initialize(id, p)
	for b := range p.GetBatches() {
		if c := w.upgrade(id, int32(b)).GetContext(); c.GetState() != pb.State_STATE_READY {
			w.t.Fatalf("batch %d: %s", b, show(c))
		}
	}
	if c := w.finalize(id, promote).GetContext(); c.GetState() != pb.State_STATE_COMPLETED {
		w.t.Errorf("after the promotion: %s", show(c))
	}
	w.mustBeIdle()
}

// A workload without groups has nothing to release, and is held like any other.
//
// Proves: Scaling in each style; no groups at all.
func TestCanaryNoReplicas(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 0, 2))
	w.edit(image("v2"))
	r := w.initialize("r1", quarters())
	if r.GetContext().GetState() != pb.State_STATE_NOTHING_TO_RELEASE || len(r.GetWarnings()) == 0 {
		t.Errorf("Initialize: %v", r)
	}
	if c := w.upgrade("r1", 2).GetContext(); c.GetState() != pb.State_STATE_NOTHING_TO_RELEASE {
		t.Errorf("UpgradeBatch: %s", show(c))
	}
	w.finalize("r1", promote)
	w.mustBeIdle()
	// Before that, new groups would get the former revision.
	w.awaitObject("the leader StatefulSet has the new template as its current revision", func() bool {
		s, err := w.kube.AppsV1().StatefulSets(w.namespace).Get(t.Context(), w.name, metav1.GetOptions{})
		return err == nil && s.Spec.Template.Spec.Containers[0].Image == "example.com/model:v2" &&
			s.Status.ObservedGeneration == s.Generation && s.Status.CurrentRevision == s.Status.UpdateRevision
	})
	w.scale(2)
	w.awaitReady()
	w.mustRun("v2")
}
