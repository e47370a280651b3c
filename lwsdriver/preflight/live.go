// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

func liveRules() []Rule {
	return []Rule{{
		ID: plan.CodeUnsafeTemplate, Severity: warning,
		Title: "The hold does not cover a change of the template",
		Why: "LeaderWorkerSet v0.9 and v0.10 read some fields from the spec for groups of every revision: a group that restarts before it is " +
			"released is built from two revisions",
		Details: "[The guide](guide.md#template-changes-that-the-hold-does-not-cover) lists the fields. An error for " +
			"`volumeClaimTemplates`, which no release can change. With `-f` the files need LWS's ControllerRevisions, because the " +
			"template is compared with that of the groups",
		Fix:   "Begin the release soon after the change, and restore the old value if it is to wait",
		Check: unsafeChanges,
	}}
}

func unsafeChanges(s *Inventory) []Hit {
	hits := make([]Hit, 0, len(s.Unsafe))
	for _, c := range s.Unsafe {
		h := Hit{Field: c.Field, Message: fmt.Sprintf("it changes from %s to %s: %s", c.Old, c.New, c.Effect)}
		if c.Field == plan.FieldClaims {
			h.Severity, h.Fix = severe, "Restore the old volumeClaimTemplates; to have new ones, create a LeaderWorkerSet with another name"
		}
		hits = append(hits, h)
	}
	return hits
}
