// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// withBehavior sets one of the cluster's Behavior constants on the pods of the template.
func withBehavior(behavior string) func(*lws.LeaderWorkerSet) {
	return annotated(cluster.AnnotationBehavior, behavior)
}

// heal is the annotation patch that removes a behavior from pods, so that they become ready.
var heal = map[string]any{cluster.AnnotationBehavior: nil}

// Groups never become ready: after the deadline the release fails with the group and the reason, and the host decides.
//
// Proves (test): Safety rule 8: a deadline with the group and the remedy.
func TestCanaryFailures(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	noRestart := func(w *lws.LeaderWorkerSet) { w.Spec.LeaderWorkerTemplate.RestartPolicy = lws.NoneRestartPolicy }
	for _, test := range []struct {
		name, reason string
		change       func(*lws.LeaderWorkerSet)
		words        []string
	}{
		{"never-ready", "", withBehavior(cluster.BehaviorNeverReady), nil},
		{"image-pull", "ImagePullBackOff", withBehavior(cluster.BehaviorImagePull), []string{"ImagePullBackOff", "example.com/model:v2", "no progress for 3s (since ", ". Fix the image", "otherwise abort"}},
		{"crash-loop", "CrashLoopBackOff", func(w *lws.LeaderWorkerSet) {
			withBehavior(cluster.BehaviorCrash)(w)
			annotated(cluster.AnnotationPeriod, "200ms")(w)
		}, []string{"CrashLoopBackOff"}},
		{"unschedulable", "Unschedulable", func(w *lws.LeaderWorkerSet) {
			r := &w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Resources
			r.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("100000")}
		}, []string{"nvidia.com/gpu"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model(test.name, 2, 2, noRestart))
			before := w.stablePods()
			w.edit(image("v2"), test.change)
			p := policy("50%", "100%")
			p.ProgressDeadline = seconds(3)
			w.initialize("r1", p)
			start := time.Now()
			c := w.upgrade("r1", 0).GetContext()
			if took := time.Since(start); c.GetState() != pb.State_STATE_FAILED || c.GetReason() != "ProgressDeadlineExceeded" || took < 2900*time.Millisecond {
				t.Errorf("after %s: %s", took, show(c))
			}
			words := append(test.words, "group 0", "pod "+c.GetCanaryWorkload()+"-0")
			c = w.await(fmt.Sprintf("the message contains %q", words), func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_FAILED &&
					!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(c.GetMessage(), word) })
			})
			rows := c.GetGroups()
			i := slices.IndexFunc(rows, func(g *pb.Group) bool { return g.GetRole() == pb.GroupRole_GROUP_ROLE_CANARY })
			assert.False(t, i < 0 || rows[i].GetReady() || rows[i].GetPod() == "" || (test.reason != "" && rows[i].GetReason() != test.reason),
				"groups %v", rows)
			w.mustHaveEvents("ReleaseFailed")
			w.finalize("r1", rollback)
			w.sameGroups(before)
			w.mustBeIdle()
		})
	}
}

