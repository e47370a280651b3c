// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// The names by which hosts know workloads.
//
// A handover makes a release's second set the workload and deletes the object that was the workload before: the object's name
// changes, the workload's must not. So a workload has aliases beside its object's name: the one that hosts first knew it by,
// which it keeps over any number of handovers, and its predecessor's, with which the release under way was begun. The record
// holds both ([record.Record.Workload] and Predecessor), and a label repeats the first. Manifests are copied with their labels
// and annotations, so an alias counts only if label and record agree and the record was written on this very object.
//
// An object's own name takes precedence over an alias: a user created that object, and means it. During a handover the
// object and its successor have the same alias, which means the former for as long as it exists. An alias that two other
// objects have is ambiguous and means neither.

// aliasIndex finds workloads by their aliases.
const aliasIndex = "alias"

func aliasKeys(w *lws.LeaderWorkerSet) []string {
	keys := aliases(w)
	for i, alias := range keys {
		keys[i] = types.NamespacedName{Namespace: w.Namespace, Name: alias}.String()
	}
	return keys
}

// aliases returns the aliases of a workload, the lasting one first.
func aliases(w *lws.LeaderWorkerSet) []string {
	label := w.Labels[record.WorkloadLabel]
	if _, added := AddedTo(w); added || label == "" {
		return nil
	}
	rec := recordOf(w)
	// A copied manifest carries label and record of the original, but has another UID.
	if rec == nil || rec.UID != w.UID || rec.Workload != label {
		return nil
	}
	return slices.DeleteFunc(slices.Compact([]string{label, rec.Predecessor}), func(name string) bool { return name == "" || name == w.Name })
}

// Resolve returns the key of the workload that a name means, and the name itself if it means none.
func (c *Caches) Resolve(name types.NamespacedName) types.NamespacedName {
	if c.Workload(name) != nil {
		return name
	}
	all := informer.List[*lws.LeaderWorkerSet](c.Workloads, aliasIndex, name.String())
	switch len(all) {
	case 1:
		return KeyOf(all[0])
	case 2:
		// During a handover both objects have the alias. Any other pair is ambiguous.
		if i := slices.IndexFunc(all, func(w *lws.LeaderWorkerSet) bool { return handsOver(w, all) }); i >= 0 {
			return KeyOf(all[i])
		}
	}
	return name
}

// handsOver reports whether the successor of a workload is one of the objects. Both records must say so: the record of one can be
// edited by users who may not edit the other.
func handsOver(w *lws.LeaderWorkerSet, objects []*lws.LeaderWorkerSet) bool {
	next, ok := successor(KeyOf(w), recordOf(w))
	return ok && slices.ContainsFunc(objects, func(o *lws.LeaderWorkerSet) bool { return KeyOf(o) == next && succeeds(o, w) })
}

// succeeds reports whether the record of a workload, written on this very object, names another as its predecessor.
func succeeds(next, w *lws.LeaderWorkerSet) bool {
	rec := recordOf(next)
	return rec != nil && rec.UID == next.UID && rec.Predecessor == w.Name
}

// IsAlias reports whether a name is an alias of the workload.
func (c *Caches) IsAlias(name, workload types.NamespacedName) bool {
	w := c.Workload(workload)
	return w != nil && name.Namespace == workload.Namespace && slices.Contains(aliases(w), name.Name)
}

// recordOf returns the record of a workload, nil if it has none that can be read.
func recordOf(w *lws.LeaderWorkerSet) *record.Record {
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil {
		return nil
	}
	dropCopied(rec, w)
	return rec
}

// successor returns the second set that the release of a workload hands it over to; ok is false if it does not.
func successor(workload types.NamespacedName, rec *record.Record) (next types.NamespacedName, ok bool) {
	if rec == nil || rec.Release == nil || rec.Release.Successor == "" {
		return next, false
	}
	return types.NamespacedName{Namespace: workload.Namespace, Name: rec.Release.Successor}, true
}

// readSuccessor reads the successor that the record of a workload names.
//
// It has succeeded if it is one in its own right: it has neither the labels of an added workload, which any user may remove, nor the owner, and
// its own record names the workload as its predecessor. It is foreign if neither a release of the workload added it, nor its own record names
// the workload. A successor that does not exist must have the name of the second set.
func (c *Caches) readSuccessor(s *Snapshot) {
	next, ok := successor(s.Key, s.Record)
	if !ok {
		return
	}
	w := c.Workload(next)
	// Nothing but its name and the revision is left to check.
	if w == nil {
		revision := s.Record.Release.UpdateRevision
		s.SuccessorForeign = !slices.Contains(s.Stable.Recorded, revision) || next.Name != s.CanaryName(revision)
		return
	}
	added, owned, succeeds := StableKey(w) == s.Key, metav1.IsControlledBy(w, s.StableObject), succeeds(w, s.StableObject)
	s.Succeeded = !added && !owned && succeeds
	s.SuccessorForeign = (!added || ownerUID(w) != s.StableObject.UID) && !owned && !succeeds
}
