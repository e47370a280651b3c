// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fair shares what is scarce among groups of those who want it, such as namespaces: a [Queue] takes one item of each group in
// turn, and [Slots] are acquired in that order.
package fair

import (
	"context"
	"slices"
	"sync"
)

// Queue takes one item of each group in turn. Within a group it is first in, first out. It is not safe for concurrent use.
type Queue[T comparable] struct {
	groups  []string // those in waiting, the next one first
	waiting map[string][]T
	length  int
}

// Push adds an item.
func (q *Queue[T]) Push(group string, item T) {
	if q.waiting == nil {
		q.waiting = map[string][]T{}
	}
	if len(q.waiting[group]) == 0 {
		q.groups = append(q.groups, group)
	}
	q.waiting[group] = append(q.waiting[group], item)
	q.length++
}

// Len returns how many items wait.
func (q *Queue[T]) Len() int { return q.length }

// First returns the next item, or false if none waits.
func (q *Queue[T]) First() (item T, ok bool) {
	if q.length == 0 {
		return item, false
	}
	return q.waiting[q.groups[0]][0], true
}

// Pop takes the next item. One must wait.
func (q *Queue[T]) Pop() T { return q.popAt(0) }

// popAt takes the next item of a group, which has had its turn.
func (q *Queue[T]) popAt(i int) T {
	group := q.groups[i]
	item := q.waiting[group][0]
	q.groups = append(slices.Delete(q.groups, i, i+1), group)
	q.Remove(group, item)
	return item
}

// Remove takes an item out, and reports whether it waited. If it was the next one, its group has had its turn.
func (q *Queue[T]) Remove(group string, item T) bool {
	all := q.waiting[group]
	i := slices.Index(all, item)
	if i < 0 {
		return false
	}
	q.length--
	// An item that gives up from within its group's line does not cost the group its turn.
	turn := i == 0 && q.groups[0] == group
	if all = slices.Delete(all, i, i+1); len(all) > 0 {
		q.waiting[group] = all
	} else {
		delete(q.waiting, group)
		q.groups = slices.DeleteFunc(q.groups, func(g string) bool { return g == group })
	}
	if turn && len(all) > 0 {
		q.groups = append(q.groups[1:], group)
	}
	return true
}

// Contains reports whether an item waits.
func (q *Queue[T]) Contains(group string, item T) bool {
	return slices.Contains(q.waiting[group], item)
}

// popWhere takes the next item of the first group that may have its turn, and returns false if none may.
func (q *Queue[T]) popWhere(may func(group string) bool) (item T, group string, ok bool) {
	i := slices.IndexFunc(q.groups, may)
	if i < 0 {
		return item, "", false
	}
	group = q.groups[i]
	return q.popAt(i), group, true
}

// Slots is a semaphore. Who waits gets a slot in the order of a [Queue]. A group gets none while it has more than are free, so that a few
// with long work leave some to others.
type Slots struct {
	// OneForEach gives each group a slot even if none is free. It is set before the first is acquired.
	OneForEach bool

	mu    sync.Mutex
	free  int
	held  map[string]int // by group
	queue Queue[chan struct{}]
}

// NewSlots returns a semaphore with n slots.
func NewSlots(n int) *Slots { return &Slots{free: n, held: map[string]int{}} }

// Acquire waits for a slot, and reports whether it got one before ctx ended.
func (s *Slots) Acquire(ctx context.Context, group string) bool {
	if ctx.Err() != nil {
		return false
	}
	got := make(chan struct{})
	s.mu.Lock()
	s.queue.Push(group, got)
	s.serve()
	s.mu.Unlock()
	select {
	case <-got:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	waited := s.queue.Remove(group, got)
	s.mu.Unlock()
	if !waited { // it got one at the same time
		s.Release(group)
	}
	return false
}

// TryAcquire takes a slot without waiting, unless the group has that many, and reports whether it did.
func (s *Slots) TryAcquire(group string, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.held[group] < most && s.may(group)
	if ok {
		s.free--
		s.held[group]++
	}
	return ok
}

// may reports whether a group may have one more slot. The lock is held.
func (s *Slots) may(group string) bool {
	return s.free > 0 && s.held[group] <= s.free || s.OneForEach && s.held[group] == 0
}

// Release gives a slot of a group back.
func (s *Slots) Release(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[group]--; s.held[group] == 0 {
		delete(s.held, group)
	}
	s.serve()
}

// serve gives the free slots to those who wait. The lock is held.
func (s *Slots) serve() {
	for {
		got, group, ok := s.queue.popWhere(s.may)
		if !ok {
			return
		}
		s.free--
		s.held[group]++
		close(got)
	}
}
