// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// ruleServed: a Service that gets requests keeps a ready leader, and one without gets no more requests, whatever the driver and LWS change.
// Leaders that are no longer ready by themselves, and those above the user's replicas, are taken by others.
const ruleServed rule = "a share goes to ready leaders, and they stay as long as it does"

// side is a Service that gets requests.
type side struct {
	// share is in percent.
	share, ready int
}

// stepIngress notes how an Ingress routes.
func (r *replay) stepIngress(i *networkingv1.Ingress, h clusterEvent) {
	if h.deleted {
		delete(r.ingresses, i.Name)
	} else {
		r.ingresses[i.Name] = i
	}
	weight, canary := canaryWeight(i)
	r.lines = append(r.lines, fmt.Sprintf("%d ingress %s deleted=%t canary=%t share=%d", h.version, i.Name, h.deleted, canary, weight))
}

// stepService notes what a Service selects.
func (r *replay) stepService(s *corev1.Service, h clusterEvent) {
	if h.deleted {
		delete(r.services, s.Name)
	} else {
		r.services[s.Name] = s
	}
	r.lines = append(r.lines, fmt.Sprintf("%d service %s deleted=%t selects %s", h.version, s.Name, h.deleted, asJSON(s.Spec.Selector)))
}

// canaryWeight returns the percentage of requests that a canary Ingress routes, false if it is none.
func canaryWeight(i *networkingv1.Ingress) (int, bool) {
	weight, _ := strconv.Atoi(i.Annotations["nginx.ingress.kubernetes.io/canary-weight"])
	return weight, i.Annotations["nginx.ingress.kubernetes.io/canary"] == "true"
}

// backend returns the Service that an Ingress of these tests routes to.
func backend(i *networkingv1.Ingress) string {
	if i == nil || i.Spec.DefaultBackend == nil || i.Spec.DefaultBackend.Service == nil {
		return ""
	}
	return i.Spec.DefaultBackend.Service.Name
}

// sides returns the Services that Ingresses route to.
func (r *replay) sides() map[string]side {
	all := map[string]side{}
	for _, i := range r.ingresses {
		if _, canary := canaryWeight(i); !canary {
			all[backend(i)] = side{share: 100}
		}
	}
	for name, i := range r.ingresses {
		if weight, canary := canaryWeight(i); canary {
			all[backend(i)] = side{share: weight}
			all[backend(r.ingresses[strings.TrimSuffix(name, "-canary")])] = side{share: 100 - weight} // of the user's Ingress
		}
	}
	delete(all, "")
	for name, s := range all {
		service := r.services[name]
		if service == nil || len(service.Spec.Selector) == 0 {
			continue
		}
		selected := labels.SelectorFromSet(service.Spec.Selector)
		for _, p := range r.pods {
			if p.DeletionTimestamp == nil && podReady(p) && selected.Matches(labels.Set(p.Labels)) {
				s.ready++
			}
		}
		all[name] = s
	}
	return all
}

// checkServed checks a change that is not the environment's.
func (r *replay) checkServed(environment bool) {
	if len(r.ingresses) == 0 {
		return
	}
	before := r.routed
	r.routed = r.sides()
	if environment {
		return
	}
	able := slices.ContainsFunc(slices.Collect(maps.Values(r.routed)), func(s side) bool { return s.ready > 0 })
	for name, s := range r.routed {
		was, known := before[name]
		r.check(ruleServed, s.share == 0 || s.ready > 0 || s.share <= was.share && was.ready == 0 || !known && s.share == 100 || !able,
			"%s gets %d %% of the requests, and %d of its leaders are ready (before: %d %%, %d)", name, s.share, s.ready, was.share, was.ready)
	}
}

// byEnvironment reports whether a change of a pod is neither the driver's nor LWS's: it is no longer ready, or the user scaled down.
func (r *replay) byEnvironment(old, p *corev1.Pod, deleted bool) bool {
	if p.DeletionTimestamp == nil && !deleted {
		return old != nil && podReady(old) && !podReady(p)
	}
	index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
	if f := r.roles[roleKey(p.Labels)]; f != nil {
		return err != nil || index >= f.replicas
	}
	s := r.sets[p.Labels[lws.SetNameLabelKey]]
	if s != nil && s.Labels[roleLabel] != "" {
		s = r.sets[s.Labels[stableLabel]]
	}
	return err != nil || s == nil || index >= int(replicasOf(s))
}
