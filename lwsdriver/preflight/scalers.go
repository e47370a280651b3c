// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

func scalerRules() []Rule {
	return []Rule{{
		ID: "AutoscalerPresent", Severity: note, Needs: Autoscalers,
		Title: "An autoscaler scales the workload",
		Why: "The number of groups may change during a release: batches in percent are computed again from each new number. A blue-green " +
			"release holds the autoscaler, so load adds no groups meanwhile",
		Fix: "Nothing, if that is intended. Otherwise release when load is low, or pause the autoscaler meanwhile",
		Check: func(s *Inventory) []Hit {
			hits := make([]Hit, 0, len(s.Autoscalers))
			for _, a := range s.Autoscalers {
				text := "it scales the workload, also during " + s.style()
				if plan.HoldsAutoscalers(s.Policy.Style) {
					text = "it is held until the release is over, and then restored"
				}
				hits = append(hits, Hit{Object: a, Field: "spec.scaleTargetRef", Message: fmt.Sprintf("%s: %s", Text(a), text)})
			}
			return hits
		},
	}}
}
