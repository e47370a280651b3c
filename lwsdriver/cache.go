// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	lwsinformers "sigs.k8s.io/lws/client-go/informers/externalversions/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// caches hold all that the driver reads: LeaderWorkerSets, and of their pods and ControllerRevisions the little that
// is needed. After start-up nothing is read from the API server but what their watches bring.
type caches struct {
	workloads, pods, revisions cache.SharedIndexInformer
	groups                     *groups
}

const (
	// addedIndex finds the workloads that releases added to one.
	addedIndex = "added"
	// setRevisionIndex finds the ControllerRevisions of a workload.
	setRevisionIndex = "set"
)

// newCaches builds the informers. changed is called with the user's workload that an event is about, gone with each
// LeaderWorkerSet that was deleted.
func newCaches(core kubernetes.Interface, sets lwsclient.Interface, namespace string, changed, gone func(types.NamespacedName)) (*caches, error) {
	ofLWS := func(o *metav1.ListOptions) { o.LabelSelector = lws.SetNameLabelKey }
	c := &caches{
		workloads: lwsinformers.NewLeaderWorkerSetInformer(sets, namespace, 0, cache.Indexers{addedIndex: indexAdded, trafficIndex: indexTraffic, knownIndex: indexKnown}),
		pods: coreinformers.NewFilteredPodInformer(core, namespace, 0,
			cache.Indexers{podGroupIndex: indexPodByGroup}, ofLWS),
		revisions: appsinformers.NewFilteredControllerRevisionInformer(core, namespace, 0,
			cache.Indexers{setRevisionIndex: indexRevisionBySet}, ofLWS),
	}
	c.groups = &groups{pods: c.pods.GetIndexer()}
	if err := c.configure(); err != nil {
		return nil, err
	}
	return c, c.handle(changed, gone)
}

func (c *caches) configure() error {
	for _, i := range []struct {
		resource  string
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
	}{
		{lws.GroupVersion.Group + "/leaderworkersets", c.workloads, viewWorkload},
		{"pods", c.pods, viewPod},
		{appsv1.GroupName + "/controllerrevisions", c.revisions, viewRevision},
	} {
		if err := i.informer.SetTransform(i.transform); err != nil {
			return fmt.Errorf("set transform of %s: %w", i.resource, err)
		}
	}
	return nil
}

// handle maps each event to the user's workload that it is about.
func (c *caches) handle(changed, gone func(types.NamespacedName)) error {
	if _, err := c.workloads.AddEventHandler(everyEvent(func(obj any, deleted bool) {
		w, ok := obj.(*lws.LeaderWorkerSet)
		if !ok {
			return
		}
		if deleted {
			gone(keyOf(w))
		}
		changed(stableKey(w))
	})); err != nil {
		return fmt.Errorf("watch leaderworkersets: %w", err)
	}
	if _, err := c.pods.AddEventHandler(everyEvent(func(obj any, deleted bool) {
		pod, ok := obj.(*podView)
		if !ok || !pod.inGroup() {
			return
		}
		c.groups.mark(pod.setKey(), pod.group)
		if deleted && c.workload(pod.setKey()) == nil {
			c.groups.forget(pod.setKey()) // nobody will look at them any more
		}
		changed(c.stableOf(pod.setKey()))
	})); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if _, err := c.revisions.AddEventHandler(everyEvent(func(obj any, _ bool) {
		if r, ok := obj.(*revisionView); ok {
			changed(c.stableOf(types.NamespacedName{Namespace: r.Namespace, Name: r.set}))
		}
	})); err != nil {
		return fmt.Errorf("watch controllerrevisions: %w", err)
	}
	return nil
}

// everyEvent calls f for every add, update and delete.
func everyEvent(f func(obj any, deleted bool)) cache.ResourceEventHandler {
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

// viewWorkload is the LeaderWorkerSet informer's transform: it drops what only other tools read.
func viewWorkload(obj any) (any, error) {
	if w, ok := obj.(*lws.LeaderWorkerSet); ok {
		w.ManagedFields = thinManagers(w)
		if _, ok := w.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
			// Its key stays: a patch must know whether there is a map to add to.
			w.Annotations[corev1.LastAppliedConfigAnnotation] = ""
		}
	}
	return obj, nil
}

// templateField is how a field manager's list says that it owns something of the template.
const templateField = `"f:leaderWorkerTemplate"`

