// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/internal/informer"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Budgets holds the PodDisruptionBudgets that drivers made. They are watched from the first release on that wants some:
// a driver whose releases want none needs no right to.
type Budgets struct {
	informer cache.SharedIndexInformer
	wanted   chan struct{}
	once     sync.Once
}

func newBudgets(core kubernetes.Interface, namespace string, changed func(types.NamespacedName)) (*Budgets, error) {
	ours := func(o *metav1.ListOptions) { o.LabelSelector = record.RoleLabel + "=" + record.RoleBudget }
	b := &Budgets{
		wanted: make(chan struct{}),
		informer: policyinformers.NewFilteredPodDisruptionBudgetInformer(core, namespace, 0,
			cache.Indexers{addedIndex: indexBudget}, ours),
	}
	_, err := b.informer.AddEventHandler(onEveryEvent(func(obj any, _ bool) {
		if o, ok := obj.(*policyv1.PodDisruptionBudget); ok {
			changed(budgetFor(o))
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("watch poddisruptionbudgets: %w", err)
	}
	return b, nil
}

// budgetFor is the workload that a budget of ours is for.
func budgetFor(o *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[record.StableLabel]}
}

func indexBudget(obj any) ([]string, error) {
	o, ok := obj.(*policyv1.PodDisruptionBudget)
	if !ok {
		return nil, nil
	}
	return []string{budgetFor(o).String()}, nil
}

// want has the budgets watched from now on.
func (b *Budgets) want() { b.once.Do(func() { close(b.wanted) }) }

// run fills the cache once it is wanted, until ctx ends, and calls filled when it is.
func (b *Budgets) run(ctx context.Context, filled func()) {
	select {
	case <-b.wanted:
		informer.Run(ctx, b.informer, filled)
	case <-ctx.Done():
	}
}

// of returns a workload's budgets, in the order of their names. Unread: nobody can tell yet.
func (b *Budgets) of(key types.NamespacedName, uid types.UID) (all []plan.Budget, unread bool) {
	select {
	case <-b.wanted:
	default:
		return nil, false
	}
	if !b.informer.HasSynced() {
		return nil, true
	}
	objs, err := b.informer.GetIndexer().ByIndex(addedIndex, key.String())
	if err != nil {
		return nil, false
	}
	for _, obj := range objs {
		o, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok || o.DeletionTimestamp != nil {
			continue
		}
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != uid {
			// Of a workload that is gone, as far as garbage collection goes; or its owner was taken off it.
			all = append(all, plan.Budget{Name: o.Name})
			continue
		}
		all = append(all, disruption.Read(o))
	}
	slices.SortFunc(all, func(a, b plan.Budget) int { return cmp.Compare(a.Name, b.Name) })
	return all, false
}

// readBudgets reads those of the workload, and has them watched if its release wants some.
func (o *Observer) readBudgets(s *Snapshot) {
	if s.Policy.GroupBudget {
		o.Budgets.want()
	}
	s.Budgets, s.BudgetsUnread = o.Budgets.of(s.Key, s.StableObject.UID)
	s.BudgetsUnread = s.BudgetsUnread && s.Policy.GroupBudget
}

// Get returns a budget from the cache, nil if there is none.
func (b *Budgets) Get(key types.NamespacedName) *policyv1.PodDisruptionBudget {
	obj, ok, err := b.informer.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	o, _ := obj.(*policyv1.PodDisruptionBudget)
	return o
}
