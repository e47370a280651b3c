// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var paceRules = []Rule{
	{
		ID: "NoCapacityToRoll", Severity: severe, Applies: rollsGroups,
		Title: "maxUnavailable and maxSurge both resolve to 0",
		Why: "No group may be deleted before another is created, and none may be created, so LeaderWorkerSet's webhook refuses it. If a " +
			"scale-down under hold caused it, Lockstep promotes with maxUnavailable 1, which the user did not request",
		Fix:   "Set maxSurge to 1 or more, or maxUnavailable where there are no spare nodes",
		Check: noCapacityToRoll,
	},
	{
		ID: "AllUnavailable", Severity: severe, Applies: rollsGroups,
		Title: "maxUnavailable is all groups",
		Why:   "Every group may be deleted at once, and no group serves until the first new one has loaded its model",
		Details: "Not reported if the release adds as many groups as exist (blue-green, or a canary whose last batch is 100 %), nor for a " +
			"single group",
		Fix:   "Set maxUnavailable to the groups that you can spare, 1 for example, or release blue-green, where they have no requests by then",
		Check: allUnavailable,
	},
	{
		ID: "DeadlineBelowMinReady", Whole: true, Severity: severe,
		Title:   "The progress deadline ends before a group can count",
		Why:     "A group counts once it has been ready for minReady. If the deadline is not longer, every batch fails, however healthy it is",
		Fix:     "Make the progress deadline longer than start-up and minReady together",
		Applies: func(s *Inventory) bool { return s.Policy.Style != pb.Style_STYLE_UNSPECIFIED },
		Check:   deadlineBelowMinReady,
	},
}

// rollsGroups reports whether LWS rolls the groups of the workload: a release replaces those of a role by the groups of another child.
func rollsGroups(s *Inventory) bool { return s.part == nil }

func noCapacityToRoll(s *Inventory, report func(Hit)) {
	if s.replicas() > 0 && native.LimitsOf(s.Rolling, s.replicas()).Batch() == 0 {
		report(Hit{Field: rollingField, Message: fmt.Sprintf("of %d groups maxUnavailable %s and maxSurge %s are 0 each",
			s.replicas(), s.Rolling.MaxUnavailable.String(), s.Rolling.MaxSurge.String())})
	}
}

// allUnavailable skips a workload of a single group, which has a warning of its own, and a release whose second set serves
// meanwhile.
func allUnavailable(s *Inventory, report func(Hit)) {
	most := native.LimitsOf(s.Rolling, s.replicas()).MaxUnavailable
	if s.replicas() > 1 && most >= s.replicas() && s.Peak().Added < s.replicas() {
		report(Hit{Field: rollingField + ".maxUnavailable", Message: fmt.Sprintf("maxUnavailable %s lets all %d groups be away at once in %s",
			s.Rolling.MaxUnavailable.String(), s.replicas(), s.style())})
	}
}

func deadlineBelowMinReady(s *Inventory, report func(Hit)) {
	if s.Policy.MinReady >= s.Policy.ProgressDeadline {
		report(Hit{Field: "policy.progress_deadline", Message: fmt.Sprintf("the progress deadline is %s, and minReady %s", s.Policy.ProgressDeadline, s.Policy.MinReady)})
	}
}

var budgetRules = []Rule{
	{
		ID: disruption.Blocks, Severity: warning, Needs: Budgets,
		Title: "A PodDisruptionBudget allows no eviction",
		Why:   "Nodes with these pods cannot be drained: node upgrades, and autoscalers that make room for new groups, wait forever",
		Fix:   "Set maxUnavailable: 1",
		Check: func(s *Inventory, report func(Hit)) { judge(s, disruption.Blocks, report) },
	},
	{
		ID: disruption.CountsPods, Severity: warning, Needs: Budgets,
		Title: "A PodDisruptionBudget counts pods where groups matter",
		Why:   "Evicting one pod restarts its whole group, so the budget allows more groups to be unavailable at once than the workload itself does",
		Fix: "Set maxUnavailable: 1, which comes to one group at a time; or let one budget select leaders (" + lws.WorkerIndexLabelKey + ": \"0\") and " +
			"another workers",
		Check: func(s *Inventory, report func(Hit)) { judge(s, disruption.CountsPods, report) },
	},
}

// judge reports what is found of one code about the user's budgets.
func judge(s *Inventory, code string, report func(Hit)) {
	w := s.Disruptable()
	for _, b := range s.Budgets {
		if found, message := w.Judge(b); found == code {
			report(Hit{Object: &pb.ObjectRef{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}, Field: "spec", Message: message})
		}
	}
}

// Disruptable returns what budgets select of a LeaderWorkerSet or of a role.
func (s *Inventory) Disruptable() disruption.Workload {
	return disruption.Workload{
		Namespace: s.Workload.Namespace, Name: s.Workload.Name, Template: s.Workload.Spec.LeaderWorkerTemplate, Revision: s.Revision,
		Groups: s.replicas(), Size: int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)), MaxUnavailable: plan.Tolerated(s.Rolling, s.replicas()),
	}
}
