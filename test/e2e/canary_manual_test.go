// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// remove deletes a LeaderWorkerSet as kubectl does.
func (w *workload) remove(name string, how metav1.DeletionPropagation) {
	w.t.Helper()
	err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &how})
	require.NoError(w.t, err)
}

// gone returns nil if a LeaderWorkerSet is deleted.
func (w *workload) gone(ctx context.Context, name string) error {
	_, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).Get(ctx, name, metav1.GetOptions{})
	return suite.Gone(err)
}

// awaitNothing waits until the workload and everything that its releases added are deleted.
func (w *workload) awaitNothing() {
	w.t.Helper()
	w.eventually("everything is deleted", func(ctx context.Context) error {
		return cmp.Or(w.gone(ctx, w.name), w.leftovers(ctx))
	})
}

// The user deletes the workload with --cascade=orphan in mid-release: its pods stay, and what the release added is deleted, also if
// the driver starts after Kubernetes has removed the owner reference.
//
// Proves: The workload or the canary is deleted or edited by hand.
func TestCanaryStableOrphaned(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]bool{"driver-up": false, "driver-down": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t).adopt(model("model", 2, 2))
			before := w.stablePods()
			w.expose()
			w.edit(image("v2"))
			w.initialize("r1", w.withTraffic(policy("50%", "100%")))
			canary := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
			if down {
				w.driver.Kill()
			}
			w.remove(w.name, metav1.DeletePropagationOrphan)
			if down {
				w.awaitObject("the canary has no owner", func() bool { return len(w.getNamed(canary).OwnerReferences) == 0 })
				w.driver.Restart()
			}
			w.eventually("the canary is deleted", func(ctx context.Context) error {
				if pods := w.podsOf(canary); len(pods) > 0 {
					return fmt.Errorf("it has %d pods", len(pods))
				}
				return w.gone(ctx, canary)
			})
			w.eventually("the workload is gone", func(ctx context.Context) error { return w.gone(ctx, w.name) })
			after := w.stablePods()
			assert.Equal(t, len(before), len(after), "%d pods of the user's are left of %d", len(after), len(before))
			for name, p := range w.stablePods() {
				assert.Equal(t, before[name].UID, p.UID, "pod %s was replaced", name)
			}
			service, err := w.kube.CoreV1().Services(w.namespace).Get(t.Context(), w.name+"-http", metav1.GetOptions{})
			if err != nil || len(service.Spec.Selector) != 2 || len(service.Annotations) > 0 {
				t.Errorf("the Service is not restored: %v, %v (%v)", service.Spec.Selector, service.Annotations, err)
			}
		})
	}
}

// The canary is scaled and edited by hand: the driver restores it.
//
// Proves: The workload or the canary is deleted or edited by hand.
func TestCanaryEditedByHand(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2))
	w.observer.waive(ruleCanarySize)
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	name := w.upgrade("r1", 1).GetContext().GetCanaryWorkload()
	for _, replicas := range []int32{0, 7, 1} {
		w.editNamed(name, func(s *lws.LeaderWorkerSet) { s.Spec.Replicas = ptr.To(replicas) })
		w.awaitObject("the canary's replicas are restored", func() bool { return replicasOf(w.getNamed(name)) == 2 })
		w.await("the batch is ready", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_READY && c.GetUpdated() == 2 })
	}
	w.editNamed(name, image("bad"), annotated("edited-by", "hand"))
	w.awaitObject("the canary's template is restored", func() bool {
		t := w.getNamed(name).Spec.LeaderWorkerTemplate.WorkerTemplate
		return t.Spec.Containers[0].Image == "example.com/model:v2" && t.Annotations["edited-by"] == ""
	})
	w.eventually("the canary's groups run v2", func(ctx context.Context) error {
		c, err := w.tryContext(ctx)
		if err == nil && c.GetState() == pb.State_STATE_READY {
			for _, p := range w.podsOf(name) {
				if p.Spec.Containers[0].Image != "example.com/model:v2" {
					err = errNotYet
				}
			}
			return err
		}
		return errNotYet
	})
	w.upgrade("r1", 2)
	w.finalize("r1", promote)
	w.mustRun("v2")
	w.mustBeIdle()
}

// annotate sets an annotation as kubectl annotate does.
func (w *workload) annotate(key, value string) {
	w.t.Helper()
	w.mergePatch(asJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}))
}

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
			assert.True(t, now.UID == before.UID && now.DeletionTimestamp == nil && now.Generation == before.Generation && len(c.stablePods()) == pods[c.name],
				"after %s %s has changed: %s", when, c.name, asJSON(now))
		}
	}

	c := w.context()
	assert.True(t, c.GetCanaryWorkload() == canary.Name && c.GetUpdatedReady() == 2 && c.GetTotal() == 5, "the copies count: %s", show(c))
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
		c.eventually("the copy "+c.name+" is deleted", func(ctx context.Context) error { return c.gone(ctx, c.name) })
	}
	w.mustBeIdle()
}
