// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Object returns the PodDisruptionBudget that the planner decided on for a workload.
func Object(stable *lws.LeaderWorkerSet, b plan.Budget) *policyv1.PodDisruptionBudget {
	owner := metav1.NewControllerRef(stable, lws.GroupVersion.WithKind("LeaderWorkerSet"))
	owner.BlockOwnerDeletion = nil // it must not block the owner's deletion
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stable.Namespace, Name: b.Name,
			Labels:          map[string]string{record.RoleLabel: record.RoleBudget, record.StableLabel: stable.Name},
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: specOf(b),
	}
}

// specOf selects leaders or workers of the workloads. Unhealthy pods may be evicted at any time: they must not block the drain of
// a node.
func specOf(b plan.Budget) policyv1.PodDisruptionBudgetSpec {
	part := metav1.LabelSelectorOpIn
	if b.Workers {
		part = metav1.LabelSelectorOpNotIn
	}
	return policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable:             ptr.To(intstr.FromInt(b.MaxUnavailable)),
		UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: lws.SetNameLabelKey, Operator: metav1.LabelSelectorOpIn, Values: b.Workloads},
			{Key: lws.WorkerIndexLabelKey, Operator: part, Values: []string{"0"}},
		}},
	}
}

// Read returns the budget as the planner knows it. One that differs from what the driver creates has a name only, so that the
// planner replaces it.
func Read(o *policyv1.PodDisruptionBudget) plan.Budget {
	b := plan.Budget{Name: o.Name}
	if o.Spec.Selector == nil || o.Spec.MaxUnavailable == nil {
		return b
	}
	full := plan.Budget{Name: o.Name, MaxUnavailable: o.Spec.MaxUnavailable.IntValue()}
	for _, e := range o.Spec.Selector.MatchExpressions {
		switch e.Key {
		case lws.SetNameLabelKey:
			full.Workloads = slices.Clone(e.Values)
		case lws.WorkerIndexLabelKey:
			full.Workers = e.Operator == metav1.LabelSelectorOpNotIn
		}
	}
	// The planner compares these fields only, so a budget with any other difference must not look equal.
	if apiequality.Semantic.DeepEqual(specOf(full), o.Spec) {
		return full
	}
	return b
}

// Ours reports whether the driver created the budget.
func Ours(o *policyv1.PodDisruptionBudget) bool {
	return o.Labels[record.RoleLabel] == record.RoleBudget
}
