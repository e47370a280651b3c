// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Check says whether a release can begin: whether its objects are there and can do what is needed of them. It is not for
// a release that has begun, which finds its own traces.
func Check(s Setup, w World) error {
	if err := checkStable(s, w.Stable); err != nil {
		return err
	}
	if w.Canary != nil && !madeFor(w.Canary, s) {
		return taken(s)
	}
	for _, key := range s.Policy.Routes {
		object := w.Routes[key]
		if object == nil {
			return missing(s, key)
		}
		if err := checkRoute(s, Route{key, object}, w.Canary != nil); err != nil {
			return err
		}
	}
	return nil
}

// checkStable sees to it that the Service selects all stable leaders and no workers. That it would select the canary's
// leaders too is normal; the fence is for that.
func checkStable(s Setup, svc *corev1.Service) error {
	if svc == nil {
		return missing(s, Key{KindService, s.Policy.StableService})
	}
	selector := svc.Spec.Selector
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return unusable("Service %s has type ExternalName, which selects no pods: use one of type ClusterIP that selects the leaders of %s", svc.Name, s.Stable)
	case len(selector) == 0:
		return unusable("Service %s has no spec.selector, so it does not select the leaders of %s: add %s",
			svc.Name, s.Stable, labels(s.StablePin, map[string]string{lws.WorkerIndexLabelKey: leaderIndex}))
	}
	if wrong := unmatched(selector, s.Leader); len(wrong) > 0 {
		return unusable("Service %s selects no leader of %s: its spec.selector asks for %s; the leaders have %s. Correct the selector, or label the leader template",
			svc.Name, s.Stable, labels(wrong), found(wrong, s.Leader))
	}
	if s.Worker != nil && len(unmatched(selector, s.Worker)) == 0 {
		return unusable("Service %s selects the workers of %s too, which serve nothing: add %s to its spec.selector",
			svc.Name, s.Stable, labels(map[string]string{lws.WorkerIndexLabelKey: leaderIndex}))
	}
	if wrong := unmatched(selector, merged(s.Leader, s.CanaryLeader)); len(wrong) > 0 {
		return unusable("Service %s asks for %s in its spec.selector, but policy.canary_leader_metadata gives canary leaders %s: leave these labels out of the policy",
			svc.Name, labels(wrong), found(wrong, s.CanaryLeader))
	}
	_, _, err := Fence(svc, s)
	return err
}

func checkRoute(s Setup, r Route, began bool) error {
	if !began && RouteUses(r, s) {
		return unusable("%s already leads to Service %s, which is where the canary's Service belongs: remove that backendRef, or name another Service in %s.canary_service",
			r.Key, s.Policy.CanaryService, policyField)
	}
	if !RouteServes(r, s) {
		return unusable("%s has no rule with a backendRef to Service %s in namespace %s and a weight above 0, so there is nothing to split: add one, or take the route out of the policy",
			r.Key, s.Policy.StableService, s.Namespace)
	}
	// Any percentage finds the weights that can't be split.
	_, _, err := RouteRules(r, s, Desired{Weight: 1})
	return err
}

// unmatched are the labels that a selector asks for and pods do not have.
func unmatched(selector, pods map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range selector {
		if have, ok := pods[k]; !ok || have != v {
			out[k] = v
		}
	}
	return out
}

// labels lists labels as they stand in a manifest.
func labels(sets ...map[string]string) string {
	var out []string
	for _, set := range sets {
		for _, k := range slices.Sorted(maps.Keys(set)) {
			out = append(out, fmt.Sprintf("%s: %q", k, set[k]))
		}
	}
	return strings.Join(out, ", ")
}

// found lists what pods have where a selector asks for something else.
func found(wrong, pods map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(wrong)) {
		if have, ok := pods[k]; ok {
			out = append(out, fmt.Sprintf("%s: %q", k, have))
		} else {
			out = append(out, "no label "+k)
		}
	}
	return strings.Join(out, ", ")
}

func merged(base, more map[string]string) map[string]string {
	out := maps.Clone(base)
	maps.Copy(out, more)
	return out
}
