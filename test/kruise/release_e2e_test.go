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
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	e.approve()
	e.awaitDone()
	e.MustRest("v2")
	e.Eventually("the target is at rest", func(ctx context.Context) error {
		s := e.target(ctx, name).Status
		if s.UpdatedReadyReplicas != groups || s.CurrentRevision != s.UpdateRevision || s.State != "Completed" {
			return fmt.Errorf("its status is %s", asJSON(s))
		}
		return nil
	})
	suite.AwaitEvents(t, e.Kube, e.Namespace, "RolloutTarget", name, "Normal BatchReady", "Normal Promoted")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRollbackByEdit(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.Identities()
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.Edit("v1")
	e.awaitDone()
	e.MustRest("v1")
	e.MustKeep(before, 0, 1, 2)
}

// Proves: Kruise: a second template.
func TestContinuousRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	before := e.releasing()
	e.Edit("v3")
	// Until Kruise sees the new template, its status says that v2 waits, while the partition of v2's batch already holds for v3.
	e.awaitRollout("the release of v3", func(r *unstructured.Unstructured) bool {
		return field(r, "status", "canaryStatus", "canaryRevision") != before
	})
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v3")
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v3 v3")
	e.approve()
	e.awaitDone()
	e.MustRest("v3")
}

// Proves: Kruise Rollouts: the other verbs in docs/kruise-rollouts.md.
func TestDisabledInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"disabled":true}}`)
	e.awaitPhase("Disabled")
	// Kruise removes the partition, which is no step of a Rollout.
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.MustHave("v1 v1 v1 v2")
	e.end("promote", "--force")
	e.MustRest("v2")
	e.patch(rollouts, `{"spec":{"disabled":false}}`)
	e.awaitPhase("Healthy")
	e.Edit("v3")
	e.awaitPause(1)
	e.MustHave("v2 v2 v2 v3")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRolloutDeletedInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.remove(rollouts)
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.MustHave("v1 v1 v1 v2")
	e.end("abort", "--force")
	e.MustRest("v1")
}
