// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"
	"strings"
)

// The rules of a route are handled in two steps: strip gives the user's own rules back, whatever a release did to them,
// and render applies what is desired now. So every change starts from the user's rules, and there is drift if and only
// if render(strip(rules)) differs from rules.

// part is a rule without what this release did to it, and what that was.
type part struct {
	rule object
	// others: another release added the rule, which is left alone.
	others bool
	// share and mirror are the canary's, in percent. The mirror is still in the rule, so that it keeps its place.
	share, mirror int
}

// strip returns the user's rules, and those that other releases added.
func (b backend) strip(rules []object) []part {
	out := make([]part, 0, len(rules))
	for _, rule := range rules {
		switch {
		case b.added(rule):
			continue
		case added(rule):
			out = append(out, part{rule: rule, others: true})
			continue
		}
		rule = clone(rule)
		refs := list(rule, "backendRefs")
		p := part{rule: rule, share: b.share(refs), mirror: b.mirrored(rule)}
		setRefs(rule, b.merge(refs))
		out = append(out, p)
	}
	return out
}

// render returns the rules that share requests as desired.
func (b backend) render(parts []part, d Desired) ([]object, error) {
	return b.renderWithin(parts, d, func(part, string) Desired { return d })
}

// renderLess is render, but no rule gives more to the canary than it does, and no header route comes: what can be done
// whatever the state of the canary. have are the rules as they stand.
func (b backend) renderLess(parts []part, d Desired, have []object) ([]object, error) {
	names := map[string]bool{}
	for _, rule := range have {
		names[text(rule, "name", "")] = true
	}
	return b.renderWithin(parts, d, func(p part, prefix string) Desired {
		less := d
		less.Weight, less.Mirror = min(d.Weight, p.share), min(d.Mirror, p.mirror)
		less.HeaderRoutes = slices.DeleteFunc(slices.Clone(d.HeaderRoutes), func(h HeaderRoute) bool { return !names[prefix+h.Name] })
		return less
	})
}

func (b backend) renderWithin(parts []part, d Desired, limit func(p part, prefix string) Desired) ([]object, error) {
	out := make([]object, 0, len(parts)*(1+len(d.HeaderRoutes)))
	index := 0 // among the rules that no release added
	for _, p := range parts {
		if p.others {
			out = append(out, p.rule)
			continue
		}
		prefix := b.rulesFor(index)
		next, before, err := b.renderRule(p.rule, prefix, limit(p, prefix))
		if err != nil {
			return nil, err
		}
		out = append(insertSorted(out, before), next)
		index++
	}
	return out, nil
}

// renderRule returns a rule as desired and those that refine it, which belong before it.
func (b backend) renderRule(rule object, prefix string, d Desired) (next object, before []object, err error) {
	refs := list(rule, "backendRefs")
	plain := clone(rule)
	b.mirror(plain, nil, 0)
	if !b.serves(refs) {
		return plain, nil, nil
	}
	if before, err = b.headerRules(plain, prefix, d.HeaderRoutes); err != nil {
		return nil, nil, err
	}
	split, err := b.split(refs, d.Weight)
	if err != nil {
		return nil, nil, err
	}
	next = plain
	if d.Weight < 100 && d.Mirror > 0 {
		next = clone(rule)
		b.mirror(next, refs, d.Mirror)
	}
	setRefs(next, split)
	return next, before, nil
}

// insertSorted appends the rules that refine the next one to those that other releases have put there, by name: the
// releases agree about the order without knowing of each other.
func insertSorted(rules, more []object) []object {
	for _, rule := range more {
		at := len(rules)
		for at > 0 && added(rules[at-1]) && byName(rules[at-1], rule) > 0 {
			at--
		}
		rules = slices.Insert(rules, at, rule)
	}
	return rules
}

// setRefs leaves a rule without backendRefs (a redirect) as it is.
func setRefs(rule object, refs []object) {
	if len(refs) > 0 {
		rule["backendRefs"] = anys(refs)
	}
}

// Types of a header match, the same for HTTPRoute and GRPCRoute.
const (
	matchExact = "Exact"
	matchRegex = "RegularExpression"
)

