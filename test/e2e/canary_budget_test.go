// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// budgets lists the PodDisruptionBudgets of the namespace as "model-lockstep-leaders 1/5": maxUnavailable of expected pods.
func (e *env) budgets(ctx context.Context) (string, error) {
	list, err := e.kube.PolicyV1().PodDisruptionBudgets(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var all []string
	for _, b := range list.Items {
		all = append(all, fmt.Sprintf("%s %s/%d", b.Name, b.Spec.MaxUnavailable.String(), b.Status.ExpectedPods))
	}
	return strings.Join(all, ", "), nil
}

func (w *workload) awaitBudgets(want string) {
	w.t.Helper()
	w.eventually("budgets are "+want, func(ctx context.Context) error {
		got, err := w.budgets(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("budgets are %q", got)
		}
		return err
	})
}

func (w *workload) mustHaveNoBudget() {
	w.t.Helper()
	if got, err := w.budgets(w.t.Context()); got != "" || err != nil {
		w.t.Errorf("budgets are left: %s (%v)", got, err)
	}
}

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

// During a release budgets over the pods of workload and canary count groups. They follow the canary, are recreated when they
// are deleted by hand, and are deleted when the release ends, also when the driver was killed.
//
// Proves: Budgets: conflicts, other budgets.
func TestCanaryBudget(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 2, rolling("2", "0", -1)))
	w.edit(image("v2"))
	p := quarters()
	p.GroupDisruptionBudget = true
	w.initialize("r1", p)
	w.awaitBudgets("model-lockstep-leaders 2/4, model-lockstep-workers 1/4")
	w.upgrade("r1", 1)
	w.awaitBudgets("model-lockstep-leaders 2/6, model-lockstep-workers 1/6")

	// A budget is deleted by hand while no driver runs. The next driver recreates it.
	w.driver.Kill()
	suite.Delete(t, w.kube.PolicyV1().PodDisruptionBudgets(w.namespace), "model-lockstep-workers")
	w.driver.Restart()
	w.awaitBudgets("model-lockstep-leaders 2/6, model-lockstep-workers 1/6")
	w.edit(image("v3"))
	w.await("the release starts over", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_HOLDING && c.GetUpdated() == 0 })
	w.awaitBudgets("model-lockstep-leaders 2/4, model-lockstep-workers 1/4")
	w.upgrade("r1", 2)
	w.finalize("r1", promote)
	w.mustHaveNoBudget()
	w.mustBeIdle()

	// Killed with the intent recorded: the next driver deletes them.
	w.edit(image("v4"))
	w.initialize("r2", p)
	w.upgrade("r2", 0)
	w.startFinalize("r2", rollback)
	w.driver.Kill()
	w.driver.Restart()
	w.awaitState(rolledBack)
	w.mustHaveNoBudget()
	w.mustBeIdle()
	if _, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()}); err != nil {
		t.Error(err)
	}
	w.mustHaveNoBudget()
}

// A node drain evicts one worker, and with it one group, and no second group until the first is ready again.
//
// Proves (test): Budgets count groups, and Kubernetes enforces them.
func TestCanaryBudgetCountsGroups(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 3, 3))
	w.edit(image("v2"))
	p := policy("1")
	p.GroupDisruptionBudget = true
	w.initialize("r1", p)
	w.awaitBudgets("model-lockstep-leaders 1/3, model-lockstep-workers 1/6")
	w.observer.waive(ruleStableUntouched, ruleAvailable) // the test itself evicts a pod
	w.eventually("evictions are allowed", func(ctx context.Context) error {
		b, err := w.kube.PolicyV1().PodDisruptionBudgets(w.namespace).Get(ctx, "model-lockstep-workers", metav1.GetOptions{})
		if err == nil && b.Status.DisruptionsAllowed != 1 {
			err = fmt.Errorf("%d disruptions are allowed", b.Status.DisruptionsAllowed)
		}
		return err
	})
	if first, second := w.evict("model-0-1"), w.evict("model-1-1"); !first || second {
		t.Errorf("evictions of workers of two groups: %t, %t, want the first only", first, second)
	}
	w.finalize("r1", rollback)
	w.mustHaveNoBudget()
}

// The driver warns of the user's budgets that do not mean for groups what they mean for pods, and refuses a release whose own
// budgets would conflict with them.
//
// Proves: Budgets: conflicts, other budgets.
func TestCanaryForeignBudgets(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 2))
	w.edit(image("v2"))
	for name, n := range map[string]int32{"none": 0, "two": 2} {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: ptr.To(intstr.FromInt32(n)),
				Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{lws.SetNameLabelKey: "model"}},
			},
		}
		suite.Create(t, w.kube.PolicyV1().PodDisruptionBudgets(w.namespace), b)
	}
	p := quarters()
	p.GroupDisruptionBudget = true
	_, err := w.tryInitialize("r1", p)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT)
	w.mustBeIdle()
	r := w.initialize("r1", quarters())
	w.mustContain(warning(r, "BudgetBlocksEviction"), "/none:", "8 pods", "maxUnavailable: 1")
	w.mustContain(warning(r, "BudgetCountsPods"), "/two:", "2 evictions", "2 groups")
	w.finalize("r1", rollback)
}
