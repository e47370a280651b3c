// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQueueTakesGroupsInTurn(t *testing.T) {
	q := &Queue[string]{}
	_, ok := q.First()
	assert.False(t, ok, "an empty queue has a first item")
	for _, item := range []string{"a1", "a2", "a3", "b1", "c1", "b2", "c2"} {
		q.Push(item[:1], item)
	}
	assert.True(t, q.Remove("c", "c1") && !q.Remove("c", "c1") && !q.Contains("c", "c1") && q.Contains("c", "c2"), "c1 is not removed once")
	var got []string
	for q.Len() > 0 {
		got = append(got, q.Pop())
	}
	want := []string{"a1", "b1", "c2", "a2", "b2", "a3"}
	assert.True(t, slices.Equal(got, want), "order is %v, want %v", got, want)
	assert.True(t, len(q.waiting) == 0 && len(q.groups) == 0, "an empty queue keeps groups: %v, %v", q.waiting, q.groups)
}

// A group with many who wait delays another by one.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1)
		over, cancel := context.WithCancel(t.Context())
		assert.True(t, s.Acquire(over, ""), "no free slot")
		cancel()
		assert.False(t, s.Acquire(over, ""), "a slot after the end")
		var running sync.WaitGroup
		var order []string
		given, give := context.WithCancel(t.Context())
		for _, group := range []string{"noisy", "noisy", "gone", "noisy", "quiet"} {
			ctx := t.Context()
			if group == "gone" {
				ctx = given
			}
			running.Go(func() {
				if s.Acquire(ctx, group) {
					order = append(order, group)
					s.Release(group)
				}
			})
			synctest.Wait()
		}
		give()
		synctest.Wait()
		s.Release("")
		running.Wait()
		if want := []string{"noisy", "quiet", "noisy", "noisy"}; !slices.Equal(order, want) || s.free != 1 {
			t.Errorf("order %v, want %v; %d slots are free", order, want, s.free)
		}
	})
}

// However long a few groups keep their slots, others get some.
func TestGroupsLeaveSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(16)
		for i := range 60 {
			go s.Acquire(t.Context(), []string{"a", "b", "c"}[i%3])
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for _, group := range []string{"d", "e"} {
			assert.True(t, s.Acquire(ctx, group), "%s gets no slot", group)
		}
		held := s.held["a"]
		s.Release("d")
		s.Release("e")
		s.Release("b")
		assert.True(t, s.held["a"] >= held && s.free != 0, "held %v, free %d", s.held, s.free)
	})
}

// However many groups keep all slots, each other one gets one, if it may.
func TestOneForEachGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(16)
		for _, group := range []string{"a", "b", "c", "d", "e", "f"} { // each takes half of what is free
			for range 16 {
				go s.Acquire(t.Context(), group)
			}
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		assert.False(t, s.Acquire(ctx, "quiet"), "a slot although none is free")
		s.OneForEach = true
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		assert.True(t, s.Acquire(ctx, "quiet"), "no slot")
		assert.False(t, s.Acquire(ctx, "quiet"), "a second slot although none is free")
	})
}
