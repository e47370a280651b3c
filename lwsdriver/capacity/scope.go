// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// scopesOf returns all conditions of a quota on the pods that it counts.
func scopesOf(q *corev1.ResourceQuota) []corev1.ScopedResourceSelectorRequirement {
	all := make([]corev1.ScopedResourceSelectorRequirement, 0, len(q.Spec.Scopes))
	for _, name := range q.Spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: corev1.ScopeSelectorOpExists})
	}
	if s := q.Spec.ScopeSelector; s != nil {
		all = append(all, s.MatchExpressions...)
	}
	return all
}

// matches reports whether a quota of these scopes counts the pod, by Kubernetes' rules and the pod's template: a pod without a
// priorityClassName has none. Under an unknown scope the pod counts: a refusal can be overruled, pods that are not created
// can't.
func matches(pod *corev1.Pod, scopes []corev1.ScopedResourceSelectorRequirement) bool {
	return !slices.ContainsFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool { return !inScope(pod, s) })
}

func inScope(pod *corev1.Pod, s corev1.ScopedResourceSelectorRequirement) bool {
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		return inPriorityScope(pod.Spec.PriorityClassName, s)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity)
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return false // it is about volume claims
	default:
		return true
	}
}

// inPriorityScope reports whether a class is in a scope, as if it were a label that a pod without a class lacks. The API server allows the
// operators of labels only.
func inPriorityScope(class string, s corev1.ScopedResourceSelectorRequirement) bool {
	const key = "class"
	operators := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	requirement, err := labels.NewRequirement(key, operators[s.Operator], s.Values)
	if err != nil {
		return true
	}
	if class == "" {
		return requirement.Matches(labels.Set{})
	}
	return requirement.Matches(labels.Set{key: class})
}

// bestEffort reports whether no container requests or limits CPU or memory.
func bestEffort(pod *corev1.Pod) bool {
	own := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	for _, list := range []corev1.ResourceList{resourcehelper.PodRequests(pod, own), resourcehelper.PodLimits(pod, own)} {
		if list.Cpu().Sign() > 0 || list.Memory().Sign() > 0 {
			return false
		}
	}
	return true
}

// crossesNamespaces reports whether a term of pod affinity selects other namespaces.
func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	together, apart := ptr.Deref(a.PodAffinity, corev1.PodAffinity{}), ptr.Deref(a.PodAntiAffinity, corev1.PodAntiAffinity{})
	terms := slices.Concat(together.RequiredDuringSchedulingIgnoredDuringExecution, apart.RequiredDuringSchedulingIgnoredDuringExecution)
	for _, w := range slices.Concat(together.PreferredDuringSchedulingIgnoredDuringExecution, apart.PreferredDuringSchedulingIgnoredDuringExecution) {
		terms = append(terms, w.PodAffinityTerm)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	})
}
