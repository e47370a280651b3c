// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// quarters are the steps of most tests. Kruise does not wait at the last one.
const quarters = `
- {replicas: 25%, pause: {}}
- {replicas: 50%, pause: {}}
- {replicas: 100%, pause: {}}
`

// Proves (smoke): Kruise: all steps of the example to Healthy.
func TestSteps(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.example("workload.yaml", "kruise/rollouttarget.yaml", "kruise/rollout.yaml")
	e.awaitPhase("Healthy")
	e.mustRest("v1")
	e.edit("v2")
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v2")
	e.approve()
	e.awaitPause(2)
	e.mustHave("v1 v1 v2 v2")
	e.approve()
	e.awaitDone()
	e.mustRest("v2")
	e.eventually("the target is at rest", func(ctx context.Context) error {
		s := e.target(ctx, name).Status
		if s.UpdatedReadyReplicas != groups || s.CurrentRevision != s.UpdateRevision || s.State != "Completed" {
			return fmt.Errorf("its status is %s", asJSON(s))
		}
		return nil
	})
	suite.AwaitEvents(t, e.kube, e.namespace, "RolloutTarget", name, "Normal BatchReady", "Normal Promoted")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRollbackByEdit(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.leaders()
	e.edit("v2")
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v2")
	e.edit("v1")
	e.awaitDone()
	e.mustRest("v1")
	e.mustKeep(before, groups-1)
}

// leaders returns the UID of each leader pod.
func (e *env) leaders() map[string]string {
	e.t.Helper()
	pods, err := e.kube.CoreV1().Pods(e.namespace).List(e.t.Context(), metav1.ListOptions{
		LabelSelector: "leaderworkerset.sigs.k8s.io/worker-index=0",
	})
	if err != nil {
		e.t.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range pods.Items {
		out[p.Name] = string(p.UID)
	}
	return out
}

// Proves: Kruise: a second template.
func TestContinuousRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v2")
	before := e.releasing()
	e.edit("v3")
	// Until Kruise sees the new template, its status says that v2 waits, while the partition of v2's batch already holds for v3.
	e.awaitRollout("the release of v3", func(r *unstructured.Unstructured) bool {
		return field(r, "status", "canaryStatus", "canaryRevision") != before
	})
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v3")
	e.approve()
	e.awaitPause(2)
	e.mustHave("v1 v1 v3 v3")
	e.approve()
	e.awaitDone()
	e.mustRest("v3")
}

// Proves: Kruise Rollouts: the other verbs in docs/kruise-rollouts.md.
func TestDisabledInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"disabled":true}}`)
	e.awaitPhase("Disabled")
	// Kruise removes the partition, which is no step of a Rollout.
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.mustHave("v1 v1 v1 v2")
	e.end("promote", "--force")
	e.mustRest("v2")
	e.patch(rollouts, `{"spec":{"disabled":false}}`)
	e.awaitPhase("Healthy")
	e.edit("v3")
	e.awaitPause(1)
	e.mustHave("v2 v2 v2 v3")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRolloutDeletedInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.edit("v2")
	e.awaitPause(1)
	e.remove(rollouts)
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.mustHave("v1 v1 v1 v2")
	e.end("abort", "--force")
	e.mustRest("v1")
}
