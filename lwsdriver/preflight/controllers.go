// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var ownerRules = []Rule{
	{
		ID: "ForeignOwner", Whole: true, Severity: severe,
		Title: "Another controller owns the LeaderWorkerSet",
		Why:   "That controller overwrites what Lockstep writes: the hold would be lost, and groups would roll by themselves. Lockstep refuses it",
		Fix:   "Release it through the object that owns it",
		Check: func(s *Inventory, report func(Hit)) {
			if owner := metav1.GetControllerOf(s.Workload); owner != nil {
				report(Hit{Field: "metadata.ownerReferences", Message: fmt.Sprintf("%s %s controls it", owner.Kind, owner.Name)})
			}
		},
	},
	{
		ID: "WorkloadApiTooOld", Whole: true, Severity: severe, Needs: Status,
		Title: "The LeaderWorkerSet controller is older than v0.9.0",
		Why:   "An older controller counts groups as ready while their workers are not, and does not report observedGeneration. Lockstep refuses it",
		Fix:   "Upgrade LWS and its CRDs to v0.9.0 or later",
		Check: func(s *Inventory, report func(Hit)) {
			if TooOld(s.Workload) {
				report(Hit{Field: "status.observedGeneration", Message: "its controller does not report observedGeneration"})
			}
		},
	},
}

// TooOld reports whether the controller that updates the workload's status is older than v0.9.0.
func TooOld(w *lws.LeaderWorkerSet) bool {
	// Without conditions no controller has written the status yet.
	return w.Status.ObservedGeneration == 0 && len(w.Status.Conditions) > 0
}

var liveRules = []Rule{{
	ID: plan.CodeUnsafeTemplate, Severity: warning,
	Title: "The hold does not cover a change of the template",
	Why: "LeaderWorkerSet v0.9 and v0.10 read some fields from the spec for groups of every revision: a group that restarts before it is " +
		"released is built from two revisions",
	Details: "[The guide](guide.md#template-changes-that-the-hold-does-not-cover) lists the fields. An error for " +
		"`volumeClaimTemplates`, which no release can change. With `-f` the files need LWS's ControllerRevisions, because the " +
		"template is compared with that of the groups",
	Fix: "Begin the release soon after the change, and restore the old value if it is to wait",
	Check: func(s *Inventory, report func(Hit)) {
		for _, c := range s.Unsafe {
			h := Hit{Field: c.Field, Message: fmt.Sprintf("it changes from %s to %s: %s", c.Old, c.New, c.Effect)}
			if c.Field == plan.FieldClaims {
				h.Severity, h.Fix = severe, "Restore the old volumeClaimTemplates; to have new ones, create a LeaderWorkerSet with another name"
			}
			report(h)
		}
	},
}}

var scalerRules = []Rule{{
	ID: "AutoscalerToZero", Whole: true, Severity: warning, Needs: Autoscalers,
	Title: "An autoscaler may scale the workload to 0",
	Why: "LeaderWorkerSet keeps no revision of a workload without groups: from 0 it starts the template in the spec, released or not. " +
		"So the driver keeps the autoscaler from removing groups as soon as a template waits for a release",
	Details: "KEDA's `minReplicaCount` is 0 by default",
	Fix:     "Set minReplicaCount (minReplicas) to 1 or more, or apply a new template only when its release begins",
	Check: func(s *Inventory, report func(Hit)) {
		for _, a := range s.Autoscalers {
			if a.ToZero {
				object := s.scaler(a)
				report(Hit{Object: object, Field: "spec", Message: Text(object) + ": it may remove the last group"})
			}
		}
	},
}}

var trackingRules = []Rule{
	{
		ID: "GitOpsTracked", Whole: true, Severity: note,
		Title: "A GitOps tool applies the workload",
		Why:   "It would revert the fields that a release sets on the workload. Lockstep repairs the hold, but LeaderWorkerSet may roll in between",
		Details: "Found by Argo CD's, Flux's and apply sets' own labels and annotations; `app.kubernetes.io/instance` alone is not " +
			"sufficient, because Helm charts set it, too. [GitOps](guide.md#gitops)",
		Fix: "Make it ignore spec.rolloutStrategy (docs/guide.md, GitOps), or install config/admission, which keeps the hold in the API server",
		Check: func(s *Inventory, report func(Hit)) {
			if t := traffic.TrackingOf(s.Workload); t.Tool != "" {
				report(Hit{Field: keyPath("metadata."+t.Field, t.Key), Message: fmt.Sprintf("%s tracks it as %s", t.Tool, t.Value)})
			}
		},
	},
}

// scaler returns the reference of an autoscaler, which is in the workload's namespace.
func (s *Inventory) scaler(a plan.Autoscaler) *pb.ObjectRef {
	return &pb.ObjectRef{Kind: a.Kind, Namespace: s.Workload.Namespace, Name: a.Name}
}
