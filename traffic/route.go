// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

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
	return objectList(spec, "rules")
}

// shares reports whether any of the rules that no release added is split or mirrored.
func (b backend) shares(rules []object) bool {
	return slices.ContainsFunc(rules, func(rule object) bool { return !isAddedRule(rule) && ruleLeadsTo(rule, b.isCanary) })
}

// canaries returns the canaries that releases have added to the rules, see CanariesAnnotation.
func (r Route) canaries() []string {
	return strings.FieldsFunc(r.Object.GetAnnotations()[CanariesAnnotation], func(c rune) bool { return c == ',' })
}

// backend returns the release's backend, with the canaries of other releases in the route, and its kind.
func (r Route) backend(s Setup) backend {
	b := s.backend()
	b.http = r.Key.Kind == KindHTTPRoute
	b.others = slices.DeleteFunc(r.canaries(), func(key string) bool { return key == b.key() })
	return b
}

// RoutePatch returns the merge patch that gives a route the desired rules and annotation, empty if it has them. With shrinkOnly no share of
// the canary grows, which is safe at any time. The patch does not mention the user's annotations, of which the object may lack some.
func RoutePatch(r Route, s Setup, d Desired, shrinkOnly bool) (map[string]any, error) {
	b, have := r.backend(s), r.rules()
	render := b.render
	if shrinkOnly {
		render = func(parts []part, d Desired) ([]object, error) { return b.renderShrunk(parts, d, have) }
	}
	rules, err := render(b.strip(have), d)
	if err != nil {
		return nil, unusableError("%s: %v", r.Key, err)
	}
	if excess := excessOf(rules, have); excess != "" {
		return nil, unusableError("%s would have %s: remove a header route or the mirror, or move rules to another route of the policy", r.Key, excess)
	}
	// The annotation lists the canary while it shares a rule. It still does if a user has restored the rules and it will share them again.
	canaries := b.others
	if d.Weight+d.Mirror > 0 && slices.Contains(r.canaries(), b.key()) || b.shares(rules) {
		canaries = slices.Sorted(slices.Values(append(slices.Clone(b.others), b.key())))
	}
	if reflect.DeepEqual(anySlice(have), anySlice(rules)) && slices.Equal(canaries, r.canaries()) {
		return nil, nil //nolint:nilnil // nothing changes
	}
	p := patch{}
	// The API defines rules as an atomic list, so the patch always has all of them.
	p.set(anySlice(rules), "spec", "rules")
	if len(canaries) > 0 {
		p.set(strings.Join(canaries, ","), "metadata", "annotations", CanariesAnnotation)
	} else if len(r.canaries()) > 0 {
		p.set(nil, "metadata", "annotations", CanariesAnnotation)
	}
	return p, nil
}

