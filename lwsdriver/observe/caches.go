// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	lwsinformers "sigs.k8s.io/lws/client-go/informers/externalversions/leaderworkerset/v1"
)

// Caches hold the LeaderWorkerSets and, of their pods and ControllerRevisions, the little that is needed. Objects in them
// must not be modified.
type Caches struct {
	// Workloads holds *lws.LeaderWorkerSet, as StripWorkload leaves them, and Pods holds *Pod.
	Workloads, Pods cache.SharedIndexInformer
	// Revisions are LWS's ControllerRevisions.
	revisions cache.SharedIndexInformer
	// Groups are computed from Pods.
	Groups *Groups
}

const (
	// addedIndex finds the workloads that releases added to one.
	addedIndex = "added"
	// setRevisionIndex finds the ControllerRevisions of a workload.
	setRevisionIndex = "set"
)

// newCaches builds the informers. changed is called with the user's workload that an event is about, gone with each
// LeaderWorkerSet that was deleted.
func newCaches(core kubernetes.Interface, sets lwsclient.Interface, namespace string, changed, gone func(types.NamespacedName)) (*Caches, error) {
	ofLWS := func(o *metav1.ListOptions) { o.LabelSelector = lws.SetNameLabelKey }
	c := &Caches{
		Workloads: lwsinformers.NewLeaderWorkerSetInformer(sets, namespace, 0, cache.Indexers{addedIndex: indexAdded, trafficIndex: indexTraffic, knownIndex: indexKnown}),
		Pods: coreinformers.NewFilteredPodInformer(core, namespace, 0,
			cache.Indexers{podGroupIndex: indexPodByGroup}, ofLWS),
		revisions: appsinformers.NewFilteredControllerRevisionInformer(core, namespace, 0,
			cache.Indexers{setRevisionIndex: indexRevisionBySet}, ofLWS),
	}
	c.Groups = &Groups{pods: c.Pods.GetIndexer()}
	if err := c.configure(); err != nil {
		return nil, err
	}
	return c, c.handle(changed, gone)
}

func (c *Caches) configure() error {
	for _, i := range []struct {
		resource  string
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
	}{
		{lws.GroupVersion.Group + "/leaderworkersets", c.Workloads, StripWorkload},
		{"pods", c.Pods, StripPod},
		{appsv1.GroupName + "/controllerrevisions", c.revisions, stripRevision},
	} {
		if err := i.informer.SetTransform(i.transform); err != nil {
			return fmt.Errorf("set transform of %s: %w", i.resource, err)
		}
	}
	return nil
}

// handle maps each event to the user's workload that it is about.
func (c *Caches) handle(changed, gone func(types.NamespacedName)) error {
	if _, err := c.Workloads.AddEventHandler(onEveryEvent(func(obj any, deleted bool) {
		w, ok := obj.(*lws.LeaderWorkerSet)
		if !ok {
			return
		}
		if deleted {
			gone(KeyOf(w))
		}
		changed(StableKey(w))
	})); err != nil {
		return fmt.Errorf("watch leaderworkersets: %w", err)
	}
	if _, err := c.Pods.AddEventHandler(onEveryEvent(func(obj any, deleted bool) {
		pod, ok := obj.(*Pod)
		if !ok || !pod.inGroup() {
			return
		}
		c.Groups.Invalidate(pod.Workload(), pod.Group)
		if deleted && c.Workload(pod.Workload()) == nil {
			c.Groups.forget(pod.Workload()) // nobody will look at them any more
		}
		changed(c.stableOf(pod.Workload()))
	})); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if _, err := c.revisions.AddEventHandler(onEveryEvent(func(obj any, _ bool) {
		if r, ok := obj.(*revisionView); ok {
			changed(c.stableOf(types.NamespacedName{Namespace: r.Namespace, Name: r.set}))
		}
	})); err != nil {
		return fmt.Errorf("watch controllerrevisions: %w", err)
	}
	return nil
}

// everyEvent calls f for every add, update and delete.
func onEveryEvent(f func(obj any, deleted bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f(obj, false) },
		UpdateFunc: func(_, obj any) { f(obj, false) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			f(obj, true)
		},
	}
}

// stableOf is StableKey for a workload known by name.
func (c *Caches) stableOf(set types.NamespacedName) types.NamespacedName {
	if w := c.Workload(set); w != nil {
		return StableKey(w)
	}
	return set
}

// Workload returns a LeaderWorkerSet from the cache, nil if there is none.
func (c *Caches) Workload(key types.NamespacedName) *lws.LeaderWorkerSet {
	obj, ok, err := c.Workloads.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	w, _ := obj.(*lws.LeaderWorkerSet)
	return w
}

// Pod returns a pod from the cache, nil if there is none.
func (c *Caches) Pod(key types.NamespacedName) *Pod {
	obj, ok, err := c.Pods.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	v, _ := obj.(*Pod)
	return v
}

// added returns the workloads that releases added to the given one.
func (c *Caches) added(stable types.NamespacedName) []*lws.LeaderWorkerSet {
	objs, err := c.Workloads.GetIndexer().ByIndex(addedIndex, stable.String())
	if err != nil {
		return nil
	}
	found := make([]*lws.LeaderWorkerSet, 0, len(objs))
	for _, obj := range objs {
		if w, ok := obj.(*lws.LeaderWorkerSet); ok {
			found = append(found, w)
		}
	}
	return found
}

// revisionOf returns the hash of the ControllerRevision that holds the digest, "" while there is none.
func (c *Caches) revisionOf(w *lws.LeaderWorkerSet, d digest) string {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, KeyOf(w).String())
	if err != nil {
		return ""
	}
	var best *revisionView
	for _, obj := range objs {
		r, ok := obj.(*revisionView)
		if ok && r.owner == w.UID && r.digest == d && (best == nil || r.number > best.number) {
			best = r
		}
	}
	if best == nil {
		return ""
	}
	return best.hash
}

// RevisionNamed returns the key of LWS's newest ControllerRevision of this hash; ok is false if there is none.
func (c *Caches) RevisionNamed(w *lws.LeaderWorkerSet, hash string) (key types.NamespacedName, ok bool) {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, KeyOf(w).String())
	if err != nil {
		return key, false
	}
	var best *revisionView
	for _, obj := range objs {
		r, ok := obj.(*revisionView)
		if ok && r.owner == w.UID && r.hash == hash && (best == nil || r.number > best.number) {
			best = r
		}
	}
	if best == nil {
		return key, false
	}
	return KeyOf(best), true
}

// recorded are the revisions of which LWS has the template, sorted.
func (c *Caches) recorded(w *lws.LeaderWorkerSet) []string {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, KeyOf(w).String())
	if err != nil {
		return nil
	}
	all := make([]string, 0, len(objs))
	for _, obj := range objs {
		if r, ok := obj.(*revisionView); ok && r.owner == w.UID {
			all = append(all, r.hash)
		}
	}
	slices.Sort(all)
	return all
}

func indexAdded(obj any) ([]string, error) {
	w, ok := obj.(*lws.LeaderWorkerSet)
	if !ok {
		return nil, nil
	}
	if _, added := AddedTo(w); !added {
		return nil, nil
	}
	return []string{StableKey(w).String()}, nil
}

func indexRevisionBySet(obj any) ([]string, error) {
	r, ok := obj.(*revisionView)
	if !ok {
		return nil, nil
	}
	return []string{r.Namespace + "/" + r.set}, nil
}

// Synced reports whether all three caches have been filled.
func (c *Caches) Synced() bool {
	return c.Workloads.HasSynced() && c.Pods.HasSynced() && c.revisions.HasSynced()
}
