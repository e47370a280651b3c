// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// newCanary builds the second workload: the stable one's spec, labels and annotations, but no tool's marks.
func newCanary(s *seen, a plan.CreateCanary) (*lws.LeaderWorkerSet, error) {
	canary := &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.Name, Namespace: s.stable.Namespace,
			Labels:      traffic.WithoutToolMarks(s.stable.Labels),
			Annotations: traffic.WithoutToolMarks(s.stable.Annotations),
			Finalizers:  []string{record.Finalizer},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.stable, lws.GroupVersion.WithKind("LeaderWorkerSet")),
			},
		},
		Spec: *s.stable.Spec.DeepCopy(),
	}
	canary.Labels[record.RoleLabel] = record.RoleCanary
	canary.Labels[record.StableLabel] = s.stable.Name
	canary.Labels[record.RevisionLabel] = a.Revision
	if known := s.Record.KnownAs(s.stable.Name); known != s.stable.Name {
		canary.Labels[record.WorkloadLabel] = known
	}
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
	canary.Spec.LeaderWorkerTemplate = canaryTemplate(s.stable, s.Policy)
	// It has no old groups, so it never rolls, unless somebody edits its template; and the user's own percentages could
	// round to 0 for the few groups of a canary, which LWS refuses.
	canary.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return canary, nil
}

// noteTraffic notes on the canary where the release's requests go; see record.TrafficAnnotation.
func noteTraffic(canary *lws.LeaderWorkerSet, s *seen) error {
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

// canaryTemplate is the stable workload's template with the policy's metadata on the leader. Its volume claims go with
// it: they would be left behind for good otherwise, since the next canary has another name.
func canaryTemplate(stable *lws.LeaderWorkerSet, p record.Policy) lws.LeaderWorkerTemplate {
	t := *stable.Spec.LeaderWorkerTemplate.DeepCopy()
	if len(t.VolumeClaimTemplates) > 0 {
		t.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			WhenScaled:  appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		}
	}
	if len(p.LeaderLabels) == 0 && len(p.LeaderAnnotations) == 0 {
		return t
	}
	if t.LeaderTemplate == nil {
		// Without a template of their own leaders use the workers'.
		t.LeaderTemplate = t.WorkerTemplate.DeepCopy()
	}
	t.LeaderTemplate.Labels = merged(t.LeaderTemplate.Labels, p.LeaderLabels)
	t.LeaderTemplate.Annotations = merged(t.LeaderTemplate.Annotations, p.LeaderAnnotations)
	return t
}

func merged(base, more map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil && len(more) > 0 {
		out = map[string]string{}
	}
	maps.Copy(out, more)
	return out
}
