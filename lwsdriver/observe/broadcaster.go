// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Broadcaster signals changes of workloads to those who wait for them. A signal says no more than that something changed:
// the waiter observes again. Signals merge, so a slow waiter delays no other. The zero value is ready to use.
type Broadcaster struct {
	mu      sync.Mutex
	waiters map[types.NamespacedName]map[chan struct{}]struct{}
	// subscriptions are to all workloads.
	subscriptions map[*Subscription]struct{}
}

// Subscription collects the keys of workloads that changed.
type Subscription struct {
	// Signal receives a value once there are keys to Take.
	Signal <-chan struct{}

	signal      chan struct{}
	broadcaster *Broadcaster
	keys        map[types.NamespacedName]struct{} // under the broadcaster's lock
}

// SubscribeAll returns a subscription to all workloads, including those that do not exist yet, until stop is called.
func (b *Broadcaster) SubscribeAll() (s *Subscription, stop func()) {
	signal := make(chan struct{}, 1)
	s = &Subscription{Signal: signal, signal: signal, broadcaster: b, keys: map[types.NamespacedName]struct{}{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscriptions == nil {
		b.subscriptions = map[*Subscription]struct{}{}
	}
	b.subscriptions[s] = struct{}{}
	return s, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscriptions, s)
	}
}

// Take returns the keys of the workloads that changed since the last Take.
func (s *Subscription) Take() []types.NamespacedName {
	s.broadcaster.mu.Lock()
	defer s.broadcaster.mu.Unlock()
	keys := slices.Collect(maps.Keys(s.keys))
	clear(s.keys)
	return keys
}

// Subscribe returns a channel that receives a signal after every change of one of the workloads, until stop is called.
func (b *Broadcaster) Subscribe(keys ...types.NamespacedName) (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters == nil {
		b.waiters = map[types.NamespacedName]map[chan struct{}]struct{}{}
	}
	for _, key := range keys {
		if b.waiters[key] == nil {
			b.waiters[key] = map[chan struct{}]struct{}{}
		}
		b.waiters[key][ch] = struct{}{}
	}
	return ch, func() { b.unsubscribe(keys, ch) }
}

func (b *Broadcaster) unsubscribe(keys []types.NamespacedName, ch chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		delete(b.waiters[key], ch)
		if len(b.waiters[key]) == 0 {
			delete(b.waiters, key)
		}
	}
}

// Notify signals that something about the workload changed.
func (b *Broadcaster) Notify(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.waiters[key] {
		signal(ch)
	}
	for s := range b.subscriptions {
		s.keys[key] = struct{}{}
		signal(s.signal)
	}
}

// signal merges with one that has not been received yet.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
