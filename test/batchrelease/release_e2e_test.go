// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

type status = v1beta1.BatchReleaseStatus

var deleteNow = metav1.DeleteOptions{}

// Proves (smoke): BatchRelease: canary, blue-green and partition to the end.
func TestCanary(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters("Canary")+`
rolloutID: one
patchPodTemplateMetadata: {labels: {track: canary}, annotations: {example.com/why: release}}`)
	before := e.Identities()
	e.awaitBatch(0)
	canary := e.added()
	e.MustHaveIn(canary, "v2")
	e.MustHave("v1 v1 v1 v1")
	e.mustBePatched(canary)
	story := e.story()
	for batch, want := range []string{"", "v2 v2", "v2 v2 v2 v2"} {
		if batch == 0 {
			continue
		}
		e.patch(fmt.Sprintf(`{"batchPartition":%d}`, batch))
		e.awaitBatch(int32(batch))
		e.MustHaveIn(canary, want)
	}
	e.MustKeep(before, 0, 1, 2, 3)
	s := e.mustRelease().Status
	assert.True(t, s.StableRevision != s.UpdateRevision && s.ObservedWorkloadReplicas == groups && s.ObservedRolloutID == "one" && s.CanaryStatus.UpdatedReadyReplicas == 4,
		"status %s", asJSON(s))
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	// WaitResume: nothing is left at this moment. (LWS may still recreate a group.)
	n := e.workloads(t.Context())
	assert.Equal(t, 1, n, "completed, and there are %d workloads", n)
	e.MustRest("v2")
	want := "1 Upgrading, 1 Verifying, 1 Ready, 2 Upgrading, 2 Verifying, 2 Ready, Finalizing, Completed"
	got := story()
	assert.True(t, strings.HasSuffix(got, want), "it went %s, want %s", got, want)
	e.awaitEnd("promoted")
	suite.AwaitEvents(t, e.Kube, e.Namespace, "BatchRelease", name, "Normal BatchUpgrading", "Normal BatchReady", "Normal Finalizing", "Normal Completed")
}

// mustBePatched waits until the leaders of the canary have the plan's metadata and all its pods the rollout's id: the driver labels
// pods after everything else, perhaps after the batch is ready.
func (e *env) mustBePatched(canary string) {
	e.T.Helper()
	e.Eventually("the pods of "+canary+" have the plan's metadata", func(ctx context.Context) error {
		pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + canary})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			leader := p.Labels[lws.WorkerIndexLabelKey] == "0"
			if (p.Labels["track"] == "canary") != leader || (p.Annotations["example.com/why"] == "release") != leader ||
				p.Labels["rollouts.kruise.io/rollout-id"] != "one" || p.Labels["rollouts.kruise.io/rollout-batch-id"] != "1" {
				return fmt.Errorf("pod %s has labels %v, annotations %v", p.Name, p.Labels, p.Annotations)
			}
		}
		if len(pods.Items) != size {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return nil
	})
}

// Proves (smoke): BatchRelease: canary, blue-green and partition to the end.
func TestBlueGreen(t *testing.T) {
	t.Parallel()
	e := newRelease(t, "rollingStyle: BlueGreen\nbatchPartition: 0\nbatches: [{canaryReplicas: 50%}, {canaryReplicas: 100%}]")
	before := e.Identities()
	e.awaitBatch(0)
	green := e.added()
	e.patch(`{"batchPartition":1}`)
	e.awaitBatch(1)
	e.MustHaveIn(green, "v2 v2 v2 v2")
	e.MustHave("v1 v1 v1 v1")
	e.MustKeep(before, 0, 1, 2, 3)
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.MustRest("v2")
}

