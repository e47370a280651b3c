// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Need is a number of groups on top of the existing ones.
type Need struct {
	// Template is that of the groups.
	Template lws.LeaderWorkerTemplate
	// Groups is their number.
	Groups int
	// Exclusive is the node label of which each group needs a value for itself among those of its namespace. Empty means none.
	Exclusive, Namespace string
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
		addTimes(sum, podRequests(p.pod), p.count)
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
	all := []alike{{podOf(cmp.Or(n.Template.LeaderTemplate, &n.Template.WorkerTemplate)), n.Groups}}
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
			r.Requests = withDefaults(r.Requests, r.Limits)
		}
	}
	// The API server defaults the resources of the whole pod after those of its containers.
	if r := pod.Spec.Resources; r != nil && len(r.Limits) > 0 {
		// Requests of containers take precedence over the pod's limit.
		sum := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
		asked := corev1.ResourceList{}
		for name := range r.Limits {
			if q, ok := sum[name]; ok && resourcehelper.IsSupportedPodLevelResource(name) {
				asked[name] = q
			}
		}
		r.Requests = withDefaults(withDefaults(r.Requests, asked), r.Limits)
	}
	return pod
}

// withDefaults returns have, with the resources of more that it lacks.
func withDefaults(have, more corev1.ResourceList) corev1.ResourceList {
	if len(more) == 0 {
		return have
	}
	out := more.DeepCopy()
	maps.Copy(out, have)
	return out
}

func podRequests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

func podLimits(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
}

// addTimes adds each of more n times.
func addTimes(sum, more corev1.ResourceList, n int) {
	for name, q := range more {
		// A Quantity shares its big number with its copies.
		total := q.DeepCopy()
		total.Mul(int64(n))
		total.Add(sum[name])
		sum[name] = total
	}
}

func oneObject() resource.Quantity {
	return *resource.NewQuantity(1, resource.DecimalSI)
}

// Peak is the largest number of groups that a release has on top of the workload's own. It is reached during promotion: the
// added groups stay while the workload's own roll with the user's maxSurge.
type Peak struct {
	// Added are the groups of the second workload, Surge those that LWS adds by maxSurge.
	Added, Surge int
}

// PeakOf returns the peak of a release of so many replicas under the user's own rolling update configuration.
func PeakOf(policy record.Policy, own lws.RollingUpdateConfiguration, replicas int) Peak {
	// The user's surge counts only while LWS rolls the workload itself.
	p := Peak{Surge: native.LimitsOf(own, replicas).Surge()}
	switch policy.Style {
	case pb.Style_STYLE_CANARY:
		p.Added = policy.Batches[len(policy.Batches)-1].Up(replicas)
	case pb.Style_STYLE_BLUE_GREEN:
		p.Added = replicas
		if policy.Traffic != nil || policy.Adopt {
			p.Surge = 0 // the first set is replaced without requests and without a surge, or not at all
		}
	case pb.Style_STYLE_PARTITION:
		p.Surge = 0 // a release in place adds none
	default: // the workload's own rolling update
	}
	return p
}

// Groups returns the sum.
func (p Peak) Groups() int { return p.Added + p.Surge }

// Text lists resources for users, devices first: "nvidia.com/gpu 16, cpu 64, memory 1Ti". Empty means that nothing is requested.
func Text(list corev1.ResourceList) string {
	names := slices.SortedFunc(maps.Keys(list), devicesFirst)
	parts := make([]string, 0, len(names))
	for _, name := range names {
		if q := list[name]; !q.IsZero() {
			parts = append(parts, fmt.Sprintf("%s %s", name, q.String()))
		}
	}
	return strings.Join(parts, ", ")
}

// devicesFirst orders resources by name, those of device plugins first.
func devicesFirst(a, b corev1.ResourceName) int {
	if isDeviceResource(a) == isDeviceResource(b) {
		return cmp.Compare(a, b)
	}
	if isDeviceResource(a) {
		return -1
	}
	return 1
}

// String returns what is missing, for users.
func (s Shortage) String() string {
	return fmt.Sprintf("%s needs %s, and %s is left (hard %s, used %s)",
		s.Resource, s.Needed.String(), s.Left.String(), s.Hard.String(), s.Used.String())
}
