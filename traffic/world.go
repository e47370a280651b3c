// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// World is a snapshot of the objects of a [Setup]. They are never modified.
type World struct {
	// Stable and Canary are the two Services, nil if they don't exist.
	Stable, Canary *corev1.Service
	// StableReady and CanaryReady are the pods that are ready endpoints of the two Services, each once. CanaryPortless are those of
	// the canary's that lack one of RoutedPorts.
	StableReady, CanaryReady []string
	CanaryPortless           []string `json:",omitempty"`
	// Routes are those of the policy that exist.
	Routes map[Key]*unstructured.Unstructured
	// Ingresses are those of the policy that exist, and those with the names of their canaries, by name.
	Ingresses map[string]*networkingv1.Ingress
	// StablePool and CanaryPool are the two InferencePools, nil if they don't exist.
	StablePool, CanaryPool *unstructured.Unstructured
	// Picker is the Service of the canary pool's endpoint picker, nil if it does not exist, PickerReady its ready endpoints.
	Picker      *corev1.Service
	PickerReady []string
	// Refused is the object whose write the API server refused last.
	Refused Key `json:",omitzero"`
}

// routes returns the policy's routes that exist, in the policy's order.
func (w World) routes(s Setup) []Route {
	out := make([]Route, 0, len(s.Policy.Routes))
	for _, key := range s.Policy.Routes {
		if o := w.Routes[key]; o != nil {
			out = append(out, Route{key, o})
		}
	}
	return out
}

// RoutedPorts returns the names of the canary Service's ports to which routes and Ingresses send requests. If the Service names a
// container port that a pod does not have, the pod is a ready endpoint all the same, but without that port.
func (w World) RoutedPorts(s Setup) []string {
	if w.Canary == nil || s.Policy.Pool != nil { // a pool has ports of its own
		return nil
	}
	numbers, names := map[int64]bool{}, map[string]bool{}
	for _, r := range w.routes(s) {
		for _, port := range r.ports(s.backend()) {
			numbers[port] = true
		}
	}
	for _, name := range s.Policy.Ingresses {
		if o := w.Ingresses[name]; o != nil {
			for _, port := range ingressPorts(o, s) {
				numbers[int64(port.Number)], names[port.Name] = true, true
			}
		}
	}
	var out []string
	for _, port := range w.Canary.Spec.Ports {
		if numbers[int64(port.Port)] || port.Name != "" && names[port.Name] {
			out = append(out, port.Name)
		}
	}
	return out
}

// leakedPod returns a canary pod that is an endpoint of the stable Service, "" if none is. With isolation, it means that the
// endpoints have not caught up with the selector.
func (w World) leakedPod(s Setup) string {
	if s.InPlace() {
		// In place, the names of both sides' leaders have one form, so only observed revisions tell them apart.
		return firstIn(w.StableReady, s.Updated)
	}
	return w.leaderBehindStable(s.CanaryPin)
}

// leaderBehindStable returns a leader of one side that is an endpoint of the stable Service, "" if none is.
func (w World) leaderBehindStable(pin map[string]string) string {
	if i := slices.IndexFunc(w.StableReady, leadersOf(pin).MatchString); i >= 0 {
		return w.StableReady[i]
	}
	return ""
}

// leadersOf returns what the names of the leaders with a pin match: LWS numbers them by their workload's name.
func leadersOf(pin map[string]string) *regexp.Regexp {
	if role := pin[disaggregated.RoleLabelKey]; role != "" {
		// The leaders of a role have the revision in their names, so those of another revision don't match.
		return childLeaders(pin[disaggregated.SetNameLabelKey], regexp.QuoteMeta(pin[disaggregated.RevisionLabelKey]), role)
	}
	return regexp.MustCompile("^" + regexp.QuoteMeta(pin[lws.SetNameLabelKey]) + "-[0-9]+$")
}

// childLeaders matches the leaders of a role of a DisaggregatedSet at revisions. LWS v0.9.0 has no number of a slice in the name.
func childLeaders(set, revisions, role string) *regexp.Regexp {
	return regexp.MustCompile("^" + regexp.QuoteMeta(set) + "-([0-9]+-)?" + revisions + "-" + regexp.QuoteMeta(role) + "-[0-9]+$")
}

