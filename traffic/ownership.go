// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// madeFor says whether an object was generated for this workload's canary, by its marks.
func madeFor(o metav1.Object, s Setup) bool {
	labels := o.GetLabels()
	return labels[RoleLabel] == RoleCanary && labels[StableLabel] == s.Stable
}

// ownedBy says whether garbage collection will take the object with this very workload, not with an earlier one of its
// name.
func ownedBy(o metav1.Object, s Setup) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.UID == s.Owner.UID
}

// toolMarks are the labels and annotations by which tools know what they manage. An object that carried the marks of
// the one it was copied from would be pruned, or fought over, by them. A trailing "/" matches the whole domain.
var toolMarks = []string{
	corev1.LastAppliedConfigAnnotation,
	"argocd.argoproj.io/",
	"app.kubernetes.io/instance", // Argo CD's default tracking label
	"app.kubernetes.io/managed-by",
	"meta.helm.sh/",
	"helm.sh/chart",
	"helm.toolkit.fluxcd.io/",
	"kustomize.toolkit.fluxcd.io/",
	"applyset.kubernetes.io/",
	"config.k8s.io/",
	"lockstep.dev/",
}

// syncMarks are those of tools that apply their manifests again and again.
var syncMarks = []string{
	"argocd.argoproj.io/tracking-id",
	"argocd.argoproj.io/instance",
	"kustomize.toolkit.fluxcd.io/",
	"helm.toolkit.fluxcd.io/",
	"applyset.kubernetes.io/part-of",
}

// SyncedBy is the label or annotation that tells that a tool applies an object's manifest again and again, "" if none does.
func SyncedBy(o metav1.Object) string {
	for _, marks := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for _, key := range slices.Sorted(maps.Keys(marks)) {
			if marked(key, syncMarks) {
				return key
			}
		}
	}
	return ""
}

// serviceMarks are those that belong to one Service alone: a copy would claim its host name or its status.
var serviceMarks = []string{
	"external-dns.alpha.kubernetes.io/",
	"cloud.google.com/neg-status",
	"endpoints.kubernetes.io/",
	"service.kubernetes.io/headless",
}

// ingressMarks are those that belong to one Ingress alone: a copy would order another certificate for the same Secret, or
// claim the host names again.
var ingressMarks = []string{
	"cert-manager.io/",
	"acme.cert-manager.io/",
	"kubernetes.io/tls-acme",
	"external-dns.alpha.kubernetes.io/",
}

// WithoutToolMarks returns a copy of labels or annotations that a generated object may carry. It is never nil.
func WithoutToolMarks(in map[string]string) map[string]string { return without(in, toolMarks) }

func without(in map[string]string, marks []string) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		if !marked(k, marks) {
			out[k] = v
		}
	}
	return out
}

func marked(key string, marks []string) bool {
	for _, mark := range marks {
		if key == mark || (strings.HasSuffix(mark, "/") && strings.HasPrefix(key, mark)) {
			return true
		}
	}
	return false
}

// disown gives up the fields that are the user's again: whoever applies the manifest with server-side apply would
// otherwise meet a conflict with a release that is over.
func disown(s Setup, d Desired, w World) (*Write, error) {
	if d.Fenced {
		return none()
	}
	if w.Stable != nil {
		if write := disownOf(Key{KindService, w.Stable.Name}, w.Stable); write != nil {
			return write, nil
		}
	}
	if w.StablePool != nil {
		if write := disownOf(Key{KindInferencePool, w.StablePool.GetName()}, w.StablePool); write != nil {
			return write, nil
		}
	}
	for _, r := range w.routes(s) {
		if slices.Contains(s.Shared, r.Key) {
			continue // the last release gives up all of Lockstep's fields: they can't be told apart
		}
		if write := disownOf(r.Key, r.Object); write != nil {
			return write, nil
		}
	}
	return none()
}

func disownOf(key Key, o metav1.Object) *Write {
	fields := o.GetManagedFields()
	if o.GetDeletionTimestamp() != nil || !slices.ContainsFunc(fields, Ours) {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(fields), Ours)
	if len(others) == 0 {
		others = []metav1.ManagedFieldsEntry{{}} // the API server ignores an empty list; this one empties the record
	}
	p := patch{}
	p.set(others, "metadata", "managedFields")
	return patchOf(key, o, p, "give up its fields")
}

// Ours says whether an entry is about fields that this package has written.
func Ours(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}
