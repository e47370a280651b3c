// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Kind is the kind of the workloads that are observed.
const Kind = plugin.KindLeaderWorkerSet

// StripWorkload drops from w what only other tools read, and returns it. It is the informer's transform.
func StripWorkload(w *lws.LeaderWorkerSet) *lws.LeaderWorkerSet {
	w.ManagedFields = lastManagers(w)
	if _, ok := w.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		// Its key stays: a patch must know whether there is a map to add to.
		w.Annotations[corev1.LastAppliedConfigAnnotation] = ""
	}
	return w
}

// In the field set of a manager that owns something of the template, the number of groups, or something of how they are rolled.
const (
	templateField = `"f:leaderWorkerTemplate"`
	replicasField = `"f:replicas"`
	rollingField  = `"f:rollingUpdateConfiguration"`
)

// lastManagers keeps the last managers of the template and of replicas, and who changed the rolling update configuration after Lockstep,
// each marked by its field.
func lastManagers(w *lws.LeaderWorkerSet) []metav1.ManagedFieldsEntry {
	var kept []metav1.ManagedFieldsEntry
	for _, field := range []string{templateField, replicasField} {
		if last := lastManager(w, field); last != nil {
			kept = append(kept, metav1.ManagedFieldsEntry{
				Manager: strings.Clone(last.Manager), Subresource: strings.Clone(last.Subresource), FieldsType: field,
			})
		}
	}
	if last := traffic.LastWriter(w.ManagedFields, rollingField); last != nil {
		kept = append(kept, metav1.ManagedFieldsEntry{Manager: strings.Clone(last.Manager), Time: last.Time, FieldsType: rollingField})
	}
	return kept
}

// lastManager returns the last manager of a field of the spec. Of two in the same second it is the one with fewer fields: a
// partial change comes after the creation.
func lastManager(w *lws.LeaderWorkerSet, field string) *metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range w.ManagedFields {
		m := &w.ManagedFields[i]
		// LWS's status has a field named replicas, too.
		if m.FieldsV1 == nil || m.Subresource == "status" || !strings.Contains(m.FieldsV1.GetRawString(), field) {
			continue
		}
		if last == nil || last.Time == nil || m.Time != nil && (last.Time.Before(m.Time) ||
			m.Time.Equal(last.Time) && len(m.FieldsV1.GetRawString()) < len(last.FieldsV1.GetRawString())) {
			last = m
		}
	}
	return last
}

// managerOf returns the last manager of a field of a cached workload, or "" if it is unknown.
func managerOf(w *lws.LeaderWorkerSet, field string) metav1.ManagedFieldsEntry {
	for _, m := range w.ManagedFields {
		if m.FieldsType == field {
			return m
		}
	}
	return metav1.ManagedFieldsEntry{}
}

// changedBy returns the field manager that wrote the template of a cached workload last, "" if unknown.
func changedBy(w *lws.LeaderWorkerSet) string { return managerOf(w, templateField).Manager }

// scaledBy returns the field manager that wrote replicas of a cached workload last, "" if unknown, and whether it seems to be
// an autoscaler: kubectl is the only other client that is known to write the scale subresource.
func scaledBy(w *lws.LeaderWorkerSet) (manager string, autoscaled bool) {
	m := managerOf(w, replicasField)
	return m.Manager, m.Subresource == "scale" && !strings.HasPrefix(m.Manager, "kubectl")
}

// KeyOf returns the namespace and name of an object.
func KeyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// StableKey returns the key of the user's workload that w belongs to: its own, unless a release added it, or it is a child of a
// DisaggregatedSet.
func StableKey(w *lws.LeaderWorkerSet) types.NamespacedName {
	// Only the view of a DisaggregatedSet has this kind.
	if w.Kind == KindSet {
		return KeyFor(KindSet, w.Namespace, w.Name)
	}
	if set, child := setOf(w); child {
		return set
	}
	key := KeyOf(w)
	if stable, ok := AddedTo(w); ok {
		key.Name = stable
	}
	return key
}

