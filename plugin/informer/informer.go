// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informer fills caches on demand, also those of custom resources that may not be installed. [New] makes an
// informer, [Informer.Start] asks for its cache, [Informer.Run] fills it, and [Informer.Err] returns why it can't be read.
// [Get], [List] and [All] are typed access to any informer's cache, [OnChange] and [OnKeys] to its events, and [Transform] and [Index] make
// what fills it of functions of one type.
package informer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Informer is the cache of one resource. It makes no request before Start, so a resource that is not needed takes no
// permission. All methods may be called concurrently.
type Informer struct {
	config   Config
	informer cache.SharedIndexInformer
	started  chan struct{}
	start    sync.Once
	recheck  chan struct{} // has a value while Recheck waits for its answer

	mu      sync.Mutex
	missing bool  // the API is not installed
	err     error // why the cache is not filled
}

// Config describes the resource of an Informer.
type Config struct {
	// Source is required.
	Source *Source
	// Example is an object of the type that Source delivers. Required.
	Example runtime.Object
	// Indexers are of the objects as they are stored.
	Indexers cache.Indexers
	// Transform reduces objects before they are stored. Nil means that they are stored whole.
	Transform cache.TransformFunc
	// Handler receives the changes of objects. Required.
	Handler cache.ResourceEventHandler
	// Changed is called once the cache is filled, even if it stays empty, and whenever Err changes. Required. It must not block.
	Changed func()
	// Discovery is asked whether the API is installed. Nil means that every cluster has it.
	Discovery discovery.ServerResourcesInterface
	// Missing is returned by Err while the API is not installed, and the API is looked for every RetryPeriod. If Missing is nil, a missing
	// API is no error, and it is looked for again after Recheck.
	Missing error
	// RetryPeriod is how long to wait after a failed discovery.
	RetryPeriod time.Duration
}

// New returns an Informer. It makes no request.
func New(c Config) *Informer {
	changed, resource := c.Changed, c.Source.Resource.Resource
	c.Changed = func() { _ = guard.Call(nil, "change of a cache", resource, changed) }
	c.Source.optional = c.Discovery != nil
	i := c.Source.Informer(c.Example, guard.Indexers(c.Indexers))
	n := &Informer{config: c, informer: i, started: make(chan struct{}), recheck: make(chan struct{}, 1)}
	// These fail only for an informer that has run.
	_ = i.SetTransform(guard.Transform(c.Transform, nil))
	// client-go only logs the errors of a watch, and callers of Err need the cause.
	_ = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		n.setObstacle(false, err)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	_, _ = i.AddEventHandler(c.Handler)
	return n
}

// Source returns what fills the cache.
func (i *Informer) Source() *Source { return i.config.Source }

// GetIndexer returns the cache.
func (i *Informer) GetIndexer() cache.Indexer { return i.informer.GetIndexer() }

// Start has Run fill the cache. It reports whether this is the first call.
func (i *Informer) Start() (first bool) {
	i.start.Do(func() { first = true; close(i.started) })
	return first
}

// Started reports whether Start has been called.
func (i *Informer) Started() bool {
	select {
	case <-i.started:
		return true
	default:
		return false
	}
}

// Synced reports whether the cache has been filled.
func (i *Informer) Synced() bool { return i.informer.HasSynced() }

// Run fills the cache after Start and keeps it up to date until ctx ends. It returns once everything it started has stopped,
// and must be called once.
func (i *Informer) Run(ctx context.Context) {
	select {
	case <-i.started:
	case <-ctx.Done():
		return
	}
	if !i.awaitAPI(ctx) {
		return
	}
	var syncing sync.WaitGroup
	syncing.Go(func() {
		if cache.WaitFor(ctx, "", i.informer.HasSyncedChecker()) {
			i.config.Changed() // an empty cache has no event of its own
		}
	})
	i.informer.RunWithContext(ctx)
	syncing.Wait()
}

// awaitAPI returns true once the API is installed.
func (i *Informer) awaitAPI(ctx context.Context) bool {
	if i.config.Discovery == nil {
		return true
	}
	for {
		found, err := i.Installed()
		i.setObstacle(!found && err == nil, err)
		if found {
			return true
		}
		var retry <-chan time.Time
		// An API that may never be installed is not polled.
		if err != nil || i.config.Missing != nil {
			retry = time.After(i.config.RetryPeriod)
		}
		select {
		case <-i.recheck:
		case <-retry:
		case <-ctx.Done():
			return false
		}
	}
}

// Recheck has Run look again for an API that was not installed. It does not block.
func (i *Informer) Recheck() {
	select {
	case i.recheck <- struct{}{}:
	default:
	}
}

