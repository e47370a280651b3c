// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// gpus sets a GPU limit on every container.
func gpus(n string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range templates(w) {
			for i := range t.Spec.Containers {
				t.Spec.Containers[i].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
			}
		}
	}
}

// limitGPUs creates a ResourceQuota of GPUs and returns once its status has this usage.
func (e *env) limitGPUs(hard, used string) {
	e.t.Helper()
	const gpu = "requests.nvidia.com/gpu"
	quotas := e.kube.CoreV1().ResourceQuotas(e.namespace)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{gpu: resource.MustParse(hard)}},
	}
	suite.Create(e.t, quotas, quota)
	e.eventually("the quota's usage is counted", func(ctx context.Context) error {
		q, err := quotas.Get(ctx, "gpus", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := q.Status.Used[gpu]; got.String() != used {
			return fmt.Errorf("%s of %s are used", got.String(), hard)
		}
		return nil
	})
}

// warning returns the message of the warning with this code, or "".
func warning(r *pb.InitializeResponse, code string) string {
	for _, w := range r.GetWarnings() {
		if w.GetCode() == code {
			return w.GetMessage()
		}
	}
	return ""
}

func (w *workload) mustContain(text string, words ...string) {
	w.t.Helper()
	for _, word := range words {
		assert.Contains(w.t, text, word)
	}
}

// A blue-green release that exceeds a quota is refused, unless the policy forces it.
//
// Proves: Quotas and extra capacity are reported before they are used.
func TestStylesQuota(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 2, 2, gpus("8")))
	w.edit(image("v2"))
	e.limitGPUs("48", "32")
	p := &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}}
	if _, err := w.tryInitialize("r1", p); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED {
		t.Fatalf("Initialize: %v", err)
	} else {
		w.mustContain(err.Error(), "ResourceQuota", "/gpus", "needs 32", "16 is left", "policy.blue_green.force")
	}
	w.mustBeIdle()
	p.BlueGreen = &pb.BlueGreenPolicy{Force: true}
	w.mustContain(warning(w.initialize("r1", p), "QuotaExceeded"), "ResourceQuota", "/gpus")
	w.finalize("r1", rollback)
	w.mustBeIdle()
}

// evict requests the eviction of a pod, as kubectl drain does, and reports whether it was allowed.
func (w *workload) evict(pod string) bool {
	w.t.Helper()
	err := w.kube.PolicyV1().Evictions(w.namespace).Evict(w.t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: w.namespace},
	})
	require.False(w.t, err != nil && !apierrors.IsTooManyRequests(err), "evict %s: %v", pod, err)
	return err == nil
}

// A node drain evicts one worker, and with it one group, and no second group until the first is ready again.
//
// Proves (test): Budgets count groups, and Kubernetes enforces them.
func TestCanaryBudgetCountsGroups(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 3, 3))
	w.edit(image("v2"))
	suite.GroupBudgets(t, w.kube, w.namespace, map[string]string{lws.SetNameLabelKey: w.name})
	w.initialize("r1", policy("1"))
	w.observer.waive(ruleStableUntouched, ruleAvailable) // the test itself evicts a pod
	w.eventually("evictions are allowed", func(ctx context.Context) error {
		b, err := w.kube.PolicyV1().PodDisruptionBudgets(w.namespace).Get(ctx, "workers", metav1.GetOptions{})
		if err == nil && b.Status.DisruptionsAllowed != 1 {
			err = fmt.Errorf("%d disruptions are allowed", b.Status.DisruptionsAllowed)
		}
		return err
	})
	first, second := w.evict("model-0-1"), w.evict("model-1-1")
	assert.True(t, first && !second, "evictions of workers of two groups: %t, %t, want the first only", first, second)
	w.finalize("r1", rollback)
}

// leaseDuration is that of the driver's Lease.
const leaseDuration = 15 * time.Second

// The driver is suspended for longer than its Lease lasts. Meanwhile the updated group breaks, and a host asks for the promotion, which
// the driver reads first of all when it continues. It promotes nothing by what it knew, and the release is continued, by it or by the
// server that took over.
//
// Proves: Safety rule 13: the driver is suspended for longer than its Lease lasts, alone and with another server.
func TestSuspended(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		w := newEnv(t).released()
		w.suspend(func(stopped time.Time) {
			await.True(t, "it is suspended for longer than a Lease lasts", func() bool { return time.Since(stopped) > leaseDuration })
		}, pb.ErrorReason_ERROR_REASON_NOT_SYNCED)
		broken := w.await("the batch is observed to be unready", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" })
		assert.NotEqual(t, pb.State_STATE_READY, broken.GetState(), "the batch counts as %s", show(broken))
		w.end()
	})
	t.Run("with another server", func(t *testing.T) {
		t.Parallel()
		e := newEnvIn(t, cluster.Shared(t))
		first, second := e.candidate("first", nil), e.candidate("second", nil)
		first.Begin()
		first.AwaitSync()
		e.driver = first
		w := e.released()
		second.Begin()
		standby, before := w.withDriver(second), 0
		w.suspend(func(time.Time) {
			before, _, _ = e.written("first")
			second.AwaitSync()
			standby.await("the other server leads", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" })
		}, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, pb.ErrorReason_ERROR_REASON_UNSPECIFIED) // it ends, and its connections with it
		first.AwaitExit()
		e.driver = second
		standby.end()
		n, _, _ := e.written("first")
		assert.Equal(t, before, n, "the first server made %d writes, %d of them after it was suspended", n, n-before)
	})
}

