// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
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
