// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A budget of a deleted workload, or one without an owner, is read by name only, so that it is deleted.
func TestBudgetsOfOthers(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	if all, unread := b.Budgets.of(lwstest.VLLM, "stable"); all != nil || unread {
		t.Errorf("budgets that no release wants: %v, %t", all, unread)
	}
	b.Budgets.informer.Start()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Caches.Synced() && b.Budgets.informer.Synced() })
	labels := map[string]string{record.RoleLabel: record.RoleBudget, record.StableLabel: "vllm"}
	for _, o := range []*policyv1.PodDisruptionBudget{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b", Labels: labels}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: labels, OwnerReferences: []metav1.OwnerReference{{UID: "older", Controller: ptr.To(true)}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", Labels: map[string]string{record.RoleLabel: record.RoleBudget, record.StableLabel: "other"}}},
	} {
		if err := b.Budgets.informer.GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]plan.Budget{{Name: "a"}, {Name: "b"}}, b.look().Budgets); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
}