// Requests that LeaderWorkerSets of the cluster do not allow are refused with a reason and details, and write nothing.
//
// Proves: SPEC errors: the cluster's refusals have a reason and write nothing.
func TestCanaryRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)

	t.Run("long name", func(t *testing.T) {
		w := e.in(t).deploy(model(strings.Repeat("n", 48), 2, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG, "48", "43", "63", "controller-revision-hash")
		w.mustBeUntouched()
	})
	t.Run("longest name", func(t *testing.T) {
		w := e.in(t).adopt(model(strings.Repeat("m", 43), 2, 2))
		w.edit(image("v2"))
		w.release("r1", policy("100%"))
	})
	t.Run("mixed revisions", func(t *testing.T) {
		w := e.in(t).deploy(model("mixed", 4, 1, rolling("1", "0", 2)))
		w.edit(image("v2"))
		w.awaitObject("LWS has updated half of the groups", func() bool {
			s := w.get()
			return s.Status.ObservedGeneration == s.Generation && s.Status.UpdatedReplicas == 2 && s.Status.ReadyReplicas == 4
		})
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS)
		w.mustBeUntouched()
		r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		assert.True(t, err == nil && len(r.GetWarnings()) == 1 && r.GetWarnings()[0].GetCode() == "AdoptedDuringRoll", "Adopt: %v, %v", r, err)
	})
	t.Run("name taken", func(t *testing.T) {
		w := e.in(t).adopt(model("taken", 2, 1))
		w.edit(image("v2"))
		c := w.await("the new revision is known", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
		name := fmt.Sprintf("taken-%.6s", c.GetUpdateRevision())
		w.env.in(t).deploy(model(name, 1, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, name)
		w.mustBeIdle()
	})
}

// mustBeUntouched fails if the driver has written to the workload.
func (w *workload) mustBeUntouched() {
	w.t.Helper()
	s := w.get()
	assert.True(w.t, s.Annotations[recordAnnotation] == "" && !isHold(s.Spec.RolloutStrategy.RollingUpdateConfiguration) && len(s.Finalizers) == 0,
		"the workload was touched: %s", asJSON(s.ObjectMeta))
	c := w.context()
	assert.Equal(w.t, pb.State_STATE_UNMANAGED, c.GetState(), "not unmanaged: %s", show(c))
}

// The API server refuses reads of pods while the updated group breaks. Nothing is promoted by what the driver knew, and an abort is
// accepted; its effects follow once the pods are read again.
//
// Proves (test): Safety rule 13: reads of pods are refused in mid-release, in each style.
func TestStylesStale(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnvIn(t, cluster.Shared(t))
		p := newProxy(t, e, fault{})
		e.driver = driver.Start(t, p.kubeconfig, e.namespace)
		p.open()
		w := e.adopt(model("model", 3, 2))
		w.edit(image("v2"))
		w.initialize("r1", s.policy(policy("33%", "100%")))
		w.upgrade("r1", 0)
		before := w.stablePods()
		p.refuseReads("pods")
		stale := w.await("the cache counts as stale", func(c *pb.BatchContext) bool { return c.GetReason() == "CacheStale" })
		assert.Equal(t, pb.State_STATE_VERIFYING, stale.GetState(), "blind, the batch counts as %s", show(stale))
		set, group := stale.GetCanaryWorkload(), 0
		if s.inPlace() {
			set, group = w.name, 2
		}
		w.patchPods(set, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, group)
		_, err := w.tryFinalize("r1", promote, nil)
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "cache of pods", "since", "abort")
		if _, err := w.tryUpgrade("r1", 1, nil); err != nil { // it is recorded, and no group is replaced for it
			t.Error(err)
		}
		w.await("the next batch waits for the cache", func(c *pb.BatchContext) bool { return c.GetTarget() == "100%" && c.GetReason() == "CacheStale" })
		w.sameGroups(before)
		_, err = w.tryFinalize("r1", rollback, nil)
		require.NoError(t, err, "an abort is refused")
		c := w.context()
		assert.Equal(t, pb.State_STATE_ROLLING_BACK, c.GetState(), "after the abort: %s", show(c))

		p.refuseReads()
		w.awaitState(pb.State_STATE_ROLLED_BACK)
		w.mustBeIdle()
	})
}

// lose makes the pods of stable groups not ready until the test heals them.
func (w *workload) lose(groups ...int) {
	w.t.Helper()
	w.patchPods(w.name, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, groups...)
	for _, g := range groups {
		w.await("the driver has observed the lost group", func(c *pb.BatchContext) bool {
			return slices.ContainsFunc(c.GetGroups(), func(row *pb.Group) bool { return int(row.GetIndex()) == g && !row.GetReady() })
		})
	}
}

// A broken stable group uses up maxUnavailable: a rollback in place waits for it, names it and the way out, and with force
// continues past it, also in another process. The broken group itself is never restarted.
//
// Proves: A rollback with force goes past broken stable groups, and a driver that restarts completes it.
func TestForcedRollback(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 2))
	w.observer.waive(ruleAvailable, ruleDown) // that is what force is for
	w.edit(image("v2"))
	w.initialize("r1", inPlace("50%", "100%"))
	w.upgrade("r1", 0)
	w.awaitState(pb.State_STATE_READY)
	w.lose(0)
	broken := w.stablePods()["model-0"].UID
	if _, err := w.tryFinalize("r1", rollback, nil); err != nil {
		t.Fatal(err)
	}
	c := w.await("the rollback names the broken group", func(c *pb.BatchContext) bool {
		return strings.Contains(c.GetMessage(), "uses up maxUnavailable 1")
	})
	w.mustContain(c.GetMessage(), "Group 0 (model-0), not ready since ", "lockstep abort model -n "+w.namespace+" --force")
	assert.Equal(t, 2, w.groupsWith("v2"), "groups are at v2, although the rollback is blocked")
	_, err := w.driver.Finalize(t.Context(), &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: "r1", Intent: promote, Force: true})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, "force", "ROLLBACK only")

	out, code := w.lockstep("abort", "model", "--force", "--no-wait")
	require.Zero(t, code, "abort --force exits with %d: %s", code, out)
	w.driver.Kill()
	w.driver.Restart()
	w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.mustRun("v1")
	w.mustBeIdle()
	assert.Equal(t, broken, w.stablePods()["model-0"].UID, "the broken group was restarted")
}
