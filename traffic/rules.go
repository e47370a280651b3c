// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The rules of a route are computed in two steps: strip restores the user's rules from whatever a release made of them, and
// render applies what is desired. So every change starts from the user's rules, and there is drift if and only if
// render(strip(rules)) differs from rules.

// part is a rule without the changes of this release, and what these were.
type part struct {
	rule object
	// otherRelease: another release added the rule, which must not be changed.
	otherRelease bool
	// share and mirror are the canary's, in percent. The mirror filter is still in the rule, so that it keeps its position.
	share, mirror int
	// factor is by what a split multiplies the weights, see backend.merge.
	factor int64
}

// strip returns the user's rules and those that other releases added.
func (b backend) strip(rules []object) []part {
	out := make([]part, 0, len(rules))
	for _, rule := range rules {
		switch {
		case b.added(rule):
			continue
		case isAddedRule(rule):
			out = append(out, part{rule: rule, otherRelease: true})
			continue
		}
		rule = cloneObject(rule)
		refs := objectList(rule, "backendRefs")
		p := part{rule: rule, share: b.canaryPercent(refs), mirror: b.mirrorPercent(rule)}
		refs, p.factor = b.merge(refs)
		setRefs(rule, refs)
		out = append(out, p)
	}
	return out
}

// render returns the rules that share requests as desired.
func (b backend) render(parts []part, d Desired) ([]object, error) {
	return b.renderWithin(parts, func(part) Desired { return d })
}

// renderShrunk is render, but no share of the canary grows and no header route gets more requests, which is safe whatever the state
// of the canary. have are the current rules.
func (b backend) renderShrunk(parts []part, d Desired, have []object) ([]object, error) {
	return b.renderWithin(parts, func(p part) Desired {
		shrunk := d
		shrunk.Weight, shrunk.Mirror = min(d.Weight, p.share), min(d.Mirror, p.mirror)
		shrunk.HeaderRoutes = slices.DeleteFunc(slices.Clone(d.HeaderRoutes), func(h HeaderRoute) bool { return !b.hasHeaderRule(have, p.rule, h) })
		return shrunk
	})
}

// hasHeaderRule reports whether the current rules have the header route for the requests of one of the user's rules, and may keep it.
func (b backend) hasHeaderRule(have []object, rule object, h HeaderRoute) bool {
	matches, err := b.combineMatches(rule, h)
	return err == nil && checkUnnamed(rule, h) == nil && slices.ContainsFunc(have, func(other object) bool {
		return b.added(other) && strings.HasSuffix(stringField(other, "name", ""), "."+h.Name) && reflect.DeepEqual(objectList(other, "matches"), matches)
	})
}

func (b backend) renderWithin(parts []part, limit func(part) Desired) ([]object, error) {
	out := make([]object, 0, len(parts))
	index := 0 // among the user's rules
	for _, p := range parts {
		if p.otherRelease {
			out = append(out, p.rule)
			continue
		}
		next, before, err := b.renderRule(p, b.rulesFor(index), limit(p))
		if err != nil {
			return nil, err
		}
		out = append(insertSorted(out, before), next)
		index++
	}
	return out, nil
}

// renderRule returns a rule as desired, and its header rules, which belong before it.
func (b backend) renderRule(p part, prefix string, d Desired) (next object, before []object, err error) {
	refs := objectList(p.rule, "backendRefs")
	plain := cloneObject(p.rule)
	b.setMirror(plain, nil, 0)
	if !b.serves(refs) {
		return plain, nil, nil
	}
	if before, err = b.headerRules(plain, prefix, d.HeaderRoutes); err != nil {
		return nil, nil, err
	}
	split, err := b.split(refs, d.Weight, p.factor)
	if err != nil {
		return nil, nil, err
	}
	next = plain
	if d.Weight < 100 && d.Mirror > 0 {
		next = cloneObject(p.rule)
		b.setMirror(next, refs, d.Mirror)
	}
	setRefs(next, split)
	return next, before, nil
}

