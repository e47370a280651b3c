// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/internal/informer"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// scalerIndex finds autoscalers by the workload that they scale or are held for.
	scalerIndex = "workload"
	// kedaPeriod is how often KEDA is looked for while it can't be told whether the cluster has it.
	kedaPeriod = 10 * time.Second
)

// Autoscalers are the caches of what scales workloads, a few hundred bytes of each object. They are filled from the start, and
// not only once a release needs them: an autoscaler may still be held for a release that is over, or for a workload that no
// longer exists. Only blue-green releases wait for them, so a driver that may not read them serves all other styles.
type Autoscalers struct {
	hpas   *scalerCache
	scaled *scalerCache
}

func newAutoscalers(
	core kubernetes.Interface, client dynamic.Interface, namespace string, changed func(types.NamespacedName), settled func(),
) (*Autoscalers, error) {
	a := &Autoscalers{}
	a.hpas = &scalerCache{
		resource: "horizontalpodautoscalers", changed: changed, settled: settled,
		informer: autoscalinginformers.NewHorizontalPodAutoscalerInformer(core, namespace, 0, cache.Indexers{scalerIndex: indexScaler}),
	}
	a.scaled = &scalerCache{
		resource: autoscaler.ScaledObjects.Resource, changed: changed, settled: settled, optional: core.Discovery(), wake: make(chan struct{}, 1),
		informer: dynamicinformer.NewFilteredDynamicInformer(client, autoscaler.ScaledObjects, namespace, 0,
			cache.Indexers{scalerIndex: indexScaler}, nil).Informer(),
	}
	for _, c := range []*scalerCache{a.hpas, a.scaled} {
		if err := c.prepare(); err != nil {
			return nil, fmt.Errorf("set up the cache of %s: %w", c.resource, err)
		}
	}
	return a, nil
}

// begin notes that the caches are about to be filled: before calls are served, which would take them for unread otherwise.
func (a *Autoscalers) begin() {
	for _, c := range []*scalerCache{a.hpas, a.scaled} {
		c.mu.Lock()
		c.started = true
		c.mu.Unlock()
	}
}

// run fills the caches until ctx ends, and returns once everything it started has stopped.
func (a *Autoscalers) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, c := range []*scalerCache{a.hpas, a.scaled} {
		running.Go(func() { c.run(ctx) })
	}
	running.Wait()
}

// of are the autoscalers of a workload, and why there may be others, nil if there are none.
func (a *Autoscalers) of(key types.NamespacedName) (found []plan.Autoscaler, unscanned error) {
	for _, c := range []*scalerCache{a.scaled, a.hpas} {
		if err := c.why(); err != nil {
			unscanned = err
		}
	}
	ours := map[string]int{} // ScaledObjects that were found, by name
	for _, obj := range a.scaled.of(key) {
		s := scalerOf(obj)
		ours[s.Name()] = len(found)
		found = append(found, s.describe(key))
	}
	for _, obj := range a.hpas.of(key) {
		s := scalerOf(obj)
		owner := s.scaledObject()
		if owner == "" {
			found = append(found, s.describe(key))
			continue
		}
		// KEDA's own: it would take back what anybody else writes there.
		i, known := ours[owner]
		switch {
		case !known && unscanned == nil:
			unscanned = drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
				"HorizontalPodAutoscaler %s is of ScaledObject %s, which has not been seen", s.Name(), owner)
		case known && !found[i].Scales:
			found[i].Lingers = fmt.Sprintf("%s %s, which KEDA made for it,", autoscaler.KindHPA, s.Name())
		}
	}
	slices.SortFunc(found, func(a, b plan.Autoscaler) int { return strings.Compare(a.String(), b.String()) })
	return found, unscanned
}

// Pending reports whether the caches are still being filled.
func (a *Autoscalers) Pending() bool { return a.hpas.pending() || a.scaled.pending() }

// LookForKEDA asks again whether KEDA is installed, if it was not. A release has to know before it begins.
func (a *Autoscalers) LookForKEDA() { a.scaled.look() }

// Get returns an autoscaler of a kind from its cache, nil if there is none.
func (a *Autoscalers) Get(kind string, key types.NamespacedName) *Scaler {
	c := a.hpas
	if kind == autoscaler.KindScaledObject {
		c = a.scaled
	}
	obj, ok, err := c.informer.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	return scalerOf(obj)
}