// RouteWeight returns the canary's share in the route, in percent: the largest of its rules.
func RouteWeight(r Route, s Setup) int {
	weight := 0
	for _, rule := range r.rules() {
		if !isAddedRule(rule) {
			weight = max(weight, s.backend().canaryPercent(objectList(rule, "backendRefs")))
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
		for _, ref := range objectList(rule, "backendRefs") {
			if b.isStable(ref) || b.isCanary(ref) {
				out = append(out, intField(ref, "port", 0))
			}
		}
	}
	return out
}

// leadsTo reports whether any rule of the route sends or mirrors requests to such a backend.
func (r Route) leadsTo(side func(ref object) bool) bool {
	return slices.ContainsFunc(r.rules(), func(rule object) bool { return ruleLeadsTo(rule, side) })
}

func ruleLeadsTo(rule object, side func(ref object) bool) bool {
	return slices.ContainsFunc(objectList(rule, "backendRefs"), side) ||
		slices.ContainsFunc(objectList(rule, "filters"), func(filter object) bool { return mirrorsTo(filter, side) })
}

// RouteServes reports whether any rule of the route leads to the stable backend, so that it can be split.
func RouteServes(r Route, s Setup) bool {
	b := s.backend()
	return slices.ContainsFunc(b.strip(r.rules()), func(p part) bool { return b.serves(objectList(p.rule, "backendRefs")) })
}

// NamedRules yields index and name of each rule that would get a header route, were it not for its name.
func NamedRules(r Route, p Policy) iter.Seq2[int, string] {
	b := r.backend(Setup{Namespace: r.Object.GetNamespace(), Policy: p})
	return func(yield func(int, string) bool) {
		for i, rule := range r.rules() {
			// At 100 % a rule has no ref to the stable backend, so the check looks at the rule without its split.
			if !isAddedRule(rule) && checkUnnamed(rule, HeaderRoute{}) != nil && b.serves(b.unsplit(objectList(rule, "backendRefs"))) &&
				!yield(i, stringField(rule, "name", "")) {
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

// unverifiedRoute returns which parent has not accepted the present generation of the route, and why. Both are empty if all have. Unless all
// rules must serve, it ignores backendRefs that are not resolved, and dropped rules.
func unverifiedRoute(r Route, allServe bool) (reason, message string) {
	var s routeStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, &s); err != nil {
		return ReasonRouteUnreadable, fmt.Sprintf("%s: %v", r.Key, err)
	}
	if allServe && len(s.Spec.ParentRefs) == 0 { // else no request comes through it, so it holds no abort
		return ReasonRouteNotAccepted, fmt.Sprintf("%s has no parentRefs, so no gateway serves it", r.Key)
	}
	// Each gateway routes by the rules that it has accepted, so one that lags keeps the old share in force.
	for _, parent := range s.Spec.ParentRefs {
		if reason, message := s.unverifiedParent(r, parent, allServe); reason != "" {
			return reason, fmt.Sprintf("%s: %s", r.Key, message)
		}
	}
	return "", ""
}

// unverifiedParent returns why a parent has not accepted the route, "" if it has. Several controllers may report on one parent.
func (s *routeStatus) unverifiedParent(r Route, parent gateway.ParentReference, allServe bool) (reason, message string) {
	reported := false
	for _, p := range s.Status.Parents {
		if !sameParent(p.ParentRef, parent, r.Object.GetNamespace()) {
			continue
		}
		reported = true
		// A gateway sets PartiallyInvalid only when it drops rules, so its absence does not mean that the status is late.
		reason, message := unmetCondition(p.Conditions, r.Object.GetGeneration(), ReasonRouteNotObserved, []expected{
			{string(gateway.RouteConditionAccepted), metav1.ConditionTrue, ReasonRouteNotAccepted, true, false},
			{string(gateway.RouteConditionResolvedRefs), metav1.ConditionTrue, ReasonRefsNotResolved, true, !allServe},
			{string(gateway.RouteConditionPartiallyInvalid), metav1.ConditionFalse, ReasonRouteNotAccepted, false, !allServe},
		})
		if reason != "" {
			// The entry may be that of a former controller of the gateway, which is not updated any more.
			return reason, fmt.Sprintf("%s (%s) %s", parent.Name, p.ControllerName, message)
		}
	}
	if !reported {
		return ReasonRouteNotObserved, fmt.Sprintf("%s has not reported a status yet", parent.Name)
	}
	return "", ""
}

// expected is a condition that a gateway reports of what it has accepted.
type expected struct {
	condition    string
	want         metav1.ConditionStatus
	reason       string // of another status
	set, ignored bool   // whether it is always set, and whether another status is ignored
}

// unmetCondition returns which condition is not as expected at a generation, "" if all are.
func unmetCondition(conditions []metav1.Condition, generation int64, notObserved string, all []expected) (reason, message string) {
	for _, c := range all {
		have := apimeta.FindStatusCondition(conditions, c.condition)
		observed := have != nil && have.ObservedGeneration >= generation
		switch {
		case !observed && c.set:
			return notObserved, fmt.Sprintf("has not observed generation %d", generation)
		case observed && have.Status != c.want && !c.ignored:
			return c.reason, fmt.Sprintf("reports %s=%s (%s): %s", c.condition, have.Status, have.Reason, have.Message)
		}
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
