// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var paceRules = []Rule{
	{
		ID: "NoCapacityToRoll", Severity: severe, Applies: rollsGroups,
		Title: "maxUnavailable and maxSurge both resolve to 0",
		Why: "No group may be deleted before another is created, and none may be created, so LeaderWorkerSet's webhook refuses it. If a " +
			"scale-down under hold caused it, Lockstep promotes with maxUnavailable 1, which the user did not request",
		Fix: "Set maxSurge to 1 or more, or maxUnavailable where there are no spare nodes",
		Check: func(s *Inventory, report func(Hit)) {
			if s.replicas() > 0 && native.LimitsOf(s.Rolling, s.replicas()).Batch() == 0 {
				report(Hit{Field: rollingField, Message: fmt.Sprintf("of %d groups maxUnavailable %s and maxSurge %s are 0 each",
					s.replicas(), s.Rolling.MaxUnavailable.String(), s.Rolling.MaxSurge.String())})
			}
		},
	},
	{
		ID: "AllUnavailable", Severity: severe, Applies: rollsGroups,
		Title: "maxUnavailable is all groups",
		Why:   "Every group may be deleted at once, and no group serves until the first new one has loaded its model",
		Details: "Not reported if the release adds as many groups as exist (blue-green, or a canary whose last batch is 100 %), nor for a " +
			"single group",
		Fix: "Set maxUnavailable to the groups that you can spare, 1 for example, or release blue-green, where they have no requests by then",
		// Check skips a workload of a single group, which has a warning of its own, and a release whose second set serves
		// meanwhile.
		Check: func(s *Inventory, report func(Hit)) {
			most := native.LimitsOf(s.Rolling, s.replicas()).MaxUnavailable
			if s.replicas() > 1 && most >= s.replicas() && s.Peak().Added < s.replicas() {
				report(Hit{Field: rollingField + ".maxUnavailable", Message: fmt.Sprintf("maxUnavailable %s lets all %d groups be away at once in %s",
					s.Rolling.MaxUnavailable.String(), s.replicas(), s.style())})
			}
		},
	},
	{
		ID: "DeadlineBelowMinReady", Whole: true, Severity: severe,
		Title:   "The progress deadline ends before a group can count",
		Why:     "A group counts once it has been ready for minReady. If the deadline is not longer, every batch fails, however healthy it is",
		Fix:     "Make the progress deadline longer than start-up and minReady together",
		Applies: func(s *Inventory) bool { return s.Policy.Style != pb.Style_STYLE_UNSPECIFIED },
		Check: func(s *Inventory, report func(Hit)) {
			if s.Policy.MinReady >= s.Policy.ProgressDeadline {
				report(Hit{Field: "policy.progress_deadline", Message: fmt.Sprintf(
					"the progress deadline is %s, and minReady %s", s.Policy.ProgressDeadline, s.Policy.MinReady)})
			}
		},
	},
}

// rollsGroups reports whether LWS rolls the groups of the workload: a release replaces those of a role by the groups of another child.
func rollsGroups(s *Inventory) bool { return s.part == nil }
