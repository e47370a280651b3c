// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"strings"
)

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
