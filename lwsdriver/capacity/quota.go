// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// Shortage is a resource of which a quota leaves less than is needed.
type Shortage struct {
	// Resource is its name in the quota, for example "requests.nvidia.com/gpu".
	Resource corev1.ResourceName
	// Needed is in addition to Used; Left is Hard minus Used, never negative.
	Needed, Hard, Used, Left resource.Quantity
}

// Shortages returns the resources of which the quota leaves less than is needed, by name. What else is created in the namespace at
// the same time is unknown, so none is no guarantee.
func (n Need) Shortages(q *corev1.ResourceQuota) []Shortage {
	hard := q.Status.Hard
	if len(hard) == 0 {
		hard = q.Spec.Hard // the quota controller has not counted usage yet
	}
	usage := n.usage(scopesOf(q))
	var short []Shortage
	for _, name := range slices.Sorted(maps.Keys(hard)) {
		needed := usage[name]
		left := hard[name].DeepCopy()
		left.Sub(q.Status.Used[name])
		if needed.IsZero() || needed.Cmp(left) <= 0 {
			continue
		}
		if left.Sign() < 0 {
			left = resource.Quantity{Format: left.Format}
		}
		short = append(short, Shortage{Resource: name, Needed: needed, Hard: hard[name], Used: q.Status.Used[name], Left: left})
	}
	return short
}

// usage returns what a quota of these scopes counts, under each name that it may have in a quota.
func (n Need) usage(scopes []corev1.ScopedResourceSelectorRequirement) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, p := range n.pods() {
		if matchesScopes(p.pod, scopes) {
			addTimes(sum, podUsage(p.pod), p.count)
		}
	}
	if len(scopes) == 0 { // a scope is a property of pods: quotas that have one count nothing else
		for _, part := range n.Parts() {
			addTimes(sum, part.claimUsage(), part.Groups*part.Size())
		}
	}
	return sum
}

// podUsage returns the usage of one pod.
func podUsage(pod *corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: oneObject(), "count/pods": oneObject()}
	for name, q := range podRequests(pod) {
		out[corev1.DefaultResourceRequestsPrefix+name] = q
		if !isDeviceResource(name) {
			out[name] = q // "cpu" means "requests.cpu"; extended resources have no short name
		}
	}
	for name, q := range podLimits(pod) {
		out["limits."+name] = q
	}
	return out
}

// isDeviceResource reports whether a resource is a device plugin's.
func isDeviceResource(name corev1.ResourceName) bool { return strings.Contains(string(name), "/") }

// claimUsage returns the usage of one pod's volume claims.
func (n Need) claimUsage() corev1.ResourceList {
	sum := corev1.ResourceList{}
	for i := range n.Template.VolumeClaimTemplates {
		spec := &n.Template.VolumeClaimTemplates[i].Spec
		one := corev1.ResourceList{
			corev1.ResourcePersistentVolumeClaims: oneObject(), "count/persistentvolumeclaims": oneObject(),
		}
		storage, sized := spec.Resources.Requests[corev1.ResourceStorage]
		if sized {
			one[corev1.ResourceRequestsStorage] = storage
		}
		if class := ptr.Deref(spec.StorageClassName, ""); class != "" {
			prefix := corev1.ResourceName(class + ".storageclass.storage.k8s.io/")
			one[prefix+corev1.ResourcePersistentVolumeClaims] = oneObject()
			if sized {
				one[prefix+corev1.ResourceRequestsStorage] = storage
			}
		}
		addTimes(sum, one, 1)
	}
	return sum
}

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

// matchesScopes reports whether a quota of these scopes counts the pod, by Kubernetes' rules and the pod's template: a pod without a
// priorityClassName has none. Under an unknown scope the pod counts: a refusal can be overruled, pods that are not created
// can't.
func matchesScopes(pod *corev1.Pod, scopes []corev1.ScopedResourceSelectorRequirement) bool {
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
	case corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return false // one is about volume claims, and the other forbids what the pods that run have not
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
	// An operator that is not known counts the pod, as an unknown scope does.
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
	// Kubernetes derives the class of a pod from its containers, without the overhead of its runtime.
	own := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	all := []corev1.ResourceList{resourcehelper.PodRequests(pod, own), resourcehelper.PodLimits(pod, own)}
	return !slices.ContainsFunc(all, func(list corev1.ResourceList) bool { return list.Cpu().Sign() > 0 || list.Memory().Sign() > 0 })
}
