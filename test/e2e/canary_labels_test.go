// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	rolloutIDLabel    = "rollouts.kruise.io/rollout-id"
	rolloutBatchLabel = "rollouts.kruise.io/rollout-batch-id"
)

// batchesOf returns the rollout labels of a set's groups, by index: "1 2 3 3", with "-" for a group without labels and "?" for
// a group whose pods differ.
func (w *workload) batchesOf(set, id string) string {
	w.t.Helper()
	groups := map[string][]string{}
	for _, p := range w.podsOf(set) {
		if p.DeletionTimestamp != nil {
			continue
		}
		text := "-"
		if got := p.Labels[rolloutIDLabel]; got == id {
			text = p.Labels[rolloutBatchLabel]
		} else if got != "" || p.Labels[rolloutBatchLabel] != "" {
			text = "?"
		}
		index := p.Labels[lws.GroupIndexLabelKey]
		if !slices.Contains(groups[index], text) {
			groups[index] = append(groups[index], text)
		}
	}
	var all []string
	for _, index := range slices.Sorted(maps.Keys(groups)) {
		if len(groups[index]) > 1 {
			groups[index] = []string{"?"}
		}
		all = append(all, groups[index][0])
	}
	return strings.Join(all, " ")
}

func (w *workload) awaitBatches(set, id, want string) {
	w.t.Helper()
	w.eventually("the pods of "+set+" are labelled "+want, func(context.Context) error {
		if got := w.batchesOf(set, id); got != want {
			return fmt.Errorf("the labels are %s", got)
		}
		return nil
	})
}

func (w *workload) mustBatches(set, id, want string) {
	w.t.Helper()
	if got := w.batchesOf(set, id); got != want {
		w.t.Errorf("the pods of %s are labelled %s, want %s", set, got, want)
	}
}

// podWrites counts the drivers' writes of pods of a set.
func (w *workload) podWrites(set string) int {
	w.t.Helper()
	of, n := regexp.MustCompile("^patch pods/"+set+"-[0-9]+(-[0-9]+)?$"), 0
	for _, write := range w.writes() {
		if of.MatchString(write) {
			n++
		}
	}
	return n
}

// By the time a batch is ready, each pod of its groups has labels with the rollout and the batch. They are written once, restored
// when they are removed by hand, set on replacement pods, and survive a restart of the driver.
//
// Proves: Labels of batches; Disown after a scale-down.
func TestCanaryBatchLabels(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 3))
	w.edit(image("v2"))
	p := quarters()
	p.RolloutId = "rollout-7"
	w.initialize("r1", p)
	canary := ""
	for batch, want := range []string{"1", "1 2", "1 2 3 3"} {
		c := w.upgrade("r1", int32(batch)).GetContext()
		if canary = c.GetCanaryWorkload(); c.GetState() != pb.State_STATE_READY {
			t.Fatalf("batch %d: %s", batch, show(c))
		}
		w.awaitBatches(canary, "rollout-7", want)
	}
	if n := w.podWrites(canary); n < 4*3 || n > 2*4*3 { // LWS recreates some groups that it has just created
		t.Errorf("%d writes for 12 pods", n)
	}
	w.mustBatches(w.name, "rollout-7", "- - - -")

	pods := w.kube.CoreV1().Pods(w.namespace)
	off := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, rolloutBatchLabel)
	if _, err := pods.Patch(t.Context(), canary+"-1-2", types.MergePatchType, off, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitBatches(canary, "rollout-7", "1 2 3 3")

	w.driver.Kill()
	suite.Delete(t, pods, canary+"-1")
	w.awaitBatches(canary, "rollout-7", "1 - 3 3")
	w.driver.Restart()
	w.awaitBatches(canary, "rollout-7", "1 2 3 3")

	// Percentages mean other numbers now, existing labels stay, and new groups get labels.
	before := w.podWrites(canary)
	w.scale(8)
	w.await("the batch is ready at 8 groups", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_READY && c.GetUpdatedReady() == 8
	})
	// LWS may recreate group 1 once more, and the labels of its pods are lost.
	if got := w.batchesOf(canary, "rollout-7"); got != "1 2 3 3 3 3 3 3" && got != "1 1 3 3 3 3 3 3" {
		t.Errorf("the pods of %s are labelled %s", canary, got)
	}
	if n := w.podWrites(canary) - before; n < 4*3 || n > 2*4*3 { // as above
		t.Errorf("%d writes for 12 new pods", n)
	}

	w.finalize("r1", promote)
	w.awaitBatches(w.name, "rollout-7", "3 3 3 3 2 2 1 1")
	if n := w.podWrites(w.name); n < 8*3 || n > 2*8*3 { // as above
		t.Errorf("%d writes for 24 promoted pods", n)
	}
	w.mustBeIdle()

	// The release is over: a new group gets no labels.
	w.scale(9)
	w.awaitReady()
	w.mustBatches(w.name, "rollout-7", "3 3 3 3 2 2 1 1 -")
}
