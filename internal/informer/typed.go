// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/internal/guard"
)

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
	all := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// OnChange returns a handler that calls f for every add, update and delete. Before is the zero value for an add, after for a
// delete.
func OnChange[T any](f func(before, after T)) cache.ResourceEventHandler {
	call := func(before, after any) {
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
