// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A budget is made, put right and removed, each with one write that the caches show when it returns.
func TestBudgetWrites(t *testing.T) {
	b := newBed(t, inPhase(t, record.Progressing))
	b.engine.config.ReadOnly = true // the writes are the test's
	b.run()
	b.eventually("caches are filled", b.Synced)
	if all, unread := b.engine.Observer.Budgets.of(vllm, "stable"); all != nil || unread {
		t.Errorf("budgets that nobody wants: %v, %t", all, unread)
	}
	b.engine.Observer.Budgets.want()
	b.eventually("budgets are read", func() bool { _, unread := b.engine.Observer.Budgets.of(vllm, "stable"); return !unread })
	s := b.look()
	one := plan.Budget{Name: "vllm-lockstep-leaders", Workloads: []string{"vllm"}, MaxUnavailable: 1}
	two := one
	two.Workloads, two.MaxUnavailable = []string{"vllm", "vllm-new"}, 2
	for _, want := range []plan.Budget{one, two} {
		if wrote, err := b.engine.Applier.Apply(t.Context(), s, plan.SetBudget{Budget: want}); !wrote || err != nil {
			t.Fatalf("set: %t, %v", wrote, err)
		}
		if diff := cmp.Diff([]plan.Budget{want}, b.look().Budgets); diff != "" {
			t.Errorf("budgets (-want +got):\n%s", diff)
		}
	}
	if s := b.look(); !plan.InFlight(s.Observation) {
		t.Error("a release with a budget left is over")
	}
	for _, want := range []bool{true, false} {
		if wrote, err := b.engine.Applier.Apply(t.Context(), s, plan.DropBudget{Name: one.Name}); wrote != want || err != nil {
			t.Errorf("drop: %t, %v", wrote, err)
		}
	}
	if left := b.look().Budgets; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A budget of a workload that is gone, or that is not as the driver makes them, is none that is wanted.
func TestBudgetsOfOthers(t *testing.T) {
	b := newBed(t, inPhase(t, record.Progressing))
	b.engine.config.ReadOnly = true
	b.engine.Observer.Budgets.want()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Synced() && b.engine.Observer.Budgets.informer.HasSynced() })
	labels := map[string]string{record.RoleLabel: record.RoleBudget, record.StableLabel: "vllm"}
	for _, o := range []*policyv1.PodDisruptionBudget{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b", Labels: labels}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: labels, OwnerReferences: []metav1.OwnerReference{{UID: "older", Controller: ptr.To(true)}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", Labels: map[string]string{record.RoleLabel: record.RoleBudget, record.StableLabel: "other"}}},
	} {
		if err := b.engine.Observer.Budgets.informer.GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]plan.Budget{{Name: "a"}, {Name: "b"}}, b.look().Budgets); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
}
