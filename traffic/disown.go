// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
