// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Need is a number of groups on top of the existing ones.
type Need struct {
	// Template and Network are those of the groups.
	Template lws.LeaderWorkerTemplate
	Network  *lws.NetworkConfig
	// Groups is their number.
	Groups int
	// Exclusive is the node label of which each group needs a value for itself. Empty means none.
	Exclusive string
	// Sets is the number of LeaderWorkerSets that they need, Services that of Services in addition to those that LWS creates.
	Sets, Services int
	// Others are the groups of the other roles of a DisaggregatedSet.
	Others []Need
}

// Parts returns the need of each role.
func (n Need) Parts() []Need { return append([]Need{n}, n.Others...) }

// AllGroups returns the number of groups of all roles.
func (n Need) AllGroups() int {
	sum := 0
	for _, part := range n.Parts() {
		sum += part.Groups
	}
	return sum
}

// Size returns the number of pods of a group.
func (n Need) Size() int { return int(ptr.Deref(n.Template.Size, 1)) }

// Pods returns the number of pods of all groups.
func (n Need) Pods() int {
	sum := 0
	for _, part := range n.Parts() {
		sum += part.Groups * part.Size()
	}
	return sum
}

// Requests returns what the pods of all groups request, as a scheduler counts it.
func (n Need) Requests() corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, p := range n.pods() {
		add(sum, requests(p.pod), p.count)
	}
	return sum
}

// alike is a number of pods with the same requests and constraints.
type alike struct {
	pod   *corev1.Pod
	count int
}

// pods returns the leaders and the workers of all groups.
func (n Need) pods() (all []alike) {
	for _, part := range n.Parts() {
		all = append(all, part.ofRole()...)
	}
	return all
}

// ofRole returns the leaders and the workers of one role.
func (n Need) ofRole() []alike {
	leader := n.Template.LeaderTemplate
	if leader == nil {
		leader = &n.Template.WorkerTemplate
	}
	all := []alike{{podOf(leader), n.Groups}}
	if n.Size() > 1 {
		all = append(all, alike{podOf(&n.Template.WorkerTemplate), n.Groups * (n.Size() - 1)})
	}
	return all
}

// podOf returns a pod of a template with the API server's defaults for resources.
func podOf(t *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{Spec: *t.Spec.DeepCopy()}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			r.Requests = defaulted(r.Requests, r.Limits)
		}
	}
	if r := pod.Spec.Resources; r != nil && len(r.Limits) > 0 {
		// Requests of containers take precedence over the pod's limit.
		sum := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
		asked := corev1.ResourceList{}
		for name := range r.Limits {
			if q, ok := sum[name]; ok && resourcehelper.IsSupportedPodLevelResource(name) {
				asked[name] = q
			}
		}
		r.Requests = defaulted(defaulted(r.Requests, asked), r.Limits)
	}
	return pod
}

// defaulted returns have, with the resources of more that it lacks.
func defaulted(have, more corev1.ResourceList) corev1.ResourceList {
	if len(more) == 0 {
		return have
	}
	out := more.DeepCopy()
	for name, q := range have {
		out[name] = q
	}
	return out
}

func requests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

func limits(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
}

// add adds each of more n times.
func add(sum, more corev1.ResourceList, n int) {
	for name, q := range more {
		total := q.DeepCopy()
		total.Mul(int64(n))
		total.Add(sum[name])
		sum[name] = total
	}
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
