// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/internal/informer"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
)

// historyPause is how long a history that can't be written is left alone. No release waits for it.
const historyPause = time.Minute

// snapshotView is what the driver keeps of a ControllerRevision of its own: all but the template.
type snapshotView struct {
	metav1.ObjectMeta

	set    string // the LeaderWorkerSet's name
	owner  types.UID
	entry  plan.Entry
	images []string
}

// viewSnapshot is the informer's transform.
func viewSnapshot(obj any) (any, error) {
	cr, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return obj, nil
	}
	v := &snapshotView{ObjectMeta: thinMeta(&cr.ObjectMeta), set: strings.Clone(cr.Labels[record.StableLabel]), entry: history.Read(cr)}
	if owner := metav1.GetControllerOf(cr); owner != nil {
		v.owner = owner.UID
	}
	if t, err := history.Decode(cr); err == nil {
		v.images = history.Images(t)
	}
	return v, nil
}

// snapshots know the histories of workloads.
type snapshots struct {
	informer cache.SharedIndexInformer

	mu     sync.Mutex
	paused map[types.NamespacedName]pause
}

// pause is why and until when a history is not written.
type pause struct {
	err   error
	until time.Time
}

func newSnapshots(core kubernetes.Interface, namespace string, changed func(types.NamespacedName)) (*snapshots, error) {
	ours := func(o *metav1.ListOptions) { o.LabelSelector = record.RoleLabel + "=" + record.RoleSnapshot }
	n := &snapshots{
		informer: appsinformers.NewFilteredControllerRevisionInformer(core, namespace, 0, cache.Indexers{addedIndex: indexSnapshot}, ours),
		paused:   map[types.NamespacedName]pause{},
	}
	if err := n.informer.SetTransform(viewSnapshot); err != nil {
		return nil, fmt.Errorf("set transform of snapshots: %w", err)
	}
	_, err := n.informer.AddEventHandler(everyEvent(func(obj any, _ bool) {
		if v, ok := obj.(*snapshotView); ok {
			changed(v.key())
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("watch snapshots: %w", err)
	}
	return n, nil
}

// key is the workload whose history it is in.
func (v *snapshotView) key() types.NamespacedName {
	return types.NamespacedName{Namespace: v.Namespace, Name: v.set}
}

func indexSnapshot(obj any) ([]string, error) {
	v, ok := obj.(*snapshotView)
	if !ok {
		return nil, nil
	}
	return []string{v.key().String()}, nil
}

// of returns the history of a workload, the oldest first. What has another owner is of a workload that is gone, or was
// copied, and is none of it.
func (n *snapshots) of(key types.NamespacedName, uid types.UID) []*snapshotView {
	objs, err := n.informer.GetIndexer().ByIndex(addedIndex, key.String())
	if err != nil {
		return nil
	}
	all := make([]*snapshotView, 0, len(objs))
	for _, obj := range objs {
		if v, ok := obj.(*snapshotView); ok && v.owner == uid {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b *snapshotView) int {
		return cmp.Or(cmp.Compare(a.entry.Number, b.entry.Number), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// find returns the snapshot of a revision, nil if there is none.
func (n *snapshots) find(w *workload, revision string) *snapshotView {
	for _, v := range n.of(keyOf(w), w.UID) {
		if v.entry.Revision == revision {
			return v
		}
	}
	return nil
}

// pause leaves a history alone for a while.
func (n *snapshots) pause(key types.NamespacedName, err error, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused[key] = pause{err, now.Add(historyPause)}
}

// pausing says why a history is not written now, and for how long.
func (n *snapshots) pausing(key types.NamespacedName, now time.Time) (time.Duration, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.paused[key]
	return max(p.until.Sub(now), 0), p.err
}

// resume forgets why a history could not be written.
func (n *snapshots) resume(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.paused, key)
}

// run fills the cache until ctx ends, and calls filled when it is.
func (n *snapshots) run(ctx context.Context, filled func()) { informer.Run(ctx, n.informer, filled) }

// readHistory reads the workload's. A driver that only looks keeps none.
func (o *observer) readHistory(s *seen) {
	s.HistoryLimit, _ = record.HistoryLimit(s.stable.Annotations)
	left, _ := o.snapshots.pausing(s.key, s.Now)
	if s.HistoryUnread = o.asksNobody || left > 0 || !o.snapshots.informer.HasSynced(); s.HistoryUnread {
		s.recheckAfter(left)
	}
	for _, v := range o.snapshots.of(s.key, s.stable.UID) {
		s.History = append(s.History, v.entry)
	}
}
