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

// madeFor reports whether an object is labelled as generated for this workload's canary, and not owned by one of another kind.
func madeFor(o metav1.Object, s Setup) bool {
	labels, owner := o.GetLabels(), metav1.GetControllerOfNoCopy(o)
	return labels[RoleLabel] == RoleCanary && labels[StableLabel] == s.Stable && (owner == nil || owner.Kind == s.Owner.Kind)
}

// ownedBy reports whether the object's controller is this very workload, by UID, not an earlier one with the same name.
func ownedBy(o metav1.Object, s Setup) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.UID == s.Owner.UID
}

// reconcileGenerated returns the write that is due on a generated object that exists. That is its deletion if it belongs to an earlier
// workload, or else the repair of its drift. otherwise is the remedy if it is foreign, see nameTaken.
func reconcileGenerated(s Setup, key Key, have metav1.Object, otherwise string, drift patch, why string) (*Write, error) {
	switch {
	case !madeFor(have, s):
		return nil, nameTaken(s, key, otherwise)
	case have.GetDeletionTimestamp() != nil:
		return noWrite() // recreated once deleted
	case !ownedBy(have, s):
		return deleteOf(key, have, "it belongs to an earlier workload of the same name"), nil
	case len(drift) > 0:
		return patchOf(key, have, drift, why), nil
	}
	return noWrite()
}

// toolKeys are labels and annotations with which tools track the objects that they manage. A generated object must not copy
// them: the tools would prune or revert it. A trailing "/" matches the whole domain.
var toolKeys = []string{
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

// trackers are the tools that apply their manifests continuously, by the label or annotation with which they mark an object.
var trackers = map[string]string{
	"argocd.argoproj.io/tracking-id":   "Argo CD",
	"argocd.argoproj.io/instance":      "Argo CD",
	"kustomize.toolkit.fluxcd.io/name": "Flux",
	"helm.toolkit.fluxcd.io/name":      "Flux",
	"applyset.kubernetes.io/part-of":   "an apply set",
}

// Tracking is how a tool marks an object whose manifest it applies continuously: a key of its annotations or labels, with a value.
type Tracking struct{ Tool, Field, Key, Value string }

// TrackingOf returns how a tool tracks an object, or the zero value if none does.
func TrackingOf(o metav1.Object) Tracking {
	for _, m := range []struct {
		field  string
		values map[string]string
	}{{"annotations", o.GetAnnotations()}, {"labels", o.GetLabels()}} {
		for _, key := range slices.Sorted(maps.Keys(m.values)) {
			if tool := trackers[key]; tool != "" {
				return Tracking{tool, m.field, key, m.values[key]}
			}
		}
	}
	return Tracking{}
}

// serviceKeys belong to one Service alone: a copy would claim its host name or its status.
var serviceKeys = []string{
	"external-dns.alpha.kubernetes.io/",
	"cloud.google.com/neg-status",
	"endpoints.kubernetes.io/",
	"service.kubernetes.io/headless",
}

// ingressKeys belong to one Ingress alone: a copy would request another certificate for the same Secret, or claim the host
// names again.
var ingressKeys = []string{
	"cert-manager.io/",
	"acme.cert-manager.io/",
	"kubernetes.io/tls-acme",
	"external-dns.alpha.kubernetes.io/",
}

// WithoutToolMetadata returns a copy of labels or annotations without those of tools, for a generated object. It is never nil.
func WithoutToolMetadata(in map[string]string) map[string]string { return withoutKeys(in, toolKeys) }

func withoutKeys(in map[string]string, keys []string) map[string]string {
	out := make(map[string]string, len(in))
	maps.Copy(out, in)
	maps.DeleteFunc(out, func(k, _ string) bool { return matchesKey(k, keys) })
	return out
}

// generatedMeta returns the metadata of an object that is generated from one of the user's, without the keys of tools and those that
// belong to the user's alone.
func generatedMeta(s Setup, name string, from metav1.Object, users ...string) metav1.ObjectMeta {
	drop := slices.Concat(toolKeys, users)
	meta := metav1.ObjectMeta{
		Name: name, Namespace: s.Namespace, OwnerReferences: []metav1.OwnerReference{s.Owner},
		Labels: withoutKeys(from.GetLabels(), drop), Annotations: withoutKeys(from.GetAnnotations(), drop),
	}
	meta.Labels[RoleLabel], meta.Labels[StableLabel] = RoleCanary, s.Stable
	return meta
}

func matchesKey(key string, keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool {
		return key == k || strings.HasSuffix(k, "/") && strings.HasPrefix(key, k)
	})
}

// relinquishFields removes Lockstep's entries from managedFields once the fields are the user's again. Otherwise a server-side apply
// of the user's manifest would conflict with a release that has ended.
func relinquish(s Setup, d Desired, w World) (*Write, error) {
	if d.Isolated {
		return noWrite()
	}
	for _, sel := range w.selectors() {
		if sel.foreignIsolation(s) {
			continue
		}
		if write := relinquishFields(sel.of, sel.object); write != nil {
			return write, nil
		}
	}
	backend, exists := w.stableBackend(s)
	// A route may name a Service that another workload's release has isolated. Its entry is that release's.
	foreign := exists && w.verify(backend, s) != nil
	for _, r := range w.routes(s) {
		if foreign || slices.Contains(s.Shared, r.Key) || !RouteServes(r, s) {
			continue // the fields of several releases are one entry: the last release of a workload on the route removes it
		}
		if write := relinquishFields(r.Key, r.Object); write != nil {
			return write, nil
		}
	}
	return noWrite()
}

func relinquishFields(key Key, o metav1.Object) *Write {
	fields := o.GetManagedFields()
	// managedFields end with the object, so a write for them alone would be wasted.
	if o.GetDeletionTimestamp() != nil || !slices.ContainsFunc(fields, IsLockstepEntry) {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(fields), IsLockstepEntry)
	if len(others) == 0 {
		others = []metav1.ManagedFieldsEntry{{}} // the API server ignores an empty list; a list of one empty entry clears it
	}
	p := patch{}
	p.set(others, "metadata", "managedFields")
	return patchOf(key, o, p, "relinquish its fields")
}

// IsLockstepEntry reports whether an entry of managedFields is about fields that this package has written.
func IsLockstepEntry(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}
