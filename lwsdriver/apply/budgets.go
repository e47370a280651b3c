// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// setBudget creates a budget, or restores its spec.
func (a *Applier) setBudget(ctx context.Context, s *observe.Snapshot, t plan.SetBudget) (bool, error) {
	next := disruption.Object(s.StableObject, t.Budget)
	client, key := a.core.PolicyV1().PodDisruptionBudgets(next.Namespace), observe.KeyOf(next)
	var err error
	if have := a.observer.Budgets.Get(key); have != nil {
		next.ResourceVersion = have.ResourceVersion
		next, err = client.Update(ctx, next, metav1.UpdateOptions{FieldManager: record.FieldManager})
	} else {
		next, err = client.Create(ctx, next, metav1.CreateOptions{FieldManager: record.FieldManager})
	}
	if err != nil {
		return false, fmt.Errorf("write PodDisruptionBudget %s: %w", key, err)
	}
	return true, a.until(ctx, func() bool {
		now := a.observer.Budgets.Get(key)
		return now != nil && (now.UID != next.UID || apiequality.Semantic.DeepEqual(now.Spec, next.Spec))
	}, s.Key)
}

// deleteBudget deletes a budget, on condition that it is the observed one.
func (a *Applier) deleteBudget(ctx context.Context, s *observe.Snapshot, t plan.DeleteBudget) (bool, error) {
	key := types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Name}
	have := a.observer.Budgets.Get(key)
	if have == nil {
		return false, nil
	}
	err := a.core.PolicyV1().PodDisruptionBudgets(key.Namespace).
		Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	return a.deleted(ctx, s.Key, "PodDisruptionBudget "+key.String(), err, func() bool {
		now := a.observer.Budgets.Get(key)
		return now == nil || now.UID != have.UID || now.DeletionTimestamp != nil
	})
}
