// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"
)

func TestUnverifiedRoute(t *testing.T) {
	route := readRoute(t, "httproute.yaml")
	first := func(key string, value any) func([]any) []any {
		return func(conditions []any) []any {
			conditions[0].(map[string]any)[key] = value
			return conditions
		}
	}
	partial := func(status string) func([]any) []any {
		return func(conditions []any) []any {
			return append(conditions, map[string]any{
				"type": "PartiallyInvalid", "status": status, "reason": "UnsupportedValue", "message": "Dropped Rule 1", "observedGeneration": int64(2),
			})
		}
	}
	for _, tt := range []struct {
		name, reason string
		change       func([]any) []any
		want         string
	}{
		{"accepted", "all conditions, of this generation", func(c []any) []any { return c }, ""},
		{"newer", "an observed generation newer than the cache", first("observedGeneration", int64(3)), ""},
		{"outdated", "the gateway observed an earlier generation", first("observedGeneration", int64(1)), ReasonRouteNotObserved},
		{"rejected", "no listener", first("status", "False"), ReasonRouteNotAccepted},
		{"unknown", "not evaluated yet", first("status", "Unknown"), ReasonRouteNotAccepted},
		{"refs", "a backend is missing", func(c []any) []any {
			c[1].(map[string]any)["status"] = "False"
			return c
		}, ReasonRefsNotResolved},
		{"dropped rule", "accepted without one of its rules, which may be that of a header route", partial("True"), ReasonRouteNotAccepted},
		{"valid", "no rule is invalid", partial("False"), ""},
		{"incomplete", "one condition is missing", func(c []any) []any { return c[:1] }, ReasonRouteNotObserved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason, message := unverifiedRoute(withStatus(t, route, tt.change), true)
			// Of several controllers that report on a gateway the message names the one.
			if reason != tt.want || strings.Contains(message, "(example.com/gateway) ") != (tt.want != "") {
				t.Errorf("%s: %s: %s", tt.reason, reason, message)
			}
		})
	}
}

// TestRouteParents: every parent in the spec must have accepted the route; others are ignored.
func TestRouteParents(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		spec, status string // parents, by name and section
		want         string
	}{
		{"both", "", "a b", "a b", ""},
		{"defaults", "group, kind and namespace may be explicit", "a", "a.default", ""},
		{"one missing", "", "a b", "a", ReasonRouteNotObserved},
		{"none", "", "a", "", ReasonRouteNotObserved},
		{"former", "a parent that was removed from the spec", "a", "old a", ""},
		{"section", "another listener of the gateway", "a/https", "a/http", ReasonRouteNotObserved},
		{"other namespace", "a gateway with the same name", "a", "a.other", ReasonRouteNotObserved},
		{"orphan", "no parent at all", "", "", ReasonRouteNotAccepted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := readRoute(t, "httproute.yaml")
			spec, _ := r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.status)
			r = withStatus(t, r, func(c []any) []any { return c })
			spec, _ = r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.spec)
			if reason, message := unverifiedRoute(r, true); reason != tt.want {
				t.Errorf("%s: %s: %s", tt.reason, reason, message)
			}
		})
	}
}

func parentRefs(names string) []any {
	out := []any{}
	for _, name := range strings.Fields(names) {
		ref := object{}
		name, section, _ := strings.Cut(name, "/")
		name, namespace, _ := strings.Cut(name, ".")
		ref["name"] = name
		if section != "" {
			ref["sectionName"] = section
		}
		if namespace != "" {
			ref["namespace"], ref["group"], ref["kind"] = namespace, GatewayGroup, "Gateway"
		}
		out = append(out, ref)
	}
	return out
}
