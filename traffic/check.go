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

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Check says whether a release can begin: whether its objects are there and can do what is needed of them. It is not for
// a release that has begun, which finds its own traces.
func Check(s Setup, w World) error {
	if err := checkStable(s, w.Stable); err != nil {
		return err
	}
	if w.Canary != nil && !madeFor(w.Canary, s) {
		return taken(s, Key{KindService, s.Policy.CanaryService}, otherService)
	}
	if err := checkPool(s, w); err != nil {
		return err
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
	for _, name := range s.Policy.Ingresses {
		if err := checkIngress(s, name, w); err != nil {
			return err
		}
	}
	return nil
}

// checkStable sees to it that the Service selects all stable leaders and no workers. That it would select the canary's
// leaders too is normal; the fence is for that.
func checkStable(s Setup, svc *corev1.Service) error {
	switch {
	case svc == nil:
		return missing(s, Key{KindService, s.Policy.StableService})
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return unusable("Service %s has type ExternalName, which selects no pods: use one of type ClusterIP that selects the leaders of %s", svc.Name, s.Stable)
	}
	return serviceSelector(svc).check(s)
}

// check sees to it that all stable leaders are selected, and nothing that does not serve.
func (sel selector) check(s Setup) error {
	field := map[string]string{KindService: "spec.selector", KindInferencePool: strings.Join(poolLabels, ".")}[sel.of.Kind]
	if len(sel.labels) == 0 {
		return unusable("%s has no %s, so it does not select the leaders of %s: add %s",
			sel.of, field, s.Stable, labels(s.StablePin, leaders))
	}
	if wrong := unmatched(sel.labels, s.Leader); len(wrong) > 0 {
		return unusable("%s selects no leader of %s: its %s asks for %s; the leaders have %s. Correct the selector, or label the leader template",
			sel.of, s.Stable, field, labels(wrong), found(wrong, s.Leader))
	}
	if s.Worker != nil && len(unmatched(sel.labels, s.Worker)) == 0 {
		return unusable("%s selects the workers of %s too, which serve nothing: add %s to its %s", sel.of, s.Stable, labels(leaders), field)
	}
	if wrong := unmatched(sel.labels, merged(s.Leader, s.CanaryLeader)); len(wrong) > 0 {
		return unusable("%s asks for %s in its %s, but policy.canary_leader_metadata gives canary leaders %s: leave these labels out of the policy",
			sel.of, labels(wrong), field, found(wrong, s.CanaryLeader))
	}
	if by := SyncedBy(sel.marked); s.Adopts && by != "" && sel.labels[lws.SetNameLabelKey] == s.Stable {
		return unusable("%s selects %s=%q and is applied by a tool (it carries %s), which would select the old name again once %s is adopted: "+
			"select by a label of your own instead, or promote in place", sel.of, lws.SetNameLabelKey, s.Stable, by, s.Canary)
	}
	_, _, _, err := sel.fence(s, Desired{})
	return err
}

func checkRoute(s Setup, r Route, began bool) error {
	b := s.backend()
	if !began && RouteUses(r, s) {
		otherwise := "name another Service in " + policyField + ".canary_service"
		if s.Policy.Pool != nil {
			otherwise = "rename that pool"
		}
		return unusable("%s already leads to %s %s, which is where the canary's %s belongs: remove that backendRef, or %s",
			r.Key, b.kind, b.canary, b.kind, otherwise)
	}
	if !RouteServes(r, s) {
		return unusable("%s has no rule with a backendRef to %s %s in namespace %s and a weight above 0, so there is nothing to split: add one, or take the route out of the policy",
			r.Key, b.kind, b.stable, s.Namespace)
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

// unusable is the error about an object that the policy names and that can't do what the release needs of it: a
// FAILED_PRECONDITION, since a person must change the object or the policy.
func unusable(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, format, args...)
}

// missing is the error about an object that the policy names and that does not exist.
func missing(s Setup, k Key) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
		"%s names %s, which does not exist in namespace %s: create it, or correct the policy", policyField, k, s.Namespace)
}

// unsupported is the error about a request that the objects of the policy can't express: the caller must ask for less, or
// name other objects in the policy.
func unsupported(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, format, args...)
}

// taken is the error about an object of others that has the name of a generated one. otherwise says what to do if it
// can't be deleted.
func taken(s Setup, k Key, otherwise string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"%s %s/%s was not made for %s, but is where its canary's %s belongs: delete it, or %s",
		k.Kind, s.Namespace, k.Name, s.Stable, k.Kind, otherwise)
}

// otherService is the way out of a name that is taken.
const otherService = "name another in " + policyField + ".canary_service"