// thinManagers keeps the name of who wrote the template last, and nothing of what they own. In one second it is who owns
// less of it: whoever changed a part came after whoever made the whole.
func thinManagers(w *lws.LeaderWorkerSet) []metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range w.ManagedFields {
		m := &w.ManagedFields[i]
		if m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), templateField) {
			continue
		}
		if last == nil || last.Time == nil || m.Time != nil && (last.Time.Before(m.Time) ||
			m.Time.Equal(last.Time) && len(m.FieldsV1.GetRawString()) < len(last.FieldsV1.GetRawString())) {
			last = m
		}
	}
	if last == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Manager: strings.Clone(last.Manager)}}
}

// changedBy is the field manager that wrote the template of a cached workload last, "" if nobody knows.
func changedBy(w *lws.LeaderWorkerSet) string {
	if len(w.ManagedFields) == 0 {
		return ""
	}
	return w.ManagedFields[0].Manager
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// stableKey is the user's workload that w belongs to: itself, unless a release added it.
func stableKey(w *lws.LeaderWorkerSet) types.NamespacedName {
	key := keyOf(w)
	if stable, ok := addedTo(w); ok {
		key.Name = stable
	}
	return key
}

// addedTo names the workload that a release added w to. What was added is scaled and deleted at will, and people copy
// manifests with all their labels. So beside the labels, the workload they name must own w, and w must have the name
// that the driver gives: a copy of all that has another one, since it is in the same namespace.
func addedTo(w *lws.LeaderWorkerSet) (stable string, ok bool) {
	stable, owner := w.Labels[record.StableLabel], metav1.GetControllerOf(w)
	if w.Labels[record.RoleLabel] == "" || stable == "" || owner == nil {
		return "", false
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != lws.GroupVersion.Group || owner.Kind != kind || owner.Name != stable {
		return "", false
	}
	known := cmp.Or(w.Labels[record.WorkloadLabel], stable)
	return stable, w.Name == record.CanaryName(known, stable, w.Labels[record.RevisionLabel])
}

// ourLabels are the labels of an added workload that w carries, sorted.
func ourLabels(w *lws.LeaderWorkerSet) []string {
	var found []string
	for _, label := range []string{record.RevisionLabel, record.RoleLabel, record.StableLabel} {
		if _, ok := w.Labels[label]; ok {
			found = append(found, label)
		}
	}
	return found
}

// stableOf is stableKey for a workload known by name.
func (c *caches) stableOf(set types.NamespacedName) types.NamespacedName {
	if w := c.workload(set); w != nil {
		return stableKey(w)
	}
	return set
}

// workload returns a LeaderWorkerSet from the cache, nil if there is none. It must not be modified.
func (c *caches) workload(key types.NamespacedName) *lws.LeaderWorkerSet {
	obj, ok, err := c.workloads.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	w, _ := obj.(*lws.LeaderWorkerSet)
	return w
}

// pod returns a pod from the cache, nil if there is none.
func (c *caches) pod(key types.NamespacedName) *podView {
	obj, ok, err := c.pods.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	v, _ := obj.(*podView)
	return v
}

// added returns the workloads that releases added to the given one.
func (c *caches) added(stable types.NamespacedName) []*lws.LeaderWorkerSet {
	objs, err := c.workloads.GetIndexer().ByIndex(addedIndex, stable.String())
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
func (c *caches) revisionOf(w *lws.LeaderWorkerSet, d digest) string {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, keyOf(w).String())
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

// revisionNamed returns LWS's newest ControllerRevision of this hash, nil if there is none.
func (c *caches) revisionNamed(w *lws.LeaderWorkerSet, hash string) *revisionView {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, keyOf(w).String())
	if err != nil {
		return nil
	}
	var best *revisionView
	for _, obj := range objs {
		r, ok := obj.(*revisionView)
		if ok && r.owner == w.UID && r.hash == hash && (best == nil || r.number > best.number) {
			best = r
		}
	}
	return best
}

// recorded are the revisions of which LWS has the template, sorted.
func (c *caches) recorded(w *lws.LeaderWorkerSet) []string {
	objs, err := c.revisions.GetIndexer().ByIndex(setRevisionIndex, keyOf(w).String())
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
	if _, added := addedTo(w); !added {
		return nil, nil
	}
	return []string{stableKey(w).String()}, nil
}

func indexRevisionBySet(obj any) ([]string, error) {
	r, ok := obj.(*revisionView)
	if !ok {
		return nil, nil
	}
	return []string{r.Namespace + "/" + r.set}, nil
}

// synced says whether every cache has been filled.
func (c *caches) synced() bool {
	return c.workloads.HasSynced() && c.pods.HasSynced() && c.revisions.HasSynced()
}
