// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/plugin/argo"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A Rollout that is deleted and applied again, as GitOps tools do, has no status: Argo takes its template for an initial deployment. The
// template that waits is released at the first step, whatever of the old Rollout Argo finds, and however often it is repeated.
//
// Proves (test, background): Safety rule 11, Argo: an invalid Rollout, and one that is applied again, release nothing before their first
// step.
// Proves: Safety rule 11, Argo: undo, edits and backups while the Rollout is invalid, deleted or unattended.
func TestRolloutAppliedAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		propagation metav1.DeletionPropagation
		// rest ends the release before the Rollout is deleted.
		rest bool
	}{
		{name: "background", propagation: metav1.DeletePropagationBackground},
		{name: "foreground", propagation: metav1.DeletePropagationForeground},
		{name: "orphan", propagation: metav1.DeletePropagationOrphan},
		{name: "at-rest", propagation: metav1.DeletePropagationBackground, rest: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			e.edit("v2")
			e.awaitPause(1)
			if test.rest {
				e.argo("abort", name)
				e.awaitAborted("v1")
			}
			for i := range 4 {
				e.deleteAndWait(test.propagation)
				e.same(before)
				e.rollout(quarters, slow())
				if i%2 == 0 {
					e.awaitNoted() // and deletes it once more before its first step
				} else {
					e.awaitFirstStep("v2", before)
				}
				e.same(before)
			}
			e.awaitFirstStep("v2", before)
			e.argo("promote", name)
			e.awaitPause(3)
			e.mustHave("v2", 0, 2)
			e.same(before)
			e.argo("promote", name)
			e.awaitRest("v2")
		})
	}
}

// A backup has the annotations of the Rollout that it was made of, and no status. It is restored as another object.
//
// Proves: Safety rule 11, Argo: undo, edits and backups while the Rollout is invalid, deleted or unattended.
func TestRolloutFromBackup(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		since func(e *env)
	}{
		{"in-mid-release", func(*env) {}},
		{"after-an-edit", func(e *env) { e.edit("v3") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			e.edit("v2")
			e.awaitPause(1)
			copied := e.backup()
			e.deleteAndWait(metav1.DeletePropagationBackground)
			e.MustRest("v1")
			test.since(e)
			suite.CreateObject(t, e.Objects(rollouts), copied)
			tag := "v2"
			if test.name == "after-an-edit" {
				tag = "v3"
			}
			e.awaitFirstStep(tag, before)
			e.argo("promote", "--full", name)
			e.awaitRest(tag)
		})
	}
}

// Argo takes the template in progress for stable if the ReplicaSet of the stable one is deleted, which no right to release allows: no other group
// gets it, and the steps begin anew.
//
// Proves: Safety rule 11, Argo: a ReplicaSet that is deleted promotes nothing.
func TestStableReplicaSetDeleted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		reach func(e *env)
	}{
		{"nothing-begun", func(e *env) { e.edit("v2"); e.awaitPause(0) }},
		{"first-batch", func(e *env) { e.edit("v2"); e.awaitPause(0); e.argo("promote", name); e.awaitPause(2) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, pause+quarters, slow())
			before := e.Identities()
			test.reach(e)
			stable, hash := e.get(t.Context()).Status.StableRS, e.get(t.Context()).Status.CurrentPodHash
			require.NoError(t, e.Kube.AppsV1().ReplicaSets(e.Namespace).Delete(t.Context(), name+"-"+stable, metav1.DeleteOptions{}))
			e.awaitSaid(name, "nothing asked for its release: the Rollout starts over at its first step")
			r := e.await("the first pause", func(r *v1alpha1.Rollout) bool {
				return r.Status.CurrentPodHash != hash && index(r) == 0 && r.Status.ControllerPause
			})
			require.Equal(t, hash, r.Status.StableRS, "Argo considered the template stable")
			e.MustRest("v1")
			e.same(before)
			e.argo("promote", "--full", name)
			e.awaitRest("v2")
		})
	}
}

// backup returns the Rollout as `kubectl get -o yaml` does, without what belongs to the object.
func (e *env) backup() *unstructured.Unstructured {
	e.T.Helper()
	o := suite.GetObject(e.T.Context(), e.T, e.Objects(rollouts), name)
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetManagedFields(nil)
	unstructured.RemoveNestedField(o.Object, "status")
	return o
}

// deleteAndWait deletes the Rollout and returns once it is gone.
func (e *env) deleteAndWait(propagation metav1.DeletionPropagation) {
	e.T.Helper()
	client := e.Objects(rollouts)
	require.NoError(e.T, client.Delete(e.T.Context(), name, metav1.DeleteOptions{PropagationPolicy: &propagation}))
	e.Eventually("the Rollout is deleted", func(ctx context.Context) error {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return suite.Gone(err)
	})
}

// awaitNoted waits until the plugin has noted the workload's revisions on a new Rollout.
func (e *env) awaitNoted() {
	e.T.Helper()
	e.Eventually("the plugin has noted the revisions", func(ctx context.Context) error {
		if e.get(ctx).Annotations[argo.AnnotationFirst] == "" {
			return errors.New("it has not")
		}
		return nil
	})
}

// A promotion that adopts the second set: the workload has another object each time, and the Rollout keeps its name. An abort
// while the old set is on standby returns to it.
//
// Proves: Argo: idle costs no request; a driver apart; handover; the examples.
func TestAdoption(t *testing.T) {
	t.Parallel()
	adopting := withConfig(`style: BlueGreen, blueGreen: {promotion: Adopt, scaleDownDelay: 2s}`)
	e := newRelease(t, step("upgrade: 100%")+step("promote: true"), adopting)
	now := name
	for _, tag := range []string{"v2", "v3"} {
		suite.SetImage(t, e.Sets(), now, tag)
		next := e.awaitSuccessor(now, tag)
		assert.NotEqual(t, name, next, "it is %s again", next)
		now = next
	}
}

// awaitSuccessor waits until the Rollout is healthy and the workload is another object, whose groups are all at the tag.
func (e *env) awaitSuccessor(of, tag string) (successor string) {
	e.T.Helper()
	e.Eventually("the successor of "+of, func(ctx context.Context) error {
		sets, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(sets.Items) != 1 || sets.Items[0].Name == of {
			return fmt.Errorf("there are %d, the first is %s", len(sets.Items), sets.Items[0].Name)
		}
		successor = sets.Items[0].Name
		if known := sets.Items[0].Labels["lockstep.dev/workload"]; known != name {
			return fmt.Errorf("it is known as %q", known)
		}
		return e.Only(ctx, tag)
	})
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	return successor
}
