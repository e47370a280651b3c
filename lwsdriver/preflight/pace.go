// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func paceRules() []Rule {
	return []Rule{
		{
			ID: "NoRoomToRoll", Severity: grave,
			Title: "maxUnavailable and maxSurge both come to 0",
			Why: "No group may go before another comes, and none may come, so LeaderWorkerSet's webhook refuses it. Where a scale-down under hold has " +
				"brought it about, Lockstep promotes with maxUnavailable 1, which nobody asked for",
			Fix:   "Set maxSurge to 1 or more, or maxUnavailable where there are no spare nodes",
			Check: noRoomToRoll,
		},
		{
			ID: "AllUnavailable", Severity: grave,
			Title: "maxUnavailable is all groups",
			Why:   "Every group may be taken down at once, and nothing serves until the first new one has loaded its model",
			Fix:   "Set maxUnavailable to the groups that you can do without, 1 for example, or release blue-green, where they have no requests by then",
			Check: allUnavailable,
		},
		{
			ID: "DeadlineBelowMinReady", Severity: grave,
			Title:   "The progress deadline ends before a group can count",
			Why:     "A group counts once it has been ready for minReady. If the deadline is no longer than that, every batch fails, however healthy it is",
			Fix:     "Make the progress deadline longer than start-up and minReady together",
			Applies: func(s *Snapshot) bool { return s.Policy.Style != pb.Style_STYLE_UNSPECIFIED },
			Check:   deadlineBelowMinReady,
		},
	}
}

func noRoomToRoll(s *Snapshot) []Hit {
	if s.replicas() == 0 || native.LimitsOf(s.Rolling, s.replicas()).Batch() > 0 {
		return nil
	}
	return one(Hit{Field: rollingField, Message: fmt.Sprintf("of %d groups maxUnavailable %s and maxSurge %s are 0 each",
		s.replicas(), s.Rolling.MaxUnavailable.String(), s.Rolling.MaxSurge.String())})
}

// allUnavailable passes over a single group, of which there is no smaller step: that has a warning of its own. And groups
// beside which others serve may go.
func allUnavailable(s *Snapshot) []Hit {
	most := native.LimitsOf(s.Rolling, s.replicas()).MaxUnavailable
	if s.replicas() < 2 || most < s.replicas() || s.peak().Added >= s.replicas() {
		return nil
	}
	return one(Hit{Field: rollingField + ".maxUnavailable", Message: fmt.Sprintf("maxUnavailable %s lets all %d groups be away at once in %s",
		s.Rolling.MaxUnavailable.String(), s.replicas(), s.style())})
}

func deadlineBelowMinReady(s *Snapshot) []Hit {
	if s.Policy.MinReady < s.Policy.ProgressDeadline {
		return nil
	}
	return one(Hit{Field: "policy.progress_deadline", Message: fmt.Sprintf("the progress deadline is %s, and minReady %s", s.Policy.ProgressDeadline, s.Policy.MinReady)})
}
