// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// newCanary builds the second workload: the stable one's spec, labels and annotations, without the tracking marks of tools.
func newCanary(s *observe.Snapshot, a plan.CreateCanary) (*lws.LeaderWorkerSet, error) {
	canary := &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.Name, Namespace: s.StableObject.Namespace,
			Labels:      traffic.WithoutToolMetadata(s.StableObject.Labels),
			Annotations: traffic.WithoutToolMetadata(s.StableObject.Annotations),
			Finalizers:  []string{record.Finalizer},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.StableObject, lws.GroupVersion.WithKind("LeaderWorkerSet")),
			},
		},
		Spec: *s.StableObject.Spec.DeepCopy(),
	}
	canary.Labels[record.RoleLabel] = record.RoleCanary
	canary.Labels[record.StableLabel] = s.StableObject.Name
	canary.Labels[record.RevisionLabel] = a.Revision
	if known := s.Record.KnownAs(s.StableObject.Name); known != s.StableObject.Name {
		canary.Labels[record.WorkloadLabel] = known
	}
	canary.Annotations[record.OwnerAnnotation] = s.StableObject.Namespace + "/" + string(s.StableObject.UID)
	if err := noteTraffic(canary, s); err != nil {
		return nil, err
	}
	if a.Target != nil {
		target, err := a.Target.Encode()
		if err != nil {
			return nil, err
		}
		canary.Annotations[record.TargetAnnotation] = target
	}
	canary.Spec.Replicas = ptr.To(int32(a.Replicas)) //nolint:gosec // clamped to the stable workload's replicas
	canary.Spec.LeaderWorkerTemplate = observe.CanaryTemplate(s.StableObject, s.Policy)
	// It has no old groups, so it never rolls unless its template is edited; and the user's percentages could round to 0 for the
	// few groups of a canary, which LWS refuses.
	canary.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return canary, nil
}

// noteTraffic annotates the canary with the release's traffic policy; see record.TrafficAnnotation.
func noteTraffic(canary *lws.LeaderWorkerSet, s *observe.Snapshot) error {
	if s.Policy.Traffic == nil {
		return nil
	}
	policy, err := s.Record.Release.PolicyMessage()
	if err != nil {
		return err
	}
	value, err := record.EncodeTraffic(policy.GetTraffic())
	if err != nil {
		return err
	}
	canary.Annotations[record.TrafficAnnotation] = value
	return nil
}
