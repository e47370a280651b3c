// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"maps"
	"slices"
)

func trackingRules() []Rule {
	return []Rule{
		{
			ID: "TrackingMarksOnClaims", Severity: warning,
			Title: "Volume claims carry a GitOps tool's tracking marks",
			Why: "StatefulSets copy them to every volume claim that they create. The tool considers these claims its own, does not find them in " +
				"Git, and prunes them: the volumes of serving groups, and of groups that a release adds",
			Details: "`app.kubernetes.io/instance` counts, because Argo CD tracks by it by default. Objects that Lockstep copies, a canary and " +
				"its Service, never have such metadata",
			Fix:   "Remove the marks from the metadata of volumeClaimTemplates",
			Check: marksOnClaims,
		},
		{
			ID: "GitOpsTracked", Whole: true, Severity: note,
			Title: "A GitOps tool applies the workload",
			Why:   "It would revert the fields that a release sets on the workload. Lockstep repairs the hold, but LeaderWorkerSet may roll in between",
			Details: "Found by Argo CD's, Flux's and apply sets' own labels and annotations; `app.kubernetes.io/instance` alone is not " +
				"sufficient, because Helm charts set it, too. [GitOps](guide.md#gitops)",
			Fix: "Make it ignore spec.rolloutStrategy (docs/guide.md, GitOps), or install config/admission, which keeps the hold in the API server",
			Check: func(s *Inventory) []Hit {
				for _, m := range []meta{{"annotations", s.Workload.Annotations}, {"labels", s.Workload.Labels}} {
					if key := tracked(m.values); key != "" {
						return one(Hit{Field: field("metadata."+m.name, key), Message: fmt.Sprintf("%s tracks it as %s", trackers[key], m.values[key])})
					}
				}
				return nil
			},
		},
	}
}

// trackers are the labels and annotations by which GitOps tools identify what they manage.
var trackers = map[string]string{
	"argocd.argoproj.io/tracking-id":   "Argo CD",
	"argocd.argoproj.io/instance":      "Argo CD",
	"kustomize.toolkit.fluxcd.io/name": "Flux",
	"helm.toolkit.fluxcd.io/name":      "Flux",
	"applyset.kubernetes.io/part-of":   "an apply set",
}

// tracked returns the first of the keys that is a tracking mark, "" if none is.
func tracked(values map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if _, ok := trackers[key]; ok {
			return key
		}
	}
	return ""
}

// claimTracker is Argo CD's default tracking label. Helm charts set it too, so it is conclusive on claims only.
const claimTracker = "app.kubernetes.io/instance"

func marksOnClaims(s *Inventory) []Hit {
	var hits []Hit
	templates := s.Workload.Spec.LeaderWorkerTemplate.VolumeClaimTemplates
	for i := range templates {
		c := &templates[i]
		path := fmt.Sprintf("%s.volumeClaimTemplates[%d].metadata", templateField, i)
		key, where := tracked(c.Annotations), "annotations"
		if key == "" {
			key, where = tracked(c.Labels), "labels"
		}
		if _, labelled := c.Labels[claimTracker]; key == "" && labelled {
			key = claimTracker
		}
		if key != "" {
			hits = append(hits, Hit{Field: field(path+"."+where, key), Message: fmt.Sprintf("claims of template %s are marked with %s", c.Name, key)})
		}
	}
	return hits
}
