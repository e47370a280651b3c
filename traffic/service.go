// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// CanaryService generates the canary's Service from the stable one. Only fields that make sense for a second Service are
// copied, none that expose it (node ports, addresses, load balancers). It never selects workers and never publishes leaders
// that are not ready, whatever the stable one does.
func CanaryService(stable *corev1.Service, s Setup) (*corev1.Service, error) {
	selector, err := serviceSelector(stable).forCanary(s)
	if err != nil {
		return nil, err
	}
	from := stable.Spec.DeepCopy()
	c := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: KindService},
		ObjectMeta: generatedMeta(s, s.Policy.CanaryService, stable, serviceKeys...),
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
		// A node port belongs to one Service: the API server would refuse a second one with it.
		c.Spec.Ports[i].NodePort = 0
	}
	return c, nil
}

// serviceDrift returns the merge patch from have to want, empty if there is no drift. Foreign labels and annotations and
// immutable fields are kept.
func serviceDrift(have, want *corev1.Service) patch {
	p := patch{}
	if !equality.Semantic.DeepEqual(have.Spec.Selector, want.Spec.Selector) {
		p.set(mergePatch(anyMap(have.Spec.Selector), anyMap(want.Spec.Selector)), "spec", "selector")
	}
	if !equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports) {
		p.set(want.Spec.Ports, "spec", "ports")
	}
	// With this field, endpoints of leaders that are not ready would get requests.
	if have.Spec.PublishNotReadyAddresses {
		p.set(nil, "spec", "publishNotReadyAddresses")
	}
	if want.Spec.SessionAffinity != have.Spec.SessionAffinity ||
		!equality.Semantic.DeepEqual(have.Spec.SessionAffinityConfig, want.Spec.SessionAffinityConfig) {
		// The API server allows the config only with affinity ClientIP, so both change in one patch.
		p.set(want.Spec.SessionAffinity, "spec", "sessionAffinity")
		p.set(want.Spec.SessionAffinityConfig, "spec", "sessionAffinityConfig")
	}
	if policy := want.Spec.InternalTrafficPolicy; policy != nil && ptr.Deref(have.Spec.InternalTrafficPolicy, "") != *policy {
		p.set(policy, "spec", "internalTrafficPolicy") // without one the API server sets its default
	}
	if !equality.Semantic.DeepEqual(have.Spec.TrafficDistribution, want.Spec.TrafficDistribution) {
		p.set(want.Spec.TrafficDistribution, "spec", "trafficDistribution")
	}
	p.copyMetadata(have, want)
	return p
}
