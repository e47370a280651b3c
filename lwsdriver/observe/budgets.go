// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Budgets finds the PodDisruptionBudgets that drivers created in the cache of all, which a release starts that requests some, and
// so does Nearby.
type Budgets struct {
	informer *informer.Informer
}

func (o *Observer) newBudgets() *Budgets {
	core := o.config.Core
	return &Budgets{informer.New(informer.Config{
		Source: informer.NewSource(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), core,
			core.PolicyV1().PodDisruptionBudgets(o.config.Namespace), ""),
		Example:   &policyv1.PodDisruptionBudget{},
		Indexers:  cache.Indexers{addedIndex: informer.Index(ownBudget), cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		Transform: informer.Transform(stripManagedFields), Changed: o.allChanged,
		Handler: informer.OnKeys(budgetFor, func(key types.NamespacedName) {
			// A user's budget concerns no release; the next call that judges one reads it.
			if key.Name != "" {
				o.changed(key)
			}
		}),
	})}
}

// budgetFor returns the workload that a driver created a budget for. The key of a user's budget has no name.
func budgetFor(o *policyv1.PodDisruptionBudget) types.NamespacedName {
	if !disruption.Ours(o) {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[record.StableLabel]}
}

func ownBudget(o *policyv1.PodDisruptionBudget) []string {
	if !disruption.Ours(o) {
		return nil
	}
	return []string{budgetFor(o).String()}
}

// of returns a workload's budgets, sorted by name. unread is true until the cache is filled.
func (b *Budgets) of(key types.NamespacedName, uid types.UID) (all []plan.Budget, unread bool) {
	if !b.informer.Synced() {
		// Unless a release started the cache, none requests budgets, and none is waited for.
		return nil, b.informer.Started()
	}
	for _, o := range informer.List[*policyv1.PodDisruptionBudget](b.informer, addedIndex, key.String()) {
		switch owner := metav1.GetControllerOf(o); {
		case o.DeletionTimestamp != nil:
			// Its deletion is under way, so there is nothing left to delete.
		case owner == nil || owner.UID != uid:
			// It belongs to a deleted workload, or its owner reference was removed.
			all = append(all, plan.Budget{Name: o.Name})
		default:
			all = append(all, disruption.Read(o))
		}
	}
	slices.SortFunc(all, func(a, b plan.Budget) int { return cmp.Compare(a.Name, b.Name) })
	return all, false
}

// readBudgets reads the workload's budgets, and starts their informer if its release requests some.
func (o *Observer) readBudgets(s *Snapshot) {
	if s.Policy.GroupBudget {
		o.Budgets.informer.Start()
	}
	s.Budgets, s.BudgetsUnread = o.Budgets.of(s.Key, s.StableObject.UID)
	s.BudgetsUnread = s.BudgetsUnread && s.Policy.GroupBudget
	// NOT_SYNCED means only that the cache is still being filled.
	if err := o.Budgets.informer.Err(); s.BudgetsUnread && drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		s.BudgetsUnreadable = drivererr.ProblemOf(ContractError(err))
	}
}

// Get returns a budget that a driver created, nil if there is none.
func (b *Budgets) Get(key types.NamespacedName) *policyv1.PodDisruptionBudget {
	if o := informer.Get[*policyv1.PodDisruptionBudget](b.informer, key); o != nil && disruption.Ours(o) {
		return o
	}
	return nil
}
