// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Caches hold the LeaderWorkerSets and reduced forms of their pods and ControllerRevisions. Cached objects must not be modified.
type Caches struct {
	// Workloads holds *lws.LeaderWorkerSet as StripWorkload returns them, and Pods holds *Pod.
	Workloads, Pods cache.SharedIndexInformer
	// revisions holds LWS's ControllerRevisions as *revisionView.
	revisions cache.SharedIndexInformer
	// Groups are computed from Pods.
	Groups *Groups

	sources []*informer.Source
	handled []cache.ResourceEventHandlerRegistration
}

const (
	// addedIndex finds objects by the user's workload that releases added them to.
	addedIndex = "added"
	// ownRevisions selects the ControllerRevisions that LWS writes, without those of its StatefulSets: one for each group, with a template, too.
	ownRevisions = lws.SetNameLabelKey + ",!" + lws.WorkerIndexLabelKey + ",!" + lws.GroupIndexLabelKey
	// setRevisionIndex finds the ControllerRevisions of a workload.
	setRevisionIndex = "workload"
)

// newCaches builds the informers. Their handlers map each event to the user's workload that it is about.
func (o *Observer) newCaches() *Caches {
	core, sets, namespace := o.config.Core, o.config.Sets, o.config.Namespace
	workloads := informer.NewSource(lws.SchemeGroupVersion.WithResource("leaderworkersets"), sets, sets.LeaderworkersetV1().LeaderWorkerSets(namespace), "")
	pods := informer.NewSource(corev1.SchemeGroupVersion.WithResource("pods"), core, core.CoreV1().Pods(namespace), lws.SetNameLabelKey)
	revisions := informer.NewSource(appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), core,
		core.AppsV1().ControllerRevisions(namespace), ownRevisions)
	c := &Caches{
		sources: []*informer.Source{workloads, pods, revisions},
		Workloads: workloads.Informer(&lws.LeaderWorkerSet{}, guard.Indexers(cache.Indexers{
			addedIndex: informer.Index(stableOfAdded), trafficIndex: informer.Index(carriersOf), aliasIndex: informer.Index(aliasKeys), setIndex: informer.Index(setOfChild),
			namesakeIndex: informer.Index(func(w *lws.LeaderWorkerSet) (keys []string) {
				for _, key := range namesakeSets(w) {
					keys = append(keys, key.String())
				}
				return keys
			}),
		})),
		Pods: pods.Informer(&corev1.Pod{}, guard.Indexers(cache.Indexers{podGroupIndex: informer.Index((*Pod).groupKeys)})),
		revisions: revisions.Informer(&appsv1.ControllerRevision{}, guard.Indexers(cache.Indexers{
			setRevisionIndex: informer.Index(func(r *revisionView) []string { return []string{r.workload().String()} }),
		})),
	}
	c.Groups = &Groups{pods: c.Pods}
	c.configure(c.Workloads, guard.Transform(informer.Transform(StripWorkload), nil), informer.OnChange(func(before, after *lws.LeaderWorkerSet) {
		if before != nil && (after == nil || after.UID != before.UID) { // the watch may have missed that it was recreated
			o.deleted(KeyOf(before))
		}
		keys := informer.Keys(before, after, StableKey)
		// The bounds of a set list the workloads that only look like its children. A change of w's spec changes no name.
		if before == nil || after == nil {
			keys = append(keys, namesakeSets(cmp.Or(before, after))...)
		}
		for _, key := range keys {
			o.changed(key)
		}
	}))
	c.configure(c.Pods, guard.Transform(informer.Transform(NewPod), unreadablePod), informer.OnChange(func(before, after *Pod) {
		for _, g := range informer.Keys(before, after, (*Pod).group) {
			if g.label == "" {
				continue
			}
			c.Groups.Invalidate(g.set, g.label)
			c.Groups.noteChild(g.set, g.child.Value())
			// Pods outlive their workload, and deleted has kept the groups that still had some.
			if left := after == nil || after.group() != g; left && c.Workload(g.set) == nil {
				c.Groups.forget(g.set)
			}
			if o.changed(c.stableOf(g.set)); g.child.Value().set != "" && c.Workload(g.set) == nil {
				o.changed(g.child.Value().setKey(g.set.Namespace)) // pods of its deleted child count
			}
		}
	}))
	c.configure(c.revisions, guard.Transform(informer.Transform(stripRevision), nil),
		informer.OnKeys((*revisionView).workload, func(set types.NamespacedName) { o.changed(c.stableOf(set)) }))
	return c
}

// configure completes an informer that has not run: neither call fails before it runs.
func (c *Caches) configure(i cache.SharedIndexInformer, transform cache.TransformFunc, handler cache.ResourceEventHandler) {
	_ = i.SetTransform(transform)
	handled, _ := i.AddEventHandler(handler)
	c.handled = append(c.handled, handled)
}

