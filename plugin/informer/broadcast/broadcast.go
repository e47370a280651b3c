// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package broadcast wakes goroutines that wait for a change.
package broadcast

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Broadcaster signals changes of keyed objects to waiters. A signal says no more than that something changed: the waiter
// observes again, so it subscribes before it observes. Signals merge, so a slow waiter delays no other. The zero value is
// ready to use.
type Broadcaster[K comparable] struct {
	// Before is called with each key before it is signalled. It must not call the Broadcaster. Nil means that nothing is.
	Before func(K)

	mu      sync.Mutex
	waiters map[K]map[chan struct{}]struct{}
	// subscriptions are to all keys.
	subscriptions map[*Subscription[K]]struct{}
}

// Subscription collects the keys that changed.
type Subscription[K comparable] struct {
	// Signal receives a value once there are keys to Take.
	Signal <-chan struct{}

	signal      chan struct{}
	broadcaster *Broadcaster[K]
	keys        map[K]struct{} // under the broadcaster's lock
}

// SubscribeAll returns a subscription to all keys until stop is called.
func (b *Broadcaster[K]) SubscribeAll() (s *Subscription[K], stop func()) {
	signal := make(chan struct{}, 1)
	s = &Subscription[K]{Signal: signal, signal: signal, broadcaster: b, keys: map[K]struct{}{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscriptions == nil {
		b.subscriptions = map[*Subscription[K]]struct{}{}
	}
	b.subscriptions[s] = struct{}{}
	return s, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscriptions, s)
	}
}

// Take returns the keys that changed since the last Take.
func (s *Subscription[K]) Take() []K {
	s.broadcaster.mu.Lock()
	defer s.broadcaster.mu.Unlock()
	keys := slices.Collect(maps.Keys(s.keys))
	clear(s.keys)
	return keys
}

// Subscribe returns a channel that receives a signal after each change of one of the keys, until stop is called.
func (b *Broadcaster[K]) Subscribe(keys ...K) (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters == nil {
		b.waiters = map[K]map[chan struct{}]struct{}{}
	}
	for _, key := range keys {
		if b.waiters[key] == nil {
			b.waiters[key] = map[chan struct{}]struct{}{}
		}
		b.waiters[key][ch] = struct{}{}
	}
	return ch, func() { b.unsubscribe(keys, ch) }
}

// Await returns once done holds, which it asks after each change of one of the keys, or the cause of the end of ctx.
func (b *Broadcaster[K]) Await(ctx context.Context, done func() bool, keys ...K) error {
	changed, stop := b.Subscribe(keys...)
	defer stop()
	for !done() {
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (b *Broadcaster[K]) unsubscribe(keys []K, ch chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		delete(b.waiters[key], ch)
		// The map would grow with every object that a goroutine has ever waited for.
		if len(b.waiters[key]) == 0 {
			delete(b.waiters, key)
		}
	}
}

// Len returns the number of keys with a subscription of their own.
func (b *Broadcaster[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiters)
}

// Notify signals a change of the key.
func (b *Broadcaster[K]) Notify(key K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A waiter that observes after its signal has to see the effect of Before.
	if b.Before != nil {
		b.Before(key)
	}
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