// foreignPod returns a ready endpoint of the stable Service that is a leader neither of the workload nor of a canary of it, ""
// if there is none. A canary's name ends in characters of LWS's hashes, which have few letters so that they are no words: llm-server is another
// workload.
func (w World) foreignPod(s Setup) string {
	own := regexp.MustCompile("^(" + regexp.QuoteMeta(s.Stable) + "|" + regexp.QuoteMeta(s.Canary) + "|" + regexp.QuoteMeta(s.Stable) + "-[bcdfghjklmnpqrstvwxz2456789]{6})-[0-9]+$")
	if role := s.StablePin[disaggregated.RoleLabelKey]; role != "" {
		own = childLeaders(s.Stable, "[0-9a-f]{8}", role)
	}
	if i := slices.IndexFunc(w.StableReady, func(pod string) bool { return !own.MatchString(pod) }); i >= 0 {
		return w.StableReady[i]
	}
	return ""
}

// laggingPod returns a pod for which the endpoints of the stable Service have not caught up with a handover, "" if there is
// none: a canary leader that is no endpoint yet, or a stable leader that still is one.
func (w World) laggingPod(s Setup, d Desired) string {
	if !w.sendsToCanary(s) && !d.Prepared {
		return "" // requests have returned
	}
	if pod := w.unreachedPod(s, d); pod != "" {
		return pod
	}
	return w.leaderBehindStable(s.StablePin)
}

// unreachedPod returns a ready canary pod that is no endpoint of the stable Service yet, "" if there is none. If the canary's
// share were removed, or another group deleted, the few other endpoints would have to serve all requests.
func (w World) unreachedPod(s Setup, d Desired) string {
	if !w.sendsToCanary(s) && (!d.Prepared || w.Stable == nil) {
		// Without a share no request depends on the stable Service having these endpoints.
		return ""
	}
	for _, pod := range w.CanaryReady {
		if !slices.Contains(w.StableReady, pod) {
			return pod
		}
	}
	return ""
}

// sendsToCanary reports whether any route or Ingress sends requests to the canary's Service or pool.
func (w World) sendsToCanary(s Setup) bool {
	uses := func(r Route) bool { return RouteUses(r, s) }
	return slices.ContainsFunc(w.routes(s), uses) || slices.ContainsFunc(s.Policy.Ingresses, func(name string) bool {
		o := w.Ingresses[canaryName(name)]
		// A canary Ingress exists only while it has a share.
		return o != nil && madeFor(o, s)
	})
}

// firstIn returns the first pod that is among others, "" if none is.
func firstIn(pods, among []string) string {
	if i := slices.IndexFunc(pods, func(pod string) bool { return slices.Contains(among, pod) }); i >= 0 {
		return pods[i]
	}
	return ""
}

// canaryWeight returns the canary's present share: the largest of all routes and Ingresses.
func (w World) canaryWeight(s Setup) int {
	weight := 0
	for _, r := range w.routes(s) {
		weight = max(weight, RouteWeight(r, s))
	}
	for _, name := range s.Policy.Ingresses {
		if o := w.Ingresses[canaryName(name)]; o != nil && madeFor(o, s) {
			weight = max(weight, weightIn(o.Annotations))
		}
	}
	return weight
}

// canaryPoolUnusable returns the reason why requests to the canary's pool would fail, "" if they would not.
func (w World) canaryPoolUnusable(s Setup) string {
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

// canaryBroken returns why gateways drop all requests to the canary's pool, "" if they do not. A pool that is missing is created by the next
// write.
func (w World) canaryBroken(s Setup) string {
	if w.canaryPoolUnusable(s) != ReasonNoPicker || stringField(pickerOf(w.CanaryPool), "failureMode", "") == failOpen {
		return ""
	}
	return w.noPicker(s)
}

func (w World) noPicker(s Setup) string {
	return fmt.Sprintf("Service %s, the endpoint picker of InferencePool %s, has no ready endpoint", s.Policy.Pool.Picker, s.Policy.Pool.Canary)
}