// released returns a workload whose first batch is ready.
func (e *env) released() *workload {
	w := e.adopt(model("model", 3, 2))
	w.edit(image("v2"))
	w.initialize("r1", policy("1", "3"))
	w.upgrade("r1", 0)
	return w
}

// suspend stops the driver, breaks the updated group, and asks for a promotion. Once meanwhile returns the driver continues, and refuses
// the promotion with one of the reasons. No stable group changes.
func (w *workload) suspend(meanwhile func(stopped time.Time), reasons ...pb.ErrorReason) {
	w.t.Helper()
	before, canary, stopped := w.stablePods(), w.context().GetCanaryWorkload(), time.Now()
	w.driver.Suspend()
	w.patchPods(canary, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, 0)
	refused := make(chan error)
	go func() {
		_, err := w.tryFinalize("r1", promote, nil)
		refused <- err
	}()
	meanwhile(stopped)
	w.driver.Resume()
	err := <-refused
	assert.True(w.t, err != nil && slices.Contains(reasons, plugin.Reason(err)), "a promotion by what the driver knew before: %v", err)
	w.sameGroups(before)
}

// end heals the updated group, and completes the release.
func (w *workload) end() {
	w.t.Helper()
	w.patchPods(w.context().GetCanaryWorkload(), heal, 0)
	w.awaitState(pb.State_STATE_READY)
	w.upgrade("r1", 1)
	w.finalize("r1", promote)
	w.mustRun("v2")
	w.mustBeIdle()
}

// unready is the annotation patch that makes pods unready until heal.
var unready = map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}

// A share follows the ready groups: it falls while too few are ready, in blue-green back to the workload's own groups, and
// rises by itself. An abort is not held up by it.
//
// Proves (test, canary): Safety rule 2: a share follows the ready groups.
// Proves: Safety rule 2, in each style.
func TestShareFollowsCapacity(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, tc := range []struct {
		style
		weight  int32
		batches []string
		// first is the first updated group, and left the share that one of the updated groups keeps.
		first int
		left  int32
		// reason is why the weight is not verified meanwhile.
		reason string
	}{
		{canaryStyle, 100, []string{"100%"}, 0, 0, "CapacityBelowShare"},
		{blueGreenStyle, 100, []string{"100%"}, 0, 0, "GroupsNotReady"},
		{partitionStyle, 75, []string{"75%", "100%"}, 1, 50, "CapacityBelowShare"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model(tc.name, 4, 2))
			w.expose()
			w.edit(image("v2"))
			w.initialize("r1", w.withTraffic(tc.policy(policy(tc.batches...))))
			set := w.name
			if c := w.upgrade("r1", 0).GetContext(); !tc.inPlace() {
				set = c.GetCanaryWorkload()
			}
			w.setWeight(tc.weight)
			var lost []int
			for i := tc.first + 1; i < 4; i++ {
				lost = append(lost, i)
			}
			w.patchPods(set, unready, lost...)
			w.await("the share falls", func(c *pb.BatchContext) bool { return c.GetTrafficWeight() == tc.left })
			if c := w.context(); c.GetRequestedWeight() != tc.weight || c.GetStableReady() != int32(tc.first)+4*notIn(tc.style) {
				t.Errorf("one group is left: %s", show(c))
			} else if tc.reason == "CapacityBelowShare" && !strings.Contains(c.GetMessage(), fmt.Sprintf("so %d %% of the requests instead of %d %%", tc.left, tc.weight)) {
				t.Errorf("message %q", c.GetMessage())
			}
			if v := w.verifyWeight(tc.weight); v.GetVerified() || v.GetReason() != tc.reason || v.GetWeight() != tc.left {
				t.Errorf("VerifyWeight(%d) with one group: %v", tc.weight, v)
			}
			w.patchPods(set, heal, lost...)
			w.await("the share is in force again", func(c *pb.BatchContext) bool {
				return c.GetTrafficWeight() == tc.weight && c.GetState() == pb.State_STATE_READY
			})
			v := w.verifyWeight(tc.weight)
			assert.True(t, v.GetVerified(), "VerifyWeight(%d) with all groups: %v", tc.weight, v)
			w.patchPods(set, unready, lost...)
			w.await("the share falls again", func(c *pb.BatchContext) bool { return c.GetTrafficWeight() == tc.left })
			w.finalize("r1", rollback)
			w.mustBeIdle()
		})
	}
}

// notIn returns 1 if the workload's own groups are not updated in a style, and 0 otherwise.
func notIn(s style) int32 {
	if s.inPlace() {
		return 0
	}
	return 1
}

// setWeight requests a share and returns once it is verified.
func (w *workload) setWeight(weight int32) {
	w.t.Helper()
	r, err := w.driver.SetWeight(w.t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight, Wait: long})
	require.True(w.t, err == nil && r.GetVerified(), "SetWeight(%d): %v, %v", weight, r, err)
}

// verifyWeight calls VerifyWeight.
func (w *workload) verifyWeight(weight int32) (r *pb.VerifyWeightResponse) {
	w.t.Helper()
	w.eventually("VerifyWeight", func(ctx context.Context) (err error) {
		r, err = w.driver.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight})
		return err
	})
	return r
}
