// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func ownerRules() []Rule {
	return []Rule{
		{
			ID: "ForeignOwner", Whole: true, Severity: severe,
			Title: "Another controller owns the LeaderWorkerSet",
			Why:   "That controller overwrites what Lockstep writes: the hold would be lost, and groups would roll by themselves. Lockstep refuses it",
			Fix:   "Release it through the object that owns it",
			Check: func(s *Inventory) []Hit {
				owner := metav1.GetControllerOf(s.Workload)
				if owner == nil {
					return nil
				}
				return one(Hit{Field: "metadata.ownerReferences", Message: fmt.Sprintf("%s %s controls it", owner.Kind, owner.Name)})
			},
		},
		{
			ID: "WorkloadApiTooOld", Whole: true, Severity: severe, Needs: Status,
			Title: "The LeaderWorkerSet controller is older than v0.9.0",
			Why:   "An older controller counts groups as ready while their workers are not, and does not report observedGeneration. Lockstep refuses it",
			Fix:   "Upgrade LWS and its CRDs to v0.9.0 or later",
			Check: func(s *Inventory) []Hit {
				if !TooOld(s.Workload) {
					return nil
				}
				return one(Hit{Field: "status.observedGeneration", Message: "its controller does not report observedGeneration"})
			},
		},
	}
}

// TooOld reports whether the controller that updates the workload's status is older than v0.9.0.
func TooOld(w *lws.LeaderWorkerSet) bool {
	return w.Status.ObservedGeneration == 0 && len(w.Status.Conditions) > 0
}
