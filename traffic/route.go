// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"iter"
	"reflect"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
)

// Route is an HTTPRoute or a GRPCRoute. The fields that are used are the same in both.
type Route struct {
	Key Key
	// Object is the route as it is in the cluster. It is never modified.
	Object *unstructured.Unstructured
}

func (r Route) rules() []object {
	spec, _ := r.Object.Object["spec"].(object)
	return list(spec, "rules")
}

// RouteRules returns the desired rules of the route, and whether they differ from the present ones.
func RouteRules(r Route, s Setup, d Desired) (rules []any, changed bool, err error) {
	b, have := s.backend(), r.rules()
	want, err := b.render(b.strip(have), d)
	return r.compare(have, want, err)
}

// ShrunkRouteRules is RouteRules, but no share of the canary grows, which is safe at any time.
func ShrunkRouteRules(r Route, s Setup, d Desired) (rules []any, changed bool, err error) {
	b, have := s.backend(), r.rules()
	want, err := b.renderShrunk(b.strip(have), d, have)
	return r.compare(have, want, err)
}

func (r Route) compare(have, want []object, err error) (rules []any, changed bool, _ error) {
	if err != nil {
		return nil, false, unusable("%s: %v", r.Key, err)
	}
	return anySlice(want), !reflect.DeepEqual(anySlice(have), anySlice(want)), nil
}

// RouteWeight returns the canary's share in the route, in percent: the largest of its rules.
func RouteWeight(r Route, s Setup) int {
	weight := 0
	for _, rule := range r.rules() {
		if !added(rule) {
			weight = max(weight, s.backend().share(list(rule, "backendRefs")))
		}
	}
	return weight
}

// RouteUses reports whether any rule of the route leads to the canary.
func RouteUses(r Route, s Setup) bool { return r.leadsTo(s.backend().isCanary) }

// ports returns the ports of both backends to which the route sends requests.
func (r Route) ports(b backend) []int64 {
	var out []int64
	for _, rule := range r.rules() {
		for _, ref := range list(rule, "backendRefs") {
			if b.isStable(ref) || b.isCanary(ref) {
				out = append(out, number(ref, "port", 0))
			}
		}
	}
	return out
}

// leadsTo reports whether any rule of the route sends or mirrors requests to such a backend.
func (r Route) leadsTo(side func(ref object) bool) bool {
	return slices.ContainsFunc(r.rules(), func(rule object) bool {
		return slices.ContainsFunc(list(rule, "backendRefs"), side) ||
			slices.ContainsFunc(list(rule, "filters"), func(filter object) bool { return mirrorsTo(filter, side) })
	})
}

// RouteServes reports whether any rule of the route leads to the stable backend, so that it can be split.
func RouteServes(r Route, s Setup) bool {
	b := s.backend()
	return slices.ContainsFunc(b.strip(r.rules()), func(p part) bool { return b.serves(list(p.rule, "backendRefs")) })
}

// NamedRules yields index and name of each rule that would get a header route, were it not for its name.
func NamedRules(r Route, p Policy) iter.Seq2[int, string] {
	b := Setup{Namespace: r.Object.GetNamespace(), Policy: p}.backend()
	return func(yield func(int, string) bool) {
		for i, rule := range r.rules() {
			if !added(rule) && checkUnnamed(rule, HeaderRoute{}) != nil && b.serves(b.merge(list(rule, "backendRefs"))) &&
				!yield(i, text(rule, "name", "")) {
				return
			}
		}
	}
}

// routeStatus is the part of a route's status that is read, the same for HTTPRoute and GRPCRoute.
type routeStatus struct {
	Spec struct {
		ParentRefs []gateway.ParentReference `json:"parentRefs"`
	} `json:"spec"`
	Status gateway.RouteStatus `json:"status"`
}

// RouteVerified reports whether every parent of the route has accepted its present generation. If not, reason and message
// say which has not and why.
func RouteVerified(r Route) (ok bool, reason, message string) { return routeVerified(r, true) }

// routeVerified is RouteVerified. Unless all rules must serve, it ignores backendRefs that are not resolved, and dropped rules.
func routeVerified(r Route, allServe bool) (ok bool, reason, message string) {
	var s routeStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, &s); err != nil {
		return false, ReasonRouteUnreadable, fmt.Sprintf("%s: %v", r.Key, err)
	}
	if len(s.Spec.ParentRefs) == 0 {
		return false, ReasonRouteNotAccepted, fmt.Sprintf("%s has no parentRefs, so no gateway serves it", r.Key)
	}
	for _, parent := range s.Spec.ParentRefs {
		if reason, message := s.parent(r, parent, allServe); reason != "" {
			return false, reason, fmt.Sprintf("%s: %s", r.Key, message)
		}
	}
	return true, "", ""
}

// parent returns why a parent has not accepted the route, "" if it has. Several controllers may report on one parent.
func (s *routeStatus) parent(r Route, parent gateway.ParentReference, allServe bool) (reason, message string) {
	reported := false
	for _, p := range s.Status.Parents {
		if !sameParent(p.ParentRef, parent, r.Object.GetNamespace()) {
			continue
		}
		reported = true
		for _, c := range []struct {
			condition    gateway.RouteConditionType
			want         metav1.ConditionStatus
			reason       string
			set, ignored bool // whether it is always set, and whether another status is ignored
		}{
			{gateway.RouteConditionAccepted, metav1.ConditionTrue, ReasonRouteNotAccepted, true, false},
			{gateway.RouteConditionResolvedRefs, metav1.ConditionTrue, ReasonRefsNotResolved, true, !allServe},
			{gateway.RouteConditionPartiallyInvalid, metav1.ConditionFalse, ReasonRouteNotAccepted, false, !allServe},
		} {
			have := apimeta.FindStatusCondition(p.Conditions, string(c.condition))
			observed := have != nil && have.ObservedGeneration >= r.Object.GetGeneration()
			switch {
			case !observed && c.set:
				return ReasonRouteNotObserved, fmt.Sprintf("%s has not observed generation %d", parent.Name, r.Object.GetGeneration())
			case observed && have.Status != c.want && !c.ignored:
				return c.reason, fmt.Sprintf("%s reports %s=%s (%s): %s", parent.Name, c.condition, have.Status, have.Reason, have.Message)
			}
		}
	}
	if !reported {
		return ReasonRouteNotObserved, fmt.Sprintf("%s has not reported a status yet", parent.Name)
	}
	return "", ""
}

// sameParent compares references with the API's defaults, which may be set in the status and not in the spec, or vice versa.
func sameParent(a, b gateway.ParentReference, namespace string) bool {
	return a.Name == b.Name &&
		ptr.Deref(a.Group, gateway.GroupName) == ptr.Deref(b.Group, gateway.GroupName) &&
		ptr.Deref(a.Kind, "Gateway") == ptr.Deref(b.Kind, "Gateway") &&
		ptr.Deref(a.Namespace, gateway.Namespace(namespace)) == ptr.Deref(b.Namespace, gateway.Namespace(namespace)) &&
		ptr.Deref(a.SectionName, "") == ptr.Deref(b.SectionName, "") &&
		ptr.Deref(a.Port, 0) == ptr.Deref(b.Port, 0)
}