// stableOf is StableKey for a workload known by name.
func (c *Caches) stableOf(set types.NamespacedName) types.NamespacedName {
	if w := c.Workload(set); w != nil {
		return StableKey(w)
	}
	return set
}

// Workload returns a cached LeaderWorkerSet, nil if it does not exist.
func (c *Caches) Workload(key types.NamespacedName) *lws.LeaderWorkerSet {
	return informer.Get[*lws.LeaderWorkerSet](c.Workloads, key)
}

// Pod returns a cached pod, nil if it does not exist.
func (c *Caches) Pod(key types.NamespacedName) *Pod {
	return informer.Get[*Pod](c.Pods, key)
}

// addedWorkloads returns the workloads that releases added to the given one.
func (c *Caches) addedWorkloads(stable types.NamespacedName) []*lws.LeaderWorkerSet {
	return informer.List[*lws.LeaderWorkerSet](c.Workloads, addedIndex, stable.String())
}

// revisionsOf returns LWS's ControllerRevisions of a workload.
func (c *Caches) revisionsOf(w *lws.LeaderWorkerSet) []*revisionView {
	// A recreated workload has the revisions of the deleted one, too, until garbage collection deletes these. Orphaned ones LWS continues to use.
	return slices.DeleteFunc(informer.List[*revisionView](c.revisions, setRevisionIndex, KeyOf(w).String()),
		func(r *revisionView) bool { return r.owner != "" && r.owner != w.UID })
}

// newestRevision returns the newest of those ControllerRevisions that match, nil if none does.
func (c *Caches) newestRevision(w *lws.LeaderWorkerSet, match func(*revisionView) bool) *revisionView {
	var newest *revisionView
	for _, r := range c.revisionsOf(w) {
		if match(r) && (newest == nil || r.number > newest.number) {
			newest = r
		}
	}
	return newest
}

// revisionOf returns the hash of the ControllerRevision with the digest, "" while none exists.
func (c *Caches) revisionOf(w *lws.LeaderWorkerSet, d digest) string {
	if r := c.newestRevision(w, func(r *revisionView) bool { return r.digest == d }); r != nil {
		return r.hash
	}
	return ""
}

// Template returns the template of a revision from LWS's newest ControllerRevision of this hash. The error has an ErrorReason.
func (c *Caches) Template(w *lws.LeaderWorkerSet, hash string) (record.Template, error) {
	r := c.newestRevision(w, func(r *revisionView) bool { return r.hash == hash })
	if r == nil {
		return record.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"there is no ControllerRevision of LeaderWorkerSet %s for revision %s any more", KeyOf(w), hash)
	}
	return history.Decode(&appsv1.ControllerRevision{ObjectMeta: r.ObjectMeta, Data: runtime.RawExtension{Raw: r.raw}})
}

// recordedRevisions returns the revisions whose templates LWS still has, sorted.
func (c *Caches) recordedRevisions(w *lws.LeaderWorkerSet) []string {
	revisions := c.revisionsOf(w)
	all := make([]string, 0, len(revisions))
	for _, r := range revisions {
		all = append(all, r.hash)
	}
	slices.Sort(all)
	return all
}

// stableOfAdded returns the workload that a release added w to, nil if none did.
func stableOfAdded(w *lws.LeaderWorkerSet) []string {
	if _, added := AddedTo(w); !added {
		return nil
	}
	return []string{StableKey(w).String()}
}

// setOfChild returns the DisaggregatedSet that w is a child of, nil if it is none.
func setOfChild(w *lws.LeaderWorkerSet) []string {
	key, child := setOf(w)
	if !child {
		return nil
	}
	return []string{key.String()}
}

// Synced reports whether all three caches have been filled and are watched, and Groups knows of every pod: its handler runs later than the
// cache is filled, and until then groups would seem to be missing.
func (c *Caches) Synced() bool {
	return !slices.ContainsFunc(c.handled, func(r cache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() }) &&
		!slices.ContainsFunc(c.sources, func(s *informer.Source) bool { return !s.Watched() })
}

// Err returns why the caches can't be filled, or may not be watched, as far as that is known. The error has an ErrorReason.
func (c *Caches) Err() error {
	synced := c.Synced()
	for _, s := range c.sources {
		switch err := s.Err(); {
		case err == nil, synced && !apierrors.IsForbidden(err):
			// The reflector retries any other error of a watch itself; Freshness reports it once the cache may be stale.
		case apierrors.IsNotFound(err) && s.Resource.Group == lws.GroupVersion.Group:
			return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING,
				"LeaderWorkerSet (%s) is not installed in this cluster: install LWS v0.9.0 or later", lws.GroupVersion)
		case apierrors.IsForbidden(err):
			return ContractError(fmt.Errorf("the driver's account may not list and watch %s: %w",
				s.Resource.GroupResource(), err))
		default:
			return ContractError(fmt.Errorf("the driver can't fill its cache of %s: %w", s.Resource.GroupResource(), err))
		}
	}
	return nil
}
