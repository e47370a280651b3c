// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// perWorkload holds a value for each workload, in memory only: a driver that restarts begins anew. The zero value is ready to use.
type perWorkload[V comparable] struct {
	mu  sync.Mutex
	all map[types.NamespacedName]V
}

// get returns a workload's value. Without one it is the zero value.
func (p *perWorkload[V]) get(key types.NamespacedName) V {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[key]
}

// set replaces a workload's value, and returns what it was.
func (p *perWorkload[V]) set(key types.NamespacedName, now V) (before V) {
	p.update(key, func(was V) V {
		before = was
		return now
	})
	return before
}

// update replaces a workload's value by that of change, which must not block.
func (p *perWorkload[V]) update(key types.NamespacedName, change func(before V) V) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none V
	switch now := change(p.all[key]); {
	case now == none:
		delete(p.all, key)
	case p.all == nil:
		p.all = map[types.NamespacedName]V{key: now}
	default:
		p.all[key] = now
	}
}
