// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// mustLabel waits until exactly the pods of these groups have the rollout-id, each with the number of its group's batch.
func (e *env) mustLabel(id string, batches map[string]string) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("batch labels %v", batches), func(ctx context.Context) error {
		pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			want, labelled := batches[p.Labels["leaderworkerset.sigs.k8s.io/group-index"]]
			if labelled != (p.Labels["rollouts.kruise.io/rollout-id"] == id) || p.Labels["rollouts.kruise.io/rollout-batch-id"] != want {
				return fmt.Errorf("pod %s has labels %v", p.Name, p.Labels)
			}
		}
		return nil
	})
}

// Proves: Kruise: targets that are deleted or come later; scaling; the examples.
func TestTargetDeleted(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.remove(targets)
	e.mustBeRestored()
	e.Edit("v2")
	e.MustHave("v2 v2 v2 v2")
}

// The release ends as the target says, by default with a rollback. Then the template waits under the hold.
//
// Proves: Kruise: the target is deleted in mid-release or after a failure; its own settings.
func TestTargetDeletedInMidRelease(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, onDeletion, event, tag string }{
		{"default", "", "ReleaseRolledBack", "v1"},
		{"rollback", "Rollback", "ReleaseRolledBack", "v1"},
		{"promote", "Promote", "ReleaseCompleted", "v2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters)
			if test.onDeletion != "" {
				e.patch(targets, fmt.Sprintf(`{"spec":{"onDeletion":%q}}`, test.onDeletion))
			}
			e.Edit("v2")
			e.awaitPause(1)
			e.remove(targets)
			e.awaitNoTarget()
			e.mustEndWith(test.event)
			if test.tag == "v2" {
				e.mustBeRestored()
				e.MustHave("v2 v2 v2 v2")
				return
			}
			// LeaderWorkerSet would roll out v2, which was rolled back.
			e.MustRest("v1")
		})
	}
}

// A release that failed is rolled back, too: no group of the template that failed is left when the workload is disowned.
//
// Proves: Kruise: the target is deleted in mid-release or after a failure; its own settings.
func TestTargetDeletedAfterFailure(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	e.Apply(strings.Replace(target(name), "spec: {", "spec: {progressDeadlineSeconds: 3, ", 1))
	e.Apply(rollout(quarters))
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2", suite.Annotated(cluster.AnnotationBehavior, cluster.BehaviorNeverReady))
	e.awaitReady(name, metav1.ConditionFalse, "ProgressDeadlineExceeded")
	e.remove(targets)
	e.awaitNoTarget()
	e.mustEndWith("ReleaseRolledBack")
	e.MustRest("v1")
}

// mustEndWith waits for the driver's event about the end of the workload's only release.
func (e *env) mustEndWith(reason string) {
	e.T.Helper()
	e.Eventually("event "+reason, func(ctx context.Context) error {
		events, err := e.Kube.EventsV1().Events(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			switch event.Reason {
			case reason:
				return nil
			case "ReleaseRolledBack", "ReleaseCompleted":
				e.T.Fatalf("the release ended with %s: %s", event.Reason, event.Note)
			}
		}
		return errors.New("none")
	})
}

// mustBeRestored waits until the target is deleted and the workload is restored.
func (e *env) mustBeRestored() {
	e.T.Helper()
	e.awaitNoTarget()
	w := e.Workload(e.T.Context())
	rolling := w.Spec.RolloutStrategy.RollingUpdateConfiguration
	assert.False(e.T, rolling != nil && record.SameRolling(*rolling, record.Hold()), "the hold is left: %s", asJSON(rolling))
	for key := range w.Annotations {
		assert.False(e.T, strings.HasPrefix(key, "lockstep.dev/"), "annotation %s is left", key)
	}
}

func (e *env) awaitNoTarget() {
	e.T.Helper()
	e.Eventually("the target is deleted", func(ctx context.Context) error {
		_, err := e.Objects(targets).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

// Proves: Kruise: targets that are deleted or come later; scaling; the examples.
func TestWorkloadAppearsLater(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Apply(target(name))
	e.Apply(rollout(quarters))
	e.awaitReady(name, metav1.ConditionFalse, "WorkloadNotFound")
	e.Deploy(groups, nil)
	e.awaitReady(name, metav1.ConditionTrue, "")
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
}

// Proves: Kruise: pauses, jumps, validation.
func TestSpecIsValidated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Apply(target(name))
	for what, patch := range map[string]string{
		"a partition above Kruise's hold": `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":32768}}}}`,
		"a negative partition":            `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":-1}}}}`,
		"another workload":                `{"spec":{"workloadRef":{"name":"other"}}}`,
		"OnDelete":                        `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`,
		"another end":                     `{"spec":{"onDeletion":"Orphan"}}`,
		"a deadline of no time":           `{"spec":{"progressDeadlineSeconds":0}}`,
		"a negative time":                 `{"spec":{"minReadySeconds":-1}}`,
	} {
		_, err := e.Objects(targets).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		assert.True(t, apierrors.IsInvalid(err), "%s: %v, want it refused as invalid", what, err)
	}
}

// Other tests keep running and must only be delayed. The second time another replica is on standby, and takes over.
//
// Proves (test): Kruise: routes by the leaders' revision; controller killed, a replica takes over.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	endController(syscall.SIGKILL)
	e.approve()
	startController(t, e.Cluster)
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	replaceController(t, e.Cluster)
	e.approve()
	e.awaitDone()
	e.MustRest("v2")
}

// It stands still, as on a machine that is paused, until its Lease is another's. Meanwhile the next batch is asked for. When it continues it
// ends, since it leads no more, and the release goes on with the other one.
//
// Proves: Argo's controller, its plugins, or Kruise's host stand still in mid-release.
func TestControllerSuspended(t *testing.T) {
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	suspended, standby := controller.Process, launch(t, e.Cluster)
	resume := sync.OnceFunc(func() { _ = suspended.Cmd.Process.Signal(syscall.SIGCONT) })
	t.Cleanup(resume)
	require.NoError(t, suspended.Cmd.Process.Signal(syscall.SIGSTOP))
	controller.Process = standby
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	resume()
	select {
	case <-suspended.Exited:
	case <-time.After(await.Patience):
		t.Errorf("the one that was suspended goes on without the Lease")
		suspended.End(syscall.SIGKILL, 0)
	}
	e.approve()
	e.awaitDone()
	e.MustRest("v2")
}
