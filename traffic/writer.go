// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LastWriter returns the entry of the field manager that wrote a field last, such as "f:spec" in quotes, or nil if it is unknown, or Lockstep.
// Of two in the same second it is the other one, since this is asked about what Lockstep has to repair.
func LastWriter(entries []metav1.ManagedFieldsEntry, field string) *metav1.ManagedFieldsEntry {
	var last, own *metav1.ManagedFieldsEntry
	for i := range entries {
		e := &entries[i]
		if e.Time == nil || e.Subresource == "status" || !hasField(e, field) {
			continue
		}
		of := &last
		if e.Manager == FieldManager {
			of = &own
		}
		if *of == nil || (*of).Time.Before(e.Time) {
			*of = e
		}
	}
	if last == nil || own != nil && last.Time.Before(own.Time) {
		return nil
	}
	return last
}

// hasField reports whether an entry is about a field, also once only its name is kept.
func hasField(e *metav1.ManagedFieldsEntry, field string) bool {
	return e.FieldsType == field || e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), field)
}

// releasedField returns what a release writes of an object: an Ingress has its share in annotations.
func releasedField(o metav1.Object) string {
	if _, ok := o.(*networkingv1.Ingress); ok {
		return `"f:annotations"`
	}
	return `"f:spec"`
}

// StripFields drops the fields of managers, but neither their names nor which of them wrote what a release writes.
func StripFields(o metav1.Object) {
	entries, field := o.GetManagedFields(), releasedField(o)
	for i := range entries {
		e := &entries[i]
		if hasField(e, field) {
			e.FieldsType = field
		}
		e.FieldsV1 = nil
	}
	o.SetManagedFields(entries)
}

// KeepLastWriter drops all of an object's managed fields but the name of who wrote last what a release writes.
func KeepLastWriter(o metav1.Object) {
	var kept []metav1.ManagedFieldsEntry
	if last := LastWriter(o.GetManagedFields(), releasedField(o)); last != nil {
		kept = []metav1.ManagedFieldsEntry{{Manager: strings.Clone(last.Manager), Time: last.Time, FieldsType: releasedField(o)}}
	}
	o.SetManagedFields(kept)
}
