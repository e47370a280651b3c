// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// What follows are cases of Kruise's own end-to-end tests for workloads with a partition, restated for whole groups.

func (e *env) patchWorkload(raw string) {
	e.t.Helper()
	if _, err := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).
		Patch(e.t.Context(), name, types.MergePatchType, []byte(raw), metav1.PatchOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// editTo is edit with groups that behave in some way.
func (e *env) editTo(tag, behavior string) {
	e.t.Helper()
	value := "null"
	if behavior != "" {
		value = strconv.Quote(behavior)
	}
	e.patchWorkload(fmt.Sprintf(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{%q:%s}},"spec":{"containers":[
		{"name":"server","image":"example.com/vllm:%s"}]}}}}}`, cluster.AnnotationBehavior, value, tag))
}

// Percentages are of the number of groups that there are by now.
func TestScaledInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v2")
	e.approve()
	e.awaitPause(2)
	e.mustHave("v1 v1 v2 v2")
	e.patchWorkload(`{"spec":{"replicas":2}}`)
	e.mustHave("v1 v2")
	e.approve()
	e.awaitDone()
	e.mustHave("v2 v2")
}

func TestPausedAndResumed(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"strategy":{"paused":true}}}`)
	e.awaitRollout("that it is paused", func(r *unstructured.Unstructured) bool {
		return strings.Contains(asJSON(r.Object["status"]), `"reason":"Paused"`)
	})
	e.mustHave("v1 v1 v1 v2")
	e.patch(rollouts, `{"spec":{"strategy":{"paused":false}}}`)
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.mustHave("v1 v1 v2 v2")
}

// A template whose groups never start is followed by one that does.
func TestBrokenTemplateThenAnother(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.editTo("v2", cluster.BehaviorNeverReady)
	e.mustHave("v1 v1 v1 -")
	e.editTo("v3", "")
	e.mustHave("v1 v1 v1 v3")
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.approve()
	e.awaitDone()
	e.mustRest("v3")
}

// A jump forth over a step.
func TestStepJump(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"status":{"canaryStatus":{"nextStepIndex":3}}}`, "status")
	e.awaitPause(3)
	e.mustHave("v2 v2 v2 v2")
	e.approve()
	e.awaitDone()
	e.mustRest("v2")
}

// Steps are changed in mid-release: Kruise finds the one that fits what is updated.
func TestStepsChanged(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"strategy":{"canary":{"steps":[{"replicas":"25%","pause":{}},{"replicas":"75%","pause":{}},{"replicas":"100%"}]}}}}`)
	e.awaitPause(1)
	e.approve()
	e.awaitPause(2)
	e.mustHave("v1 v2 v2 v2")
	e.approve()
	e.awaitDone()
	e.mustRest("v2")
}
