// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Route is an HTTPRoute or a GRPCRoute. They differ in nothing that matters here.
type Route struct {
	Key Key
	// Object is the route as it is in the cluster. It is never modified.
	Object *unstructured.Unstructured
}

func (r Route) rules() []object {
	spec, _ := r.Object.Object["spec"].(object)
	return list(spec, "rules")
}

// RouteRules returns the rules that the route should have, and whether they differ from those it has.
func RouteRules(r Route, s Setup, d Desired) (rules []any, changed bool, err error) {
	b, have := s.backend(), r.rules()
	want, err := b.render(b.strip(have), d)
	return r.compare(have, want, err)
}

// RouteRetreat is RouteRules, but no rule gives more to the canary than it does: what can be done at any time.
func RouteRetreat(r Route, s Setup, d Desired) (rules []any, changed bool, err error) {
	b, have := s.backend(), r.rules()
	want, err := b.renderLess(b.strip(have), d, have)
	return r.compare(have, want, err)
}

func (r Route) compare(have, want []object, err error) (rules []any, changed bool, _ error) {
	if err != nil {
		return nil, false, unusable("%s: %v", r.Key, err)
	}
	return anys(want), !reflect.DeepEqual(anys(have), anys(want)), nil
}

// RouteWeight is the canary's share that the route asks its gateway for: the largest of its rules.
func RouteWeight(r Route, s Setup) int {
	weight := 0
	for _, rule := range r.rules() {
		if !added(rule) {
			weight = max(weight, s.backend().share(list(rule, "backendRefs")))
		}
	}
	return weight
}

// RouteUses says whether any rule of the route leads to the canary.
func RouteUses(r Route, s Setup) bool { return r.leadsTo(s.backend().isCanary) }

// leadsTo says whether any rule of the route sends requests to such a backend, or copies of them.
func (r Route) leadsTo(side func(ref object) bool) bool {
	return slices.ContainsFunc(r.rules(), func(rule object) bool {
		return slices.ContainsFunc(list(rule, "backendRefs"), side) ||
			slices.ContainsFunc(list(rule, "filters"), func(filter object) bool { return mirrorsTo(filter, side) })
	})
}

// RouteServes says whether any rule of the route leads to the stable side: whether there is anything to share.
func RouteServes(r Route, s Setup) bool {
	b := s.backend()
	return slices.ContainsFunc(b.strip(r.rules()), func(p part) bool { return b.serves(list(p.rule, "backendRefs")) })
}