// Proves (smoke): BatchRelease: canary, blue-green and partition to the end.
func TestPartition(t *testing.T) {
	t.Parallel()
	e := newRelease(t, "batchPartition: 1\nbatches: [{canaryReplicas: 1}, {canaryReplicas: 3}, {canaryReplicas: 4}]")
	e.awaitBatch(1)
	e.MustHave("v1 v2 v2 v2")
	n := e.workloads(t.Context())
	assert.Equal(t, 1, n, "there are %d workloads", n)
	e.patch(`{"batchPartition":null}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.awaitEnd("promoted")
	e.MustRest("v2")
	// A completed release stays completed, and the workload held.
	e.Edit("v3")
	e.patch(`{"batchPartition":0}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.MustRest("v2")
	e.Apply(manifest("next", quarters("Partition")))
	e.await("next", "its first batch", func(s status) bool { return s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState })
	e.MustHave("v2 v2 v2 v3")
}

// Proves: BatchRelease: the other verbs in docs/kruise-batchrelease.md.
func TestImmediate(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters("Canary")+"\nfinalizingPolicy: Immediate")
	e.awaitBatch(0)
	e.patch(`{"batchPartition":null}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.remove()
	e.MustRest("v2")
}

// Proves: BatchRelease: Kruise that is installed later, a driver apart, a workload without a partition, the example.
func TestWithoutPartition(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	e.Apply(manifest(name, "batches: [{canaryReplicas: 100%}]\nfinalizingPolicy: WaitResume"))
	waits := func(s status) bool {
		return s.Phase == v1beta1.RolloutPhasePreparing && strings.Contains(s.Message, "set batchPartition: 0")
	}
	e.await(name, "it waits for a batch", waits)
	before := e.Identities()
	e.Edit("v2")
	for _, n := range []int{groups + 1, groups} { // the template is seen before
		e.Scale(n, "v1")
		e.MustKeep(before, 0, 1, 2, 3)
	}
	e.MustRest("v1")
	e.await(name, "it waits for a batch", waits)
	e.Apply(manifest(name, "batches: [{canaryReplicas: 100%}]\nfinalizingPolicy: WaitResume\nbatchPartition: 0"))
	e.awaitBatch(0)
	e.MustHave("v2 v2 v2 v2")
}

// Proves (test): BatchRelease: rollback, deletion.
func TestRollback(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters("Partition"))
	e.awaitBatch(0)
	e.MustHave("v1 v1 v1 v2")
	before := e.Identities()
	e.Edit("v1")
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	s := e.mustRelease().Status
	assert.True(t, ptr.Deref(s.CanaryStatus.NoNeedUpdateReplicas, -1) == 3 && s.UpdateRevision == s.StableRevision && strings.HasPrefix(s.Message, "rolled back"),
		"status %s", asJSON(s))
	e.awaitEnd("rolled back")
	e.MustRest("v1")
	e.MustKeep(before, 0, 1, 2)
}

// Proves: BatchRelease: plans.
func TestPlanChange(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters("Canary"))
	e.awaitBatch(0)
	hash := e.mustRelease().Status.ObservedReleasePlanHash
	e.patch(`{"batchPartition":1,"batches":[{"canaryReplicas":1},{"canaryReplicas":"75%"}]}`)
	e.awaitBatch(1)
	e.MustHaveIn(e.added(), "v2 v2 v2")
	got := e.mustRelease()
	assert.True(t, got.Status.ObservedReleasePlanHash != hash && got.Status.ObservedReleasePlanHash == batchrelease.HashPlan(&got.Spec.ReleasePlan),
		"status %s", asJSON(got.Status))
	// A smaller batch is requested: no running group is deleted.
	e.patch(`{"batchPartition":0}`)
	e.awaitBatch(0)
	e.MustHaveIn(e.added(), "v2 v2 v2")
	// An invalid plan has no effect, is reported, and can be corrected.
	e.patch(`{"batches":[{"canaryReplicas":"75%"},{"canaryReplicas":"25%"}]}`)
	e.awaitStuck(name, "InvalidPlan", "batches never decrease")
	e.patch(`{"rollingStyle":"Partition","batches":[{"canaryReplicas":"100%"}]}`)
	e.awaitStuck(name, "StyleChanged", "begun in style Canary")
	e.MustHaveIn(e.added(), "v2 v2 v2")
	e.patch(`{"rollingStyle":"Canary"}`)
	e.awaitBatch(0)
	e.MustHaveIn(e.added(), "v2 v2 v2 v2")
}

// Proves (test): BatchRelease: rollback, deletion.
func TestDeletion(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"Canary", "BlueGreen", "Partition"} {
		t.Run(style, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, strings.Replace(quarters(style), "batchPartition: 0", "batchPartition: 1", 1))
			e.awaitBatch(1)
			r := e.mustRelease()
			assert.True(t, slices.Contains(r.Finalizers, batchrelease.Finalizer), "finalizers %v", r.Finalizers)
			e.remove()
			e.Eventually("the BatchRelease is deleted", func(ctx context.Context) error {
				_, err := e.release(ctx, name)
				return suite.Gone(err)
			})
			// Deleted only when nothing of the release is left.
			n := e.workloads(t.Context())
			assert.Equal(t, 1, n, "it is deleted, and %d workloads exist", n)
			e.MustRest("v1")
			// The template waits for another workload with the same name.
			e.Apply(manifest(name, quarters(style)))
			e.awaitBatch(0)
		})
	}
}

// Proves: BatchRelease: the other verbs in docs/kruise-batchrelease.md.
func TestWorkloadDeleted(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Apply(manifest(name, quarters("Canary")))
	e.await(name, "it waits for its workload", func(s status) bool {
		return s.Phase == v1beta1.RolloutPhasePreparing && strings.Contains(s.Message, "adopted when it is created")
	})
	e.Deploy(groups, nil)
	e.awaitHeld()
	e.Edit("v2")
	e.awaitBatch(0)
	require.NoError(t, e.Sets().Delete(t.Context(), name, deleteNow))
	e.await(name, "the end", func(s status) bool {
		return s.Phase == v1beta1.RolloutPhaseCompleted && s.Message == "the workload is gone"
	})
	e.Eventually("all workloads are deleted", func(ctx context.Context) error {
		if n := e.workloads(ctx); n != 0 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

// Proves: BatchRelease: Kruise that is installed later, a driver apart, a workload without a partition, the example.
func TestExample(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, path := range []string{"workload.yaml", "kruise/batchrelease.yaml"} {
		manifest := files.Read(t, filepath.Join("..", "..", "examples", path))
		e.Apply(string(manifest))
	}
	e.awaitHeld()
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitBatch(0)
	e.MustHaveIn(e.added(), "v2")
	e.patch(`{"batchPartition":2}`)
	e.awaitBatch(2)
	e.patch(`{"batchPartition":null}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.MustRest("v2")
}

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
			e.Edit("v2", suite.Annotated(cluster.AnnotationBehavior, cluster.BehaviorNeverReady))
			e.await(name, "it waits for its first group", func(s status) bool {
				return s.CanaryStatus.CurrentBatchState == v1beta1.VerifyingBatchState && s.CanaryStatus.UpdatedReplicas == 1 &&
					s.CanaryStatus.UpdatedReadyReplicas == 0
			})
			first := e.mustRelease().Status.UpdateRevision
			e.Edit("v3", suite.Annotated(cluster.AnnotationBehavior, ""))
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
