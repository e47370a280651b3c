// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A workload that adopted a second set goes by its old name, though its object has another one. Hosts may use either, and
// that of the object before, which a release under way was begun with. An object of that very name comes first: somebody made
// a new one, and means it.

// knownIndex finds workloads by the names that hosts know them by, but their own.
const knownIndex = "known"

func indexKnown(obj any) ([]string, error) {
	w, ok := obj.(*lws.LeaderWorkerSet)
	if !ok {
		return nil, nil
	}
	var keys []string
	for _, name := range otherNames(w) {
		keys = append(keys, types.NamespacedName{Namespace: w.Namespace, Name: name}.String())
	}
	return keys, nil
}

// otherNames are the names that hosts know a workload by, but its own; the lasting one comes first. The label alone is not
// trusted, since manifests are copied with all their labels: the record says so, too, and is the workload's own.
func otherNames(w *lws.LeaderWorkerSet) []string {
	label := w.Labels[record.WorkloadLabel]
	if _, added := AddedTo(w); added || label == "" {
		return nil
	}
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil || rec.UID != w.UID || rec.Workload != label {
		return nil
	}
	names := []string{label}
	if before := rec.Predecessor; before != "" && before != label {
		names = append(names, before)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == w.Name })
}

// Named returns the key of the workload that is known by a name: of two, of which one is about to be deleted, that one, as
// long as it exists. It is the key itself if there is none, or more than one.
func (c *Caches) Named(key types.NamespacedName) types.NamespacedName {
	if c.Workload(key) != nil {
		return key
	}
	objs, err := c.Workloads.GetIndexer().ByIndex(knownIndex, key.String())
	if err != nil {
		return key
	}
	var all []*lws.LeaderWorkerSet
	for _, obj := range objs {
		if w, ok := obj.(*lws.LeaderWorkerSet); ok {
			all = append(all, w)
		}
	}
	for _, w := range all {
		next := successorOf(w)
		if len(all) == 1 || len(all) == 2 && slices.ContainsFunc(all, func(other *lws.LeaderWorkerSet) bool { return other.Name == next }) {
			return KeyOf(w)
		}
	}
	return key
}

// successorOf names the second set that is being adopted in the place of a workload. Empty: there is none.
func successorOf(w *lws.LeaderWorkerSet) string {
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil || rec.Release == nil {
		return ""
	}
	return rec.Release.Successor
}

// GoesBy reports whether hosts know the workload by a name that is not its own.
func (c *Caches) GoesBy(key, name types.NamespacedName) bool {
	w := c.Workload(key)
	return w != nil && key.Namespace == name.Namespace && slices.Contains(otherNames(w), name.Name)
}

// succeeded reports whether the second set that a record names as successor is a workload of its own: nothing says any more
// that a release added it, neither its labels, which anybody may take off, nor its owner.
func (c *Caches) succeeded(s *Snapshot) bool {
	if s.Record == nil || s.Record.Release == nil || s.Record.Release.Successor == "" {
		return false
	}
	w := c.Workload(types.NamespacedName{Namespace: s.Key.Namespace, Name: s.Record.Release.Successor})
	return w != nil && StableKey(w) != s.Key && !metav1.IsControlledBy(w, s.StableObject)
}