// insertSorted appends header rules to those that other releases added for the same rule, sorted by name: the releases agree
// on the order without knowing of each other.
func insertSorted(rules, more []object) []object {
	for _, rule := range more {
		at := len(rules)
		for at > 0 && isAddedRule(rules[at-1]) && byName(rules[at-1], rule) > 0 {
			at--
		}
		rules = slices.Insert(rules, at, rule)
	}
	return rules
}

// routeLimits are the Gateway API's limits on what a route has, as far as a release adds to it. That on backendRefs is checked in split.
var routeLimits = []struct {
	what  string
	most  int
	count func(rules []object) int
}{
	{"rules", 16, func(rules []object) int { return len(rules) }},
	{"matches in all rules together", 128, func(rules []object) int { return len(listsIn(rules, "matches")) }},
	{"headers in a match", maxHeaders, func(rules []object) int { return longest(listsIn(rules, "matches"), "headers") }},
	{"filters in a rule", 16, func(rules []object) int { return longest(rules, "filters") }},
}

// excessOf returns of what rules have more than the Gateway API allows, "" if they do not, or if the rules of before have as much.
func excessOf(rules, before []object) string {
	for _, l := range routeLimits {
		if n := l.count(rules); n > l.most && n > l.count(before) {
			return fmt.Sprintf("%d %s, more than the %d that are possible", n, l.what, l.most)
		}
	}
	return ""
}

// listsIn returns the items of a list of all objects.
func listsIn(objects []object, key string) (items []object) {
	for _, o := range objects {
		items = append(items, objectList(o, key)...)
	}
	return items
}

// longest returns the length of the longest list of any object.
func longest(objects []object, key string) (n int) {
	for _, o := range objects {
		n = max(n, len(objectList(o, key)))
	}
	return n
}

// setRefs leaves a rule without backendRefs (a redirect) as it is.
func setRefs(rule object, refs []object) {
	if len(refs) > 0 {
		rule["backendRefs"] = anySlice(refs)
	}
}

// Types of a header match, the same for HTTPRoute and GRPCRoute.
const (
	matchExact = "Exact"
	matchRegex = "RegularExpression"
)

// rulesFor returns the name prefix of the header rules for the index-th of the user's rules: "lockstep.vllm-canary.0.".
func (b backend) rulesFor(index int) string {
	return fmt.Sprintf("%s%s.%d.", rulePrefix, b.canary, index)
}

// isAddedRule reports whether a release added the rule: this one, or that of another workload that shares the route.
func isAddedRule(rule object) bool {
	return strings.HasPrefix(stringField(rule, "name", ""), rulePrefix)
}

func (b backend) added(rule object) bool {
	return strings.HasPrefix(stringField(rule, "name", ""), rulePrefix+b.canary+".")
}

// headerRules returns the rules that send matching requests of one of the user's rules to the canary.
func (b backend) headerRules(rule object, prefix string, routes []HeaderRoute) ([]object, error) {
	var out []object
	for _, route := range routes {
		matches, err := b.combineMatches(rule, route)
		if err != nil {
			return nil, err
		}
		if len(matches) == 0 {
			continue // no request can match rule and header route
		}
		if err := checkUnnamed(rule, route); err != nil {
			return nil, err
		}
		next := cloneObject(rule)
		next["name"] = prefix + route.Name
		setObjectList(next, "matches", matches)
		setObjectList(next, "backendRefs", b.canaryRefs(objectList(rule, "backendRefs")))
		out = append(out, next)
	}
	return out, nil
}

// checkUnnamed refuses a header route for a rule that has a name. A policy, for example for authentication, can be attached to that rule
// by sectionName. It would not apply to the added rule, which needs another name.
func checkUnnamed(rule object, route HeaderRoute) error {
	name := stringField(rule, "name", "")
	if name == "" {
		return nil
	}
	return fmt.Errorf("rule %q has a name, so a policy can be attached to it alone (sectionName), and requests of header route %s would bypass that policy: "+
		"attach such policies to the whole route and remove the rule's name, or remove the header route", name, route.Name)
}

