// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// World is one look at the objects of a [Setup]: as they are in the cluster, never modified.
type World struct {
	// Stable and Canary are the two Services, nil where there is none.
	Stable, Canary *corev1.Service
	// StableReady and CanaryReady are the pods that are ready endpoints of the two Services, each once.
	StableReady, CanaryReady []string
	// Routes are those of the policy that exist.
	Routes map[Key]*unstructured.Unstructured
	// Ingresses are those of the policy that exist, and what stands where their canaries belong, by name.
	Ingresses map[string]*networkingv1.Ingress
	// StablePool and CanaryPool are the two InferencePools, nil where there is none.
	StablePool, CanaryPool *unstructured.Unstructured
	// Picker is the Service of the canary pool's endpoint picker, nil if there is none, PickerReady its ready endpoints.
	Picker      *corev1.Service
	PickerReady []string
}

// routes are the policy's routes that exist, in the policy's order.
func (w World) routes(s Setup) []Route {
	out := make([]Route, 0, len(s.Policy.Routes))
	for _, key := range s.Policy.Routes {
		if o := w.Routes[key]; o != nil {
			out = append(out, Route{key, o})
		}
	}
	return out
}

// leakedPod is a pod of the canary workload that the stable Service leads to, "" if there is none: the fence is set, but
// the endpoints do not follow it yet.
func (w World) leakedPod(s Setup) string {
	if s.InPlace() {
		return firstOf(w.StableReady, s.Updated)
	}
	return w.leads(s.Canary)
}

// leads is a leader of a workload that the stable Service leads to, "" if there is none.
func (w World) leads(to string) string {
	leader := regexp.MustCompile("^" + regexp.QuoteMeta(to) + "-[0-9]+$")
	if i := slices.IndexFunc(w.StableReady, leader.MatchString); i >= 0 {
		return w.StableReady[i]
	}
	return ""
}

// laggingPod is a pod that keeps requests from returning to the stable Service once that selects the canary's leaders: it does
// not lead to all of them yet, or to others still. "" if there is none.
func (w World) laggingPod(s Setup, d Desired) string {
	if !w.shares(s) && !d.Prepared {
		return "" // requests have returned
	}
	if pod := w.unreachedPod(s, d); pod != "" {
		return pod
	}
	return w.leads(s.Stable)
}

// unreachedPod is a pod of the update revision that may get requests by a share of its own, but gets none by the stable Service
// yet: were the share to go, or another group, requests would be left to the few others. "" if there is none.
func (w World) unreachedPod(s Setup, d Desired) string {
	if !w.shares(s) && (!d.Prepared || w.Stable == nil) {
		return ""
	}
	for _, pod := range w.CanaryReady {
		if !slices.Contains(w.StableReady, pod) {
			return pod
		}
	}
	return ""
}

// shares says whether any request goes to the canary's Service or pool.
func (w World) shares(s Setup) bool {
	uses := func(r Route) bool { return RouteUses(r, s) }
	return slices.ContainsFunc(w.routes(s), uses) || slices.ContainsFunc(s.Policy.Ingresses, func(name string) bool {
		o := w.Ingresses[canaryName(name)]
		return o != nil && madeFor(o, s)
	})
}

// firstOf is the first of some pods that is among others, "" if none is.
func firstOf(pods, among []string) string {
	if i := slices.IndexFunc(pods, func(pod string) bool { return slices.Contains(among, pod) }); i >= 0 {
		return pods[i]
	}
	return ""
}

// weight is the canary's share in force: the largest of all routes and Ingresses.
func (w World) weight(s Setup) int {
	weight := 0
	for _, r := range w.routes(s) {
		weight = max(weight, RouteWeight(r, s))
	}
	for _, name := range s.Policy.Ingresses {
		if o := w.Ingresses[canaryName(name)]; o != nil && madeFor(o, s) {
			weight = max(weight, shareOf(o.Annotations).weight)
		}
	}
	return weight
}

// lackingPool is the reason why requests for the canary's pool would fail, "" if they would not.
func (w World) lackingPool(s Setup) string {
	switch {
	case s.Policy.Pool == nil:
		return ""
	case w.CanaryPool == nil || w.CanaryPool.GetDeletionTimestamp() != nil:
		return ReasonPoolMissing
	case len(w.PickerReady) == 0:
		return ReasonNoPicker
	}
	return ""
}