// Scaler is an autoscaler in the cache.
type Scaler struct {
	autoscaler.Autoscaler

	// Kind is autoscaler.KindHPA or autoscaler.KindScaledObject.
	Kind string
	// Meta is the object's metadata.
	Meta metav1.Object
}

func scalerOf(obj any) *Scaler {
	switch o := obj.(type) {
	case *autoscalingv2.HorizontalPodAutoscaler:
		return &Scaler{autoscaler.HPA{HorizontalPodAutoscaler: o}, autoscaler.KindHPA, o}
	case *unstructured.Unstructured:
		return &Scaler{autoscaler.ScaledObject{Unstructured: o}, autoscaler.KindScaledObject, o}
	}
	return nil
}

// Name returns the object's name.
func (s *Scaler) Name() string { return s.Meta.GetName() }

// scaledObject names the ScaledObject that controls it, if one does.
func (s *Scaler) scaledObject() string {
	owner := metav1.GetControllerOf(s.Meta)
	if owner == nil || owner.Kind != autoscaler.KindScaledObject ||
		!strings.HasPrefix(owner.APIVersion, autoscaler.ScaledObjects.Group+"/") {
		return ""
	}
	return owner.Name
}

func (s *Scaler) describe(key types.NamespacedName) plan.Autoscaler {
	v := plan.Autoscaler{Kind: s.Kind, Name: s.Name(), Targets: s.Workload() == key.Name, Scales: s.Scales()}
	note, err := autoscaler.ReadNote(s.Meta.GetAnnotations())
	if err != nil {
		v.Unreadable = err.Error()
	}
	v.Held = note != nil
	return v
}

// workloads are those that it scales or is held for.
func (s *Scaler) workloads() []types.NamespacedName {
	var all []types.NamespacedName
	add := func(name string) {
		key := types.NamespacedName{Namespace: s.Meta.GetNamespace(), Name: name}
		if name != "" && !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	add(s.Workload())
	if note, err := autoscaler.ReadNote(s.Meta.GetAnnotations()); err == nil && note != nil {
		add(note.Workload)
	}
	return all
}

func indexScaler(obj any) ([]string, error) {
	var keys []string
	if s := scalerOf(obj); s != nil {
		for _, key := range s.workloads() {
			keys = append(keys, key.String())
		}
	}
	return keys, nil
}

// viewScaler is the transform: metrics and status are most of an autoscaler, and change all the time.
func stripScaler(obj any) (any, error) {
	s := scalerOf(obj)
	if s == nil {
		return obj, nil
	}
	s.Meta.SetManagedFields(nil)
	annotations := maps.Clone(s.Meta.GetAnnotations())
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return key != autoscaler.NoteAnnotation && !strings.HasPrefix(key, "autoscaling.keda.sh/")
	})
	s.Meta.SetAnnotations(annotations)
	switch o := obj.(type) {
	case *autoscalingv2.HorizontalPodAutoscaler:
		o.Spec.Metrics, o.Status = nil, autoscalingv2.HorizontalPodAutoscalerStatus{}
	case *unstructured.Unstructured:
		ref, _, _ := unstructured.NestedMap(o.Object, "spec", "scaleTargetRef")
		o.Object["spec"] = map[string]any{"scaleTargetRef": ref}
		delete(o.Object, "status")
	}
	return obj, nil
}

// sameScaler reports whether nothing changed that a release cares about.
func sameScaler(before, after *Scaler) bool {
	return before.Meta.GetUID() == after.Meta.GetUID() && before.Scales() == after.Scales() &&
		before.scaledObject() == after.scaledObject() && slices.Equal(before.workloads(), after.workloads()) &&
		before.Meta.GetAnnotations()[autoscaler.NoteAnnotation] == after.Meta.GetAnnotations()[autoscaler.NoteAnnotation]
}

