// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// copyOf returns a LeaderWorkerSet with another's manifest under a new name.
func copyOf(w *lws.LeaderWorkerSet, name string) *lws.LeaderWorkerSet {
	c := w.DeepCopy()
	c.ObjectMeta = metav1.ObjectMeta{
		Name: name, Labels: c.Labels, Annotations: c.Annotations, OwnerReferences: c.OwnerReferences, Finalizers: c.Finalizers,
	}
	return c
}

// Copies of a canary, and their pods, survive the releases of the canary's workload, and their user can delete them.
//
// Proves: Safety rule 9: a record copied or removed by hand.
func TestCanaryCopied(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 3, 2))
	// The observer counts the copies as canaries.
	w.observer.waive(ruleOneCanary, ruleIntent, ruleCanarySize, ruleCanaryStays)
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	canary := w.getNamed(w.upgrade("r1", 1).GetContext().GetCanaryWorkload())

	labelled := copyOf(canary, "labelled")
	labelled.OwnerReferences, labelled.Finalizers = nil, nil
	copies := []*workload{w.deploy(copyOf(canary, "whole")), w.deploy(labelled)}
	objects, pods := map[string]*lws.LeaderWorkerSet{}, map[string]int{}
	for _, c := range copies {
		objects[c.name], pods[c.name] = c.get(), len(c.stablePods())
		_, err := c.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: c.ref()})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, "remove", roleLabel, stableLabel)
	}
	mustSurvive := func(when string) {
		t.Helper()
		for _, c := range copies {
			before, now := objects[c.name], c.get()
			if now.UID != before.UID || now.DeletionTimestamp != nil || now.Generation != before.Generation || len(c.stablePods()) != pods[c.name] {
				t.Errorf("after %s %s has changed: %s", when, c.name, asJSON(now))
			}
		}
	}

	if c := w.context(); c.GetCanaryWorkload() != canary.Name || c.GetUpdatedReady() != 2 || c.GetTotal() != 5 {
		t.Errorf("the copies count: %s", show(c))
	}
	w.finalize("r1", rollback)
	mustSurvive("a rollback")
	w.initialize("r2", quarters())
	for b := range int32(3) {
		w.upgrade("r2", b)
	}
	w.finalize("r2", promote)
	w.mustRun("v2")
	mustSurvive("a promotion")

	for _, c := range copies {
		c.remove(c.name, metav1.DeletePropagationBackground)
		c.eventually("the copy "+c.name+" is deleted", func(ctx context.Context) error {
			_, err := c.lws.LeaderworkersetV1().LeaderWorkerSets(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("it still exists (%w)", err)
			}
			return nil
		})
	}
	w.mustBeIdle()
}
