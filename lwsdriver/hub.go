// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// hub tells whoever waits for a workload that something about it changed. It says no more than that: the waiter looks
// again. Signals merge, so a slow waiter holds up nobody.
type hub struct {
	mu      sync.Mutex
	waiters map[types.NamespacedName]map[chan struct{}]struct{}
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
		select {
		case ch <- struct{}{}:
		default:
		}
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
