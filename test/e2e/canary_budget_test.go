// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// evict requests the eviction of a pod, as kubectl drain does, and reports whether it was allowed.
func (w *workload) evict(pod string) bool {
	w.t.Helper()
	err := w.kube.PolicyV1().Evictions(w.namespace).Evict(w.t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: w.namespace},
	})
	if err != nil && !apierrors.IsTooManyRequests(err) {
		w.t.Fatalf("evict %s: %v", pod, err)
	}
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
	if first, second := w.evict("model-0-1"), w.evict("model-1-1"); !first || second {
		t.Errorf("evictions of workers of two groups: %t, %t, want the first only", first, second)
	}
	w.finalize("r1", rollback)
}