// rulesFor begins the names of the rules that refine the index-th of the user's: "lockstep.vllm-canary.0.".
func (b backend) rulesFor(index int) string {
	return fmt.Sprintf("%s%s.%d.", rulePrefix, b.canary, index)
}

// added says whether a release added the rule: this one's, or that of another workload that shares the route.
func added(rule object) bool { return strings.HasPrefix(text(rule, "name", ""), rulePrefix) }

func (b backend) added(rule object) bool {
	return strings.HasPrefix(text(rule, "name", ""), rulePrefix+b.canary+".")
}

// headerRules are the rules that refine one of the user's.
func (b backend) headerRules(rule object, prefix string, routes []HeaderRoute) ([]object, error) {
	var out []object
	for _, route := range routes {
		matches, err := both(list(rule, "matches"), route)
		if err != nil {
			return nil, err
		}
		if len(matches) == 0 {
			continue // no request can match both
		}
		next := clone(rule)
		next["name"] = prefix + route.Name
		setList(next, "matches", matches)
		setList(next, "backendRefs", b.onCanary(list(rule, "backendRefs")))
		out = append(out, next)
	}
	return out, nil
}

func byName(a, b object) int { return strings.Compare(text(a, "name", ""), text(b, "name", "")) }

// both are the matches for requests that match one of the rule's and have all headers. A rule without matches matches
// every request.
func both(matches []object, route HeaderRoute) ([]object, error) {
	if len(matches) == 0 {
		matches = []object{{}}
	}
	out := make([]object, 0, len(matches))
	for _, m := range matches {
		m = clone(m)
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

// addHeader adds a header to what a match asks for. A header can stand in a match only once: if it asks for the same
// header already, either it is for the same value, or no request can have both values, or nobody can tell.
func addHeader(match object, h HeaderMatch) (possible bool, err error) {
	h = h.asHeader()
	kind := matchExact
	if h.Regex {
		kind = matchRegex
	}
	headers := list(match, "headers")
	for _, have := range headers {
		if !strings.EqualFold(text(have, "name", ""), h.Name) {
			continue
		}
		haveKind, haveValue := text(have, "type", matchExact), text(have, "value", "")
		switch {
		case haveKind == kind && haveValue == h.Value:
			return true, nil
		case haveKind == matchExact && kind == matchExact:
			return false, nil
		default:
			return false, fmt.Errorf("a rule already matches header %s by an expression, which can't be combined with another: choose another header", h.Name)
		}
	}
	setList(match, "headers", append(headers, object{"type": kind, "name": h.Name, "value": h.Value}))
	return true, nil
}

// filterMirror is the type of a filter that copies requests, the same for HTTPRoute and GRPCRoute.
const filterMirror = "RequestMirror"

// mirrors says whether a filter copies requests to the canary.
func (b backend) mirrors(filter object) bool { return mirrorsTo(filter, b.isCanary) }

func mirrorsTo(filter object, side func(ref object) bool) bool {
	mirror, _ := filter["requestMirror"].(object)
	ref, _ := mirror["backendRef"].(object)
	return text(filter, "type", "") == filterMirror && ref != nil && side(ref)
}

// mirror makes the rule copy a percentage of its requests to the canary, or none. A filter of ours stays where it is
// among the others, so that several releases that share a rule agree about their order.
func (b backend) mirror(rule object, refs []object, percent int) {
	filters, kept, found := list(rule, "filters"), []object{}, false
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
		setList(rule, "filters", kept)
	}
}

// mirrorFilter leads to where the first of the rule's refs to the stable side would, on the canary.
func (b backend) mirrorFilter(refs []object, percent int) object {
	to := b.onCanary(refs)[0]
	delete(to, "weight")
	delete(to, "filters")
	return object{"type": filterMirror, "requestMirror": object{"backendRef": to, "percent": int64(percent)}}
}

// mirrored is the percentage of the rule's requests that the canary gets a copy of.
func (b backend) mirrored(rule object) int {
	for _, f := range list(rule, "filters") {
		if b.mirrors(f) {
			mirror, _ := f["requestMirror"].(object)
			return int(number(mirror, "percent", 100))
		}
	}
	return 0
}
