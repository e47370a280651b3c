// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// hub tells whoever waits for a workload that something about it changed. It says no more than that: the waiter looks
// again. Signals merge, so a slow waiter holds up nobody.
type hub struct {
	mu      sync.Mutex
	waiters map[types.NamespacedName]map[chan struct{}]struct{}
	// lists are of those who wait for every workload.
	lists map[*changes]struct{}
}

// changes are the workloads about which something changed since they were taken.
type changes struct {
	// signal gets one when there is something to take.
	signal chan struct{}

	hub  *hub
	keys map[types.NamespacedName]struct{} // under the hub's lock
}

// subscribeAll is subscribe for all workloads, those included that are not there yet.
func (h *hub) subscribeAll() (c *changes, stop func()) {
	c = &changes{signal: make(chan struct{}, 1), hub: h, keys: map[types.NamespacedName]struct{}{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lists == nil {
		h.lists = map[*changes]struct{}{}
	}
	h.lists[c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.lists, c)
	}
}

// take returns the workloads and forgets them.
func (c *changes) take() []types.NamespacedName {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	keys := slices.Collect(maps.Keys(c.keys))
	clear(c.keys)
	return keys
}

// subscribe returns a channel that gets a signal after every change of one of the workloads, until stop is called.
func (h *hub) subscribe(keys ...types.NamespacedName) (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters == nil {
		h.waiters = map[types.NamespacedName]map[chan struct{}]struct{}{}
	}
	for _, key := range keys {
		if h.waiters[key] == nil {
			h.waiters[key] = map[chan struct{}]struct{}{}
		}
		h.waiters[key][ch] = struct{}{}
	}
	return ch, func() { h.unsubscribe(keys, ch) }
}

func (h *hub) unsubscribe(keys []types.NamespacedName, ch chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		delete(h.waiters[key], ch)
		if len(h.waiters[key]) == 0 {
			delete(h.waiters, key)
		}
	}
}

func (h *hub) notify(key types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.waiters[key] {
		signal(ch)
	}
	for c := range h.lists {
		c.keys[key] = struct{}{}
		signal(c.signal)
	}
}

// signal merges with one that nobody has taken yet.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// keyLocks lets one goroutine at a time work on a workload. Waiting for it honours the context.
type keyLocks struct {
	mu    sync.Mutex
	locks map[types.NamespacedName]*keyLock
}

type keyLock struct {
	held  chan struct{} // holds one token while locked
	users int
}

// lock returns the function that unlocks, or the context's error.
func (l *keyLocks) lock(ctx context.Context, key types.NamespacedName) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[types.NamespacedName]*keyLock{}
	}
	k := l.locks[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
		l.locks[key] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.locks, key)
		}
	}
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for other work on %s: %w", key, context.Cause(ctx))
	}
}
