// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// HistoryRevision is a revision in a workload's history, a ControllerRevision of the driver, without its template.
type HistoryRevision struct {
	metav1.ObjectMeta

	// Entry is what the planner observes of it.
	Entry plan.Entry
	// Images are those of the template, as history.Images returns them. Nil means that the template can't be read.
	Images []string
	// live are the fields of the template that LWS reads from the spec. Zero means that the template can't be read.
	live plan.LiveFields

	// workload is the key of the workload whose history it belongs to, and owner that workload's UID.
	workload types.NamespacedName
	owner    types.UID
}

// stripHistoryRevision is the informer's transform.
func stripHistoryRevision(cr *appsv1.ControllerRevision) *HistoryRevision {
	v := &HistoryRevision{ObjectMeta: stripMeta(&cr.ObjectMeta)}
	owner := ptr.Deref(metav1.GetControllerOf(cr), metav1.OwnerReference{})
	// Any editor of a namespace may create a StatefulSet with large revisions that have the label.
	if cmp.Or(controllerOf(cr, lws.GroupVersion.Group, Kind), controllerOf(cr, disaggregated.GroupVersion.Group, KindSet)) == "" {
		return v
	}
	v.Entry = history.Read(cr)
	v.workload, v.owner = KeyFor(owner.Kind, v.Namespace, strings.Clone(cr.Labels[record.StableLabel])), owner.UID
	// The template itself is dropped: a rollback reads it again from the API server.
	if t, err := history.Decode(cr); err == nil {
		v.Images = history.Images(t)
		v.live = plan.LiveFieldsOf(&t.LeaderWorkerTemplate, t.NetworkConfig)
	}
	return v
}

// History holds the revisions in the histories of workloads.
type History struct {
	informer *informer.Informer
}

func (o *Observer) newHistory() *History {
	core := o.config.Core
	return &History{informer.New(informer.Config{
		Source: informer.NewSource(appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), core,
			core.AppsV1().ControllerRevisions(o.config.Namespace), record.RoleLabel+"="+record.RoleSnapshot),
		Example: &appsv1.ControllerRevision{}, Transform: informer.Transform(stripHistoryRevision), Changed: o.allChanged,
		Indexers: cache.Indexers{addedIndex: informer.Index(func(v *HistoryRevision) []string { return []string{v.workload.String()} })},
		Handler:  informer.OnKeys(func(v *HistoryRevision) types.NamespacedName { return v.workload }, o.changed),
	})}
}

// Of returns the history of a workload, the oldest revision first. A revision with another owner is left out: it belongs to a
// workload that no longer exists, or was copied.
func (n *History) Of(key types.NamespacedName, uid types.UID) []*HistoryRevision {
	all := slices.DeleteFunc(informer.List[*HistoryRevision](n.informer, addedIndex, key.String()),
		func(v *HistoryRevision) bool { return v.owner != uid })
	slices.SortFunc(all, func(a, b *HistoryRevision) int {
		return cmp.Or(cmp.Compare(a.Entry.Number, b.Entry.Number), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Get returns a revision by the key of its ControllerRevision, nil if it does not exist.
func (n *History) Get(key types.NamespacedName) *HistoryRevision {
	return informer.Get[*HistoryRevision](n.informer, key)
}

// Synced reports whether the cache has been filled.
func (n *History) Synced() bool { return n.informer.Synced() }

// Find returns a revision in the history of an observed workload, nil if it does not exist.
func (n *History) Find(s *Snapshot, revision string) *HistoryRevision {
	for _, v := range n.Of(s.Key, s.StableObject.UID) {
		if v.Entry.Revision == revision {
			return v
		}
	}
	return nil
}

// readHistory reads the workload's history. A read-only driver writes none.
func (o *Observer) readHistory(s *Snapshot) {
	s.HistoryLimit, _ = record.HistoryLimit(s.StableObject.Annotations)
	// An unread history is not written, so that of a read-only driver counts as unread.
	s.HistoryUnread = o.config.ReadOnly || !o.History.Synced()
	for _, v := range o.History.Of(s.Key, s.StableObject.UID) {
		s.History = append(s.History, v.Entry)
	}
}