// AddedTo returns the name of the workload that a release added w to; ok is false if none did. The driver scales and deletes added
// workloads, and manifests are copied with all their labels. So the labels are not enough: the workload that they name must own
// w, and w must have the name that the driver gives, which no copy in the namespace can have. Of an orphan the annotation and the
// finalizer are the proof, which no copy in another namespace has.
func AddedTo(w *lws.LeaderWorkerSet) (stable string, ok bool) {
	stable, owner := w.Labels[record.StableLabel], metav1.GetControllerOf(w)
	if w.Labels[record.RoleLabel] == "" || stable == "" || owner == nil && !orphaned(w) {
		return "", false
	}
	if owner != nil && controllerOf(w, lws.GroupVersion.Group, Kind) != stable {
		return "", false
	}
	// After a handover the canary's name derives from the name by which hosts know the workload.
	known := cmp.Or(w.Labels[record.WorkloadLabel], stable)
	return stable, w.Name == record.CanaryName(known, stable, w.Labels[record.RevisionLabel])
}

// controllerOf returns the name of the controlling owner of an object if it is of a kind, else "".
func controllerOf(o metav1.Object, group, kind string) string {
	owner := metav1.GetControllerOf(o)
	if owner == nil || owner.Kind != kind {
		return ""
	}
	if version, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || version.Group != group {
		return ""
	}
	return owner.Name
}

// orphaned reports whether the driver created w in this namespace, and its owner reference was removed since.
func orphaned(w *lws.LeaderWorkerSet) bool {
	namespace, uid, _ := strings.Cut(w.Annotations[record.OwnerAnnotation], "/")
	return len(w.OwnerReferences) == 0 && hasFinalizer(w) && namespace == w.Namespace && uid != ""
}

// ownerUID returns the UID of the user's workload that w was added to.
func ownerUID(w metav1.Object) types.UID {
	if owner := metav1.GetControllerOf(w); owner != nil {
		return owner.UID
	}
	_, uid, _ := strings.Cut(w.GetAnnotations()[record.OwnerAnnotation], "/")
	return types.UID(uid)
}

// isOrphaning reports whether a workload is being deleted with --cascade=orphan, so that its pods stay.
func isOrphaning(w *lws.LeaderWorkerSet) bool {
	return w.DeletionTimestamp != nil && slices.Contains(w.Finalizers, metav1.FinalizerOrphanDependents)
}

// OurLabels returns the labels of an added workload that w carries, sorted.
func OurLabels(w *lws.LeaderWorkerSet) []string {
	var found []string
	for _, label := range []string{record.RevisionLabel, record.RoleLabel, record.StableLabel} {
		if _, ok := w.Labels[label]; ok {
			found = append(found, label)
		}
	}
	return found
}

// hasFinalizer reports whether the finalizer of added workloads, and of bounds, is on an object.
func hasFinalizer(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), record.Finalizer)
}

// Lingers reports whether a workload is being deleted without its groups: not in the foreground.
func Lingers(w *lws.LeaderWorkerSet) bool {
	return w.DeletionTimestamp != nil && !slices.Contains(w.Finalizers, metav1.FinalizerDeleteDependents)
}

// rollingOf returns the rolling update configuration in the spec; LWS's webhook always sets one.
func rollingOf(w *lws.LeaderWorkerSet) lws.RollingUpdateConfiguration {
	return ptr.Deref(w.Spec.RolloutStrategy.RollingUpdateConfiguration, lws.RollingUpdateConfiguration{})
}

// CanaryTemplate returns the template of the workload that a release adds: the stable one's, with the policy's metadata on the
// leader. Its volume claims are deleted with it: the next canary has another name and could not reuse them.
func CanaryTemplate(stable *lws.LeaderWorkerSet, p record.Policy) lws.LeaderWorkerTemplate {
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
		// Without a leader template LWS uses the workers'.
		t.LeaderTemplate = t.WorkerTemplate.DeepCopy()
	}
	t.LeaderTemplate.Labels = labels.Merge(t.LeaderTemplate.Labels, p.LeaderLabels)
	t.LeaderTemplate.Annotations = labels.Merge(t.LeaderTemplate.Annotations, p.LeaderAnnotations)
	return t
}
