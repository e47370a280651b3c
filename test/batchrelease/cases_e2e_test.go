// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/behavior"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// The following are cases of Kruise's own end-to-end tests, adapted to groups.

// batchIDs counts the pods with the rollout's id by batch, as in "1:2 2:4"; what has another id or none does not count.
func (e *env) batchIDs(workload, rolloutID string) (string, error) {
	pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(e.T.Context(), metav1.ListOptions{
		LabelSelector: lws.SetNameLabelKey + "=" + workload + ",rollouts.kruise.io/rollout-id=" + rolloutID,
	})
	if err != nil {
		return "", err
	}
	count := map[int]int{}
	for _, p := range pods.Items {
		batch, err := strconv.Atoi(p.Labels["rollouts.kruise.io/rollout-batch-id"])
		if err != nil {
			return "", fmt.Errorf("pod %s: %w", p.Name, err)
		}
		count[batch]++
	}
	var out []string
	for batch := 1; batch <= 9; batch++ {
		if count[batch] > 0 {
			out = append(out, fmt.Sprintf("%d:%d", batch, count[batch]))
		}
	}
	return strings.Join(out, " "), nil
}

func (e *env) mustBeLabelled(workload, rolloutID, want string) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("pods of %s have id %s and batches %q", workload, rolloutID, want), func(context.Context) error {
		got, err := e.batchIDs(workload, rolloutID)
		if err == nil && got != want {
			err = fmt.Errorf("they have %q", got)
		}
		return err
	})
}

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

// Pods have the rollout's id and their batch. An id that changes during the release applies to the next one, and has no effect on this one.
//
// Proves: BatchRelease: plans, ids.
func TestBatchIDs(t *testing.T) {
	t.Parallel()
	e := newRelease(t, strings.Replace(quarters("Partition"), "batchPartition: 0", "batchPartition: 1", 1)+"\nrolloutID: one")
	e.awaitBatch(1)
	before := e.Identities()
	for _, id := range []string{"two", ""} {
		e.patch(fmt.Sprintf(`{"rolloutID":%q,"batchPartition":1}`, id))
		e.await(name, "the batches are repeated", func(s status) bool {
			return s.ObservedRolloutID == id && s.CanaryStatus.CurrentBatch == 1 && s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState
		})
	}
	// The driver got the first id when the release began.
	e.mustBeLabelled(name, "one", "1:2 2:2")
	e.MustHave("v1 v1 v2 v2")
	e.MustKeep(before, 0, 1, 2, 3)
}
