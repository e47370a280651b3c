// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func scalerRules() []Rule {
	return []Rule{{
		ID: "AutoscalerPresent", Whole: true, Severity: note, Needs: Autoscalers,
		Title: "An autoscaler scales the workload",
		Why: "A release moves load away from the groups that it observes. So a canary or partition release keeps it from removing groups " +
			"from the first batch on, and a blue-green release keeps it from scaling at all. Its settings are restored at the end",
		Details: "[Autoscalers](guide.md#autoscalers). Initialize warns, too (`AutoscalerHeld`)",
		Fix: "Nothing, if that is what you want. To let it add groups for all requests, use a metric of the Service or route instead of an " +
			"average over pods",
		Check: func(s *Inventory) []Hit {
			hits := make([]Hit, 0, len(s.Autoscalers))
			for _, a := range s.Autoscalers {
				text := "until the release is over it may add groups, but not remove any"
				switch {
				case s.Policy.Style == pb.Style_STYLE_UNSPECIFIED:
					text = "a release keeps it from removing groups, and a blue-green release from scaling at all"
				case plan.HoldsGrowth(s.Policy.Style):
					text = "it is held until the release is over"
				}
				hits = append(hits, Hit{Object: a.Object, Field: "spec.scaleTargetRef", Message: fmt.Sprintf("%s: %s", Text(a.Object), text)})
			}
			return hits
		},
	}, {
		ID: "AutoscalerToZero", Whole: true, Severity: warning, Needs: Autoscalers,
		Title: "An autoscaler may scale the workload to 0",
		Why: "LeaderWorkerSet keeps no revision of a workload without groups: from 0 it starts the template in the spec, released or not. " +
			"So the driver keeps the autoscaler from removing groups as soon as a template waits for a release",
		Details: "KEDA's `minReplicaCount` is 0 by default",
		Fix:     "Set minReplicaCount (minReplicas) to 1 or more, or apply a new template only when its release begins",
		Check: func(s *Inventory) []Hit {
			var hits []Hit
			for _, a := range s.Autoscalers {
				if a.ToZero {
					hits = append(hits, Hit{Object: a.Object, Field: "spec", Message: Text(a.Object) + ": it may remove the last group"})
				}
			}
			return hits
		},
	}}
}
