// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func budgetRules() []Rule {
	return []Rule{
		{
			ID: disruption.Blocks, Severity: warning, Needs: Budgets,
			Title: "A PodDisruptionBudget allows no eviction",
			Why:   "Nodes with these pods cannot be drained: node upgrades, and autoscalers that make room for new groups, wait forever",
			Fix:   "Set maxUnavailable: 1",
			Check: func(s *Inventory) []Hit { return judge(s, disruption.Blocks) },
		},
		{
			ID: disruption.CountsPods, Severity: warning, Needs: Budgets,
			Title: "A PodDisruptionBudget counts pods where groups matter",
			Why:   "Evicting one pod restarts its whole group, so the budget allows more groups to be unavailable at once than the workload itself does",
			Fix: "Set maxUnavailable: 1, which comes to one group at a time, or delete it and have releases create budgets that count groups " +
				"(group_disruption_budget of the policy)",
			Check: func(s *Inventory) []Hit { return judge(s, disruption.CountsPods) },
		},
	}
}

// judge returns the findings of one code about the user's budgets.
func judge(s *Inventory, code string) []Hit {
	w := s.Disruptable()
	var hits []Hit
	for _, b := range s.Budgets {
		if disruption.Ours(b) {
			continue
		}
		if found, message := w.Judge(b); found == code {
			hits = append(hits, Hit{Object: &pb.ObjectRef{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}, Field: "spec", Message: message})
		}
	}
	return hits
}

// Disruptables returns the parts of the workload that budgets select by: one, or one for each role.
func (s *Inventory) Disruptables() []disruption.Workload {
	parts := (Rule{}).judged(s)
	all := make([]disruption.Workload, 0, len(parts))
	for _, part := range parts {
		all = append(all, part.Disruptable())
	}
	return all
}

// Disruptable returns what budgets select of a LeaderWorkerSet or of a role.
func (s *Inventory) Disruptable() disruption.Workload {
	return disruption.Workload{
		Namespace: s.Workload.Namespace, Name: s.Workload.Name, Template: s.Workload.Spec.LeaderWorkerTemplate, Revision: s.Revision,
		Groups: s.replicas(), Size: int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)), MaxUnavailable: plan.Tolerated(s.Rolling, s.replicas()),
	}
}
