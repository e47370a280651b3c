// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

func routeRules() []Rule {
	return []Rule{{
		ID: "RouteRuleNamed", Whole: true, Severity: note, Needs: Routes,
		Title: "A rule that leads to the workload has a name",
		Why: "A policy can be attached to that rule alone, by sectionName. It would not apply to the rule that a header route adds, so that the " +
			"header would bypass authentication. SetHeaderRoute refuses such a rule",
		Details: "An error if the release routes by header (`--canary-header`, `--canary-cookie`), and harmless otherwise. Names are checked " +
			"and policies are not: the driver doesn't know their kinds, and one may be created later. [Traffic](traffic.md#limits)",
		Fix:     "Attach policies to the whole route and remove the rule's name, or release without header routes",
		Applies: func(s *Inventory) bool { return s.Policy.Traffic != nil && len(s.Policy.Traffic.Routes) > 0 },
		Check:   namedRules,
	}}
}

func namedRules(s *Inventory) []Hit {
	var hits []Hit
	for _, r := range s.Routes {
		if !slices.Contains(s.Policy.Traffic.Routes, r.Key) {
			continue
		}
		for index, name := range traffic.NamedRules(r, *s.Policy.Traffic) {
			h := Hit{
				Object: &pb.ObjectRef{Kind: r.Key.Kind, Namespace: s.Workload.Namespace, Name: r.Key.Name}, Field: fmt.Sprintf("spec.rules[%d].name", index),
				Message: fmt.Sprintf("rule %q can't get a header route", name),
			}
			if s.Expect.HeaderRoutes {
				h.Severity, h.Message = severe, fmt.Sprintf("rule %q can't get the header routes of the release", name)
			}
			hits = append(hits, h)
		}
	}
	return hits
}