func byName(a, b object) int {
	return strings.Compare(stringField(a, "name", ""), stringField(b, "name", ""))
}

// combineMatches returns the matches for requests that match one of the rule's and have all headers of the route. A rule
// without matches matches every request.
func (b backend) combineMatches(rule object, route HeaderRoute) ([]object, error) {
	matches := objectList(rule, "matches")
	if len(matches) == 0 {
		matches = []object{{}}
		if b.http { // as the API server defaults it, so that the added rule is found again
			matches = []object{{"path": object{"type": "PathPrefix", "value": "/"}}}
		}
	}
	out := make([]object, 0, len(matches))
	for _, m := range matches {
		m = cloneObject(m)
		possible := true
		for _, h := range route.Matches {
			ok, err := addHeader(m, h)
			if err != nil {
				return nil, fmt.Errorf("header route %s: %w", route.Name, err)
			}
			possible = possible && ok
		}
		if possible {
			out = append(out, m)
		}
	}
	return out, nil
}

// addHeader adds a header to a match, and reports whether a request can match both. A header can be in a match only once: if
// the match already has it, either the values are the same, or no request can have both, or it can't be known, an error.
func addHeader(match object, h HeaderMatch) (possible bool, err error) {
	h = h.asHeader()
	kind := matchExact
	if h.Regex {
		kind = matchRegex
	}
	headers := objectList(match, "headers")
	for _, have := range headers {
		if !strings.EqualFold(stringField(have, "name", ""), h.Name) {
			continue
		}
		haveKind, haveValue := stringField(have, "type", matchExact), stringField(have, "value", "")
		switch {
		case haveKind == kind && haveValue == h.Value:
			return true, nil
		case haveKind == matchExact && kind == matchExact:
			return false, nil
		default:
			return false, fmt.Errorf("a rule already matches header %s by an expression, which can't be combined with another: choose another header", h.Name)
		}
	}
	setObjectList(match, "headers", append(headers, object{"type": kind, "name": h.Name, "value": h.Value}))
	return true, nil
}

// filterMirror is the type of a mirror filter, the same for HTTPRoute and GRPCRoute.
const filterMirror = "RequestMirror"

// mirrors reports whether a filter mirrors requests to the canary.
func (b backend) mirrors(filter object) bool { return mirrorsTo(filter, b.isCanary) }

func mirrorsTo(filter object, side func(ref object) bool) bool {
	mirror, _ := filter["requestMirror"].(object)
	ref, _ := mirror["backendRef"].(object)
	return stringField(filter, "type", "") == filterMirror && ref != nil && side(ref)
}

// setMirror sets the percentage of the rule's requests that are mirrored to the canary. An existing filter keeps its position, so
// that several releases that share a rule agree on the order.
func (b backend) setMirror(rule object, refs []object, percent int) {
	filters, kept, found := objectList(rule, "filters"), []object{}, false
	for _, f := range filters {
		switch {
		case !b.mirrors(f):
			kept = append(kept, f)
		case percent > 0 && !found:
			kept, found = append(kept, b.mirrorFilter(refs, percent)), true
		}
	}
	if percent > 0 && !found {
		kept, found = append(kept, b.mirrorFilter(refs, percent)), true
	}
	if found || len(kept) != len(filters) {
		setObjectList(rule, "filters", kept)
	}
}

// mirrorFilter returns the filter for the canary's counterpart of the first ref to the stable backend.
func (b backend) mirrorFilter(refs []object, percent int) object {
	to := b.canaryRefs(refs)[0]
	delete(to, "weight")
	delete(to, "filters")
	return object{"type": filterMirror, "requestMirror": object{"backendRef": to, "percent": int64(percent)}}
}

// mirrorPercent returns the percentage of the rule's requests that are mirrored to the canary.
func (b backend) mirrorPercent(rule object) int {
	for _, f := range objectList(rule, "filters") {
		if b.mirrors(f) {
			mirror, _ := f["requestMirror"].(object)
			return int(intField(mirror, "percent", 100))
		}
	}
	return 0
}