// readAutoscalers looks for what scales the workload, or the one that it is about to be succeeded by.
func (o *Observer) readAutoscalers(s *Snapshot) {
	var err error
	s.Autoscalers, err = o.Autoscalers.of(s.Key)
	s.Unscanned = drivererr.ProblemOf(err)
	if s.Record == nil || s.Record.Release == nil || s.Record.Release.Successor == "" {
		return
	}
	successors, _ := o.Autoscalers.of(types.NamespacedName{Namespace: s.Key.Namespace, Name: s.Record.Release.Successor})
	for _, a := range successors {
		if !a.Targets {
			continue
		}
		a.Targets, a.Passed = false, true
		s.Autoscalers = slices.DeleteFunc(s.Autoscalers, func(b plan.Autoscaler) bool { return a.Kind == b.Kind && a.Name == b.Name })
		s.Autoscalers = append(s.Autoscalers, a)
	}
	slices.SortFunc(s.Autoscalers, func(a, b plan.Autoscaler) int { return strings.Compare(a.String(), b.String()) })
}

// scalerCache is the cache of one kind.
type scalerCache struct {
	resource string
	informer cache.SharedIndexInformer
	changed  func(types.NamespacedName)
	// settled is called when it becomes known, or unknown, what there is.
	settled func()
	// optional is asked whether the API is installed: at the start, and when look is called. Nil for what every cluster has.
	optional discovery.ServerResourcesInterface
	// wake says that the API has been installed since.
	wake chan struct{}

	mu      sync.Mutex
	started bool
	absent  bool  // the API is not installed
	err     error // why the cache is not filled
}

func (c *scalerCache) prepare() error {
	if err := c.informer.SetTransform(stripScaler); err != nil {
		return fmt.Errorf("set transform: %w", err)
	}
	if err := c.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		c.set(false, err)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return fmt.Errorf("set watch error handler: %w", err)
	}
	_, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.tell(scalerOf(obj)) },
		UpdateFunc: func(old, obj any) {
			if before, after := scalerOf(old), scalerOf(obj); !sameScaler(before, after) {
				c.tell(before)
				c.tell(after)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			c.tell(scalerOf(obj))
		},
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

func (c *scalerCache) tell(s *Scaler) {
	if s == nil {
		return
	}
	for _, key := range s.workloads() {
		c.changed(key)
	}
}

func (c *scalerCache) run(ctx context.Context) {
	if !c.awaitAPI(ctx) {
		return
	}
	informer.Run(ctx, c.informer, c.settled)
}

// awaitAPI returns true once the API is installed, as it finds at the start or look later.
func (c *scalerCache) awaitAPI(ctx context.Context) bool {
	if c.optional == nil {
		return true
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.wake:
			return true
		case <-ctx.Done():
			return false
		}
		installed, err := c.installed()
		c.set(!installed && err == nil, err)
		switch {
		case installed:
			return true
		case err != nil:
			timer.Reset(kedaPeriod)
		}
	}
}

// look asks again for an API that was not installed, before a release that has to know.
func (c *scalerCache) look() {
	c.mu.Lock()
	absent := c.absent
	c.mu.Unlock()
	if !absent {
		return
	}
	installed, err := c.installed()
	if err != nil || !installed {
		return // as far as anybody knows it is still so
	}
	c.set(false, nil)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// installed asks the API server for the resource.
func (c *scalerCache) installed() (bool, error) {
	version := autoscaler.ScaledObjects.GroupVersion().String()
	list, err := c.optional.ServerResourcesForGroupVersion(version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", version, err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == c.resource }), nil
}

// set keeps why the cache is not filled, and tells if that is news.
func (c *scalerCache) set(absent bool, err error) {
	c.mu.Lock()
	news := c.absent != absent || (c.err == nil) != (err == nil)
	c.absent, c.err = absent, err
	c.mu.Unlock()
	if news {
		c.settled()
	}
}

// why returns why the cache can't be read, nil if it can, or if there is nothing to read.
func (c *scalerCache) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.absent || c.informer.HasSynced():
		return nil
	case c.err != nil:
		return ContractError(fmt.Errorf("fill the cache of %s: %w", c.resource, c.err))
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the cache of %s is not filled yet", c.resource)
}

func (c *scalerCache) pending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started && !c.absent && c.err == nil && !c.informer.HasSynced()
}

// of are the objects of a workload.
func (c *scalerCache) of(key types.NamespacedName) []any {
	objs, err := c.informer.GetIndexer().ByIndex(scalerIndex, key.String())
	if err != nil {
		return nil
	}
	return objs
}
