// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

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
			// Argo CD prunes what carries its tracking marks and is not in Git.
			Labels:      traffic.WithoutToolMetadata(s.StableObject.Labels),
			Annotations: traffic.WithoutToolMetadata(s.StableObject.Annotations),
			// Another client may delete the canary while requests go to it.
			Finalizers: []string{record.Finalizer},
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
	// kubectl delete --cascade=orphan removes owner references, and the canary must still be found.
	canary.Annotations[record.OwnerAnnotation] = s.StableObject.Namespace + "/" + string(s.StableObject.UID)
	note, err := trafficNote(s)
	if err != nil {
		return nil, err
	}
	if note != "" {
		canary.Annotations[record.TrafficAnnotation] = note
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
	// The canary has no old groups, so it rolls only if its template is edited. The user's percentages could round to 0 for its few groups,
	// which LWS refuses.
	canary.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return canary, nil
}

// trafficNote returns the value of record.TrafficAnnotation for the release, "" if it has no traffic policy. Without the record, bounds keep
// their value.
func trafficNote(s *observe.Snapshot) (string, error) {
	switch {
	case s.Policy.Traffic == nil:
		return "", nil
	case s.Record == nil || s.Record.Release == nil:
		return s.BoundsObject.Annotations[record.TrafficAnnotation], nil
	}
	policy, err := s.Record.Release.PolicyMessage()
	if err != nil {
		return "", err
	}
	return record.EncodeTraffic(policy.GetTraffic())
}

// The writes by which a second set becomes the workload.

// transferHistory moves a revision to the successor's history and makes the successor its owner.
func (a *Applier) transferHistory(ctx context.Context, s *observe.Snapshot, t plan.TransferHistory) (bool, error) {
	have := a.observer.History.Find(s, t.Revision)
	to := s.AddedObjects[t.To]
	if have == nil || to == nil {
		return false, nil // the next observation decides
	}
	owner := metav1.NewControllerRef(to, lws.GroupVersion.WithKind(observe.Kind))
	owner.BlockOwnerDeletion = nil // a revision must not block the deletion of its workload
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": have.UID, "resourceVersion": have.ResourceVersion,
		"labels":          map[string]string{record.StableLabel: to.Name},
		"ownerReferences": []metav1.OwnerReference{*owner},
	}})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	return a.patchRevision(ctx, have, raw, s.Key, observe.KeyOf(to))
}

// handOver makes the second set a workload under hold, in one request: it removes finalizer, owner and labels of an added
// workload, and sets the record.
func (a *Applier) handOver(ctx context.Context, s *observe.Snapshot, t plan.HandOver) (bool, error) {
	w := s.AddedObjects[t.Name]
	if w == nil {
		return false, nil // the next observation decides
	}
	t.Record.UID = w.UID
	value, err := t.Record.Encode()
	if err != nil {
		return false, err
	}
	p := newPatch(w, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, value)
	p.annotate(record.TargetAnnotation, "")
	p.annotate(record.TrafficAnnotation, "")
	p.annotate(record.OwnerAnnotation, "")
	// The user's own annotation would be lost with the object.
	if limit, ok := s.StableObject.Annotations[record.HistoryLimitAnnotation]; ok {
		p.add(limit, "metadata", "annotations", record.HistoryLimitAnnotation)
	}
	for _, label := range observe.OurLabels(w) {
		p.removeLabel(label)
	}
	p.add(t.Record.Workload, "metadata", "labels", record.WorkloadLabel)
	// A list is replaced as a whole. The test keeps what another client has added to it.
	p.test(w.Finalizers, "metadata", "finalizers")
	p.add(withoutFinalizer(w.Finalizers), "metadata", "finalizers")
	others := slices.DeleteFunc(slices.Clone(w.OwnerReferences), func(o metav1.OwnerReference) bool { return o.UID == s.StableObject.UID })
	p.test(w.OwnerReferences, "metadata", "ownerReferences")
	p.add(others, "metadata", "ownerReferences")
	p.setRolling(record.Hold())
	// The canary's template may have the policy's metadata on leaders, which the user's manifest lacks.
	// The hold in the same request keeps its groups.
	if have, want := record.TemplateOf(w), record.TemplateOf(s.StableObject); !observe.SameTemplate(have, want) {
		p.setTemplate(want)
	}
	return a.patch(ctx, s.Key, p)
}
