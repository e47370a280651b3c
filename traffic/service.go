// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// CanaryService generates the canary's Service from the stable one. Only what is known to make sense for a second
// Service is taken over: what exposes the stable one to the world (node ports, addresses, load balancers) is its own.
// It never selects workers and never publishes leaders that are not ready, whatever the stable one does.
func CanaryService(stable *corev1.Service, s Setup) (*corev1.Service, error) {
	selector, err := unfenced(stable)
	if err != nil {
		return nil, err
	}
	if selector == nil {
		return nil, unusable("Service %s has no selector, so no Service for the canary can be made from it: give it one", stable.Name)
	}
	maps.Copy(selector, s.CanaryPin)
	selector[lws.WorkerIndexLabelKey] = leaderIndex

	from := stable.Spec.DeepCopy()
	c := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: KindService},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Policy.CanaryService, Namespace: s.Namespace,
			Labels:          without(WithoutToolMarks(stable.Labels), serviceMarks),
			Annotations:     without(WithoutToolMarks(stable.Annotations), serviceMarks),
			OwnerReferences: []metav1.OwnerReference{s.Owner},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			Selector:              selector,
			Ports:                 from.Ports,
			SessionAffinity:       from.SessionAffinity,
			SessionAffinityConfig: from.SessionAffinityConfig,
			IPFamilies:            from.IPFamilies,
			IPFamilyPolicy:        from.IPFamilyPolicy,
			InternalTrafficPolicy: from.InternalTrafficPolicy,
			TrafficDistribution:   from.TrafficDistribution,
		},
	}
	if from.ClusterIP == corev1.ClusterIPNone {
		c.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for i := range c.Spec.Ports {
		c.Spec.Ports[i].NodePort = 0
	}
	c.Labels[RoleLabel], c.Labels[StableLabel] = RoleCanary, s.Stable
	return c, nil
}

// madeFor says whether a Service is the canary Service of this workload, by its marks.
func madeFor(svc *corev1.Service, s Setup) bool {
	return svc.Labels[RoleLabel] == RoleCanary && svc.Labels[StableLabel] == s.Stable
}

// ownedBy says whether garbage collection will take the Service with this very workload, not with an earlier one of
// its name.
func ownedBy(svc *corev1.Service, s Setup) bool {
	owner := metav1.GetControllerOf(svc)
	return owner != nil && owner.UID == s.Owner.UID
}

// serviceDrift returns the merge patch that makes have what want asks for, nil if it is so. Labels and annotations that
// others added stay; so do fields that can't be changed.
func serviceDrift(have, want *corev1.Service) map[string]any {
	p := patch{}
	if !equality.Semantic.DeepEqual(have.Spec.Selector, want.Spec.Selector) {
		p.set(replaced(have.Spec.Selector, want.Spec.Selector), "spec", "selector")
	}
	if !equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports) {
		p.set(want.Spec.Ports, "spec", "ports")
	}
	if have.Spec.PublishNotReadyAddresses {
		p.set(nil, "spec", "publishNotReadyAddresses")
	}
	if want.Spec.SessionAffinity != have.Spec.SessionAffinity {
		p.set(want.Spec.SessionAffinity, "spec", "sessionAffinity")
		p.set(want.Spec.SessionAffinityConfig, "spec", "sessionAffinityConfig")
	}
	for k, v := range want.Labels {
		if have.Labels[k] != v {
			p.set(v, "metadata", "labels", k)
		}
	}
	for k, v := range want.Annotations {
		if old, ok := have.Annotations[k]; !ok || old != v {
			p.set(v, "metadata", "annotations", k)
		}
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// replaced is the merge patch that turns one map into another.
func replaced(have, want map[string]string) map[string]any {
	out := map[string]any{}
	for k := range have {
		if _, stays := want[k]; !stays {
			out[k] = nil
		}
	}
	for k, v := range want {
		if old, ok := have[k]; !ok || old != v {
			out[k] = v
		}
	}
	return out
}

// patch is a JSON merge patch.
type patch map[string]any

func (p patch) set(value any, path ...string) {
	node := map[string]any(p)
	for _, step := range path[:len(path)-1] {
		next, ok := node[step].(map[string]any)
		if !ok {
			next = map[string]any{}
			node[step] = next
		}
		node = next
	}
	node[path[len(path)-1]] = value
}
