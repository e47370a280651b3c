// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A budget is made, put right and removed, each with one write that the caches show when it returns.
func TestBudgetWrites(t *testing.T) {
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}, GroupDisruptionBudget: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	theirs := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm-lockstep-workers"}}
	stable := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: lwstest.Noon, PhaseAt: lwstest.Noon,
	}})
	b := newFixtureOn(t, fake.NewClientset(theirs), lwstest.NoRoutes(), stable)
	b.run()
	b.eventually("caches are filled", b.observer.Caches.Synced)
	b.eventually("budgets are read", func() bool { return !b.look().BudgetsUnread })
	s := b.look()
	one := plan.Budget{Name: "vllm-lockstep-leaders", Workloads: []string{"vllm"}, MaxUnavailable: 1}
	two := one
	two.Workloads, two.MaxUnavailable = []string{"vllm", "vllm-new"}, 2
	for _, want := range []plan.Budget{one, two} {
		if wrote, err := b.Apply(t.Context(), s, plan.SetBudget{Budget: want}); !wrote || err != nil {
			t.Fatalf("set: %t, %v", wrote, err)
		}
		if diff := cmp.Diff([]plan.Budget{want}, b.look().Budgets); diff != "" {
			t.Errorf("budgets (-want +got):\n%s", diff)
		}
	}
	taken := plan.Budget{Name: theirs.Name, Workloads: []string{"vllm"}, MaxUnavailable: 1}
	if _, err := b.Apply(t.Context(), s, plan.SetBudget{Budget: taken}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("over a budget of the user's: %v", err)
	}
	if wrote, err := b.Apply(t.Context(), s, plan.DeleteBudget{Name: theirs.Name}); wrote || err != nil {
		t.Errorf("a budget of the user's is deleted: %t, %v", wrote, err)
	}
	if s := b.look(); !plan.InFlight(s.Observation) {
		t.Error("a release with a budget left is over")
	}
	for _, want := range []bool{true, false} {
		if wrote, err := b.Apply(t.Context(), s, plan.DeleteBudget{Name: one.Name}); wrote != want || err != nil {
			t.Errorf("drop: %t, %v", wrote, err)
		}
	}
	if left := b.look().Budgets; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
