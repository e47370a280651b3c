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
			Title: "A PodDisruptionBudget lets no pod be evicted",
			Why:   "Nodes under these pods can't be drained: upgrades of nodes, and autoscalers that make room for new groups, wait for ever",
			Fix:   "Set maxUnavailable: 1",
			Check: func(s *Snapshot) []Hit { return judge(s, disruption.Blocks) },
		},
		{
			ID: disruption.CountsPods, Severity: warning, Needs: Budgets,
			Title: "A PodDisruptionBudget counts pods where groups matter",
			Why:   "Evicting one pod takes its whole group down, so the budget lets more groups go at once than the workload itself does",
			Fix:   "Set maxUnavailable: 1, which comes to one group at a time, or have the release keep budgets that count groups (--group-disruption-budget)",
			Check: func(s *Snapshot) []Hit { return judge(s, disruption.CountsPods) },
		},
	}
}

// judge returns what is wrong with the budgets in one way. Those of a release are right.
func judge(s *Snapshot, code string) []Hit {
	w := s.disruptable()
	var hits []Hit
	for _, b := range s.Budgets {
		if disruption.Ours(b) {
			continue
		}
		for _, f := range w.Judge(b) {
			if f.Code == code {
				hits = append(hits, Hit{Object: &pb.ObjectRef{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}, Field: "spec", Message: f.Message})
			}
		}
	}
	return hits
}

// disruptable is the workload as selectors see it.
func (s *Snapshot) disruptable() disruption.Workload {
	return disruption.Workload{
		Namespace: s.Workload.Namespace, Name: s.Workload.Name, Template: s.Workload.Spec.LeaderWorkerTemplate, Revision: s.Revision,
		Groups: s.replicas(), Size: int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)), MaxUnavailable: plan.Tolerated(s.Rolling, s.replicas()),
	}
}
