// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func spreadRules() []Rule {
	return []Rule{
		{
			ID: "TopologyNotSpread", Severity: warning, Applies: func(s *Inventory) bool { return len(s.Expect.TopologyKeys) > 0 && s.replicas() > 1 },
			Title: "Leaders are not spread over the declared topology",
			Why:   "All groups may be scheduled to one zone or rack, and fail with it; a release, which reschedules every group, may cause that",
			Details: "The topology is declared with `--topology`. Spread constraints and anti-affinity of the leader over that key count, and " +
				"LWS's `leaderworkerset.sigs.k8s.io/exclusive-topology`",
			Fix:   "Give the leader's template a topologySpreadConstraint of that key, or the workload LWS's exclusive-topology annotation",
			Check: notSpread,
		},
		{
			ID: "LeadersNotSpread", Severity: note, Applies: func(s *Inventory) bool { return len(s.Expect.TopologyKeys) == 0 && s.replicas() > 1 },
			Title: "Nothing spreads the groups",
			Why:   "All groups may be scheduled to one zone or rack, and fail with it; a release, which reschedules every group, may cause that",
			Fix:   "Give the leader's template a topologySpreadConstraint, for example over topology.kubernetes.io/zone, and declare it (--topology)",
			Check: func(s *Inventory) []Hit {
				if len(spreadOver(s)) > 0 {
					return nil
				}
				return one(Hit{Field: s.leader().field + ".spec.topologySpreadConstraints", Message: "leaders have no topology spread constraint, no anti-affinity and no exclusive topology"})
			},
		},
	}
}

// spreadOver returns the node labels over whose values something spreads the groups.
func spreadOver(s *Inventory) []string {
	var keys []string
	t := s.leader()
	for _, c := range t.Spec.TopologySpreadConstraints {
		keys = append(keys, c.TopologyKey)
	}
	if a := t.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			keys = append(keys, term.TopologyKey)
		}
		for _, w := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			keys = append(keys, w.PodAffinityTerm.TopologyKey)
		}
	}
	if key := s.Workload.Annotations[lws.ExclusiveKeyAnnotationKey]; key != "" {
		keys = append(keys, key)
	}
	return keys
}

func notSpread(s *Inventory) []Hit {
	have := spreadOver(s)
	var hits []Hit
	for _, key := range s.Expect.TopologyKeys {
		if !slices.Contains(have, key) {
			hits = append(hits, Hit{Field: s.leader().field + ".spec.topologySpreadConstraints", Message: fmt.Sprintf("nothing spreads the leaders over %s", key)})
		}
	}
	return hits
}