// Installed asks the API server whether the resource is installed: a watch would take a missing API for a slow one.
func (i *Informer) Installed() (bool, error) {
	version := i.config.Source.Resource.GroupVersion().String()
	list, err := i.config.Discovery.ServerResourcesForGroupVersion(version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", version, err)
	}
	// CRDs of another version may serve the group without this resource.
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == i.config.Source.Resource.Resource }), nil
}

// setObstacle keeps why the cache is not filled. Once it is, Err does not change with the errors of its watch.
func (i *Informer) setObstacle(missing bool, err error) {
	if i.Synced() {
		return
	}
	i.mu.Lock()
	changed := i.missing != missing || (err == nil) != (i.err == nil) || err != nil && err.Error() != i.err.Error()
	i.missing, i.err = missing, err
	i.mu.Unlock()
	if changed {
		i.config.Changed()
	}
}

// Err returns the error that prevents reading the cache. It returns nil if the cache is filled, and also if the API is not
// installed and Config.Missing is nil.
func (i *Informer) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.informer.HasSynced():
		return nil
	case i.missing:
		return i.config.Missing
	case i.err != nil:
		return fmt.Errorf("fill the cache of %s: %w", i.config.Source.Resource.Resource, i.err)
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the cache of %s is not filled yet", i.config.Source.Resource.Resource)
}

// Pending reports whether the cache is being filled and nothing is known to prevent it.
func (i *Informer) Pending() bool {
	return i.Started() && drivererr.Reason(i.Err()) == pb.ErrorReason_ERROR_REASON_NOT_SYNCED
}

// Cached is what has a cache: an [Informer], or a client-go informer.
type Cached interface {
	GetIndexer() cache.Indexer
}

// Get returns a cached object, the zero value if it does not exist. It must not be modified.
func Get[T any](c Cached, key types.NamespacedName) T {
	obj, _, _ := c.GetIndexer().GetByKey(key.String()) // a map in memory: it never fails
	t, _ := obj.(T)
	return t
}

// List returns the cached objects with a value of an index, which must exist. They must not be modified.
func List[T any](c Cached, index, value string) []T {
	objs, err := c.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil
	}
	return typed[T](objs)
}

// All returns the cached objects. They must not be modified.
func All[T any](c Cached) []T { return typed[T](c.GetIndexer().List()) }

// typed returns the objects of a type.
func typed[T any](objs []any) []T {
	all := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// Transform returns f for the objects of a type. Others are stored as they are: an informer also passes what f has returned.
func Transform[T, R any](f func(T) R) cache.TransformFunc {
	return TryTransform(func(t T) (R, error) { return f(t), nil })
}

// TryTransform is Transform for a function that may fail. An error keeps the whole cache from being filled.
func TryTransform[T, R any](f func(T) (R, error)) cache.TransformFunc {
	return func(obj any) (any, error) {
		if t, ok := obj.(T); ok {
			return f(t)
		}
		return obj, nil
	}
}

// Index returns an index of the objects of a type by the values that f returns.
func Index[T any](f func(T) []string) cache.IndexFunc {
	return func(obj any) (values []string, _ error) {
		if t, ok := obj.(T); ok {
			values = f(t)
		}
		return values, nil
	}
}

// OnKeys returns a handler that calls f with the key of each object that changes, with both keys if the change is one of the key.
func OnKeys[T, K comparable](key func(T) K, f func(K)) cache.ResourceEventHandler {
	return OnChange(func(before, after T) {
		for _, k := range Keys(before, after, key) {
			f(k)
		}
	})
}

// Keys returns the key of an object before and after a change: two if they differ. The zero value has none.
func Keys[T, K comparable](before, after T, key func(T) K) []K {
	var none T
	switch {
	case before == none:
		return []K{key(after)}
	case after == none || key(before) == key(after):
		return []K{key(before)}
	}
	return []K{key(before), key(after)}
}

// OnChange returns a handler that calls f for every add, update and delete. Before is the zero value for an add, after for a
// delete.
func OnChange[T any](f func(before, after T)) cache.ResourceEventHandler {
	call := func(before, after any) {
		// The watch has missed the deletion, so client-go has the last known state only.
		if unknown, ok := before.(cache.DeletedFinalStateUnknown); ok {
			before = unknown.Obj
		}
		old, was := before.(T)
		now, is := after.(T)
		if was || is {
			f(old, now)
		}
	}
	return guard.Handler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { call(nil, obj) },
		UpdateFunc: call,
		DeleteFunc: func(obj any) { call(obj, nil) },
	})
}
