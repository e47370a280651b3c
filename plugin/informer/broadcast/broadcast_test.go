// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSubscribeToSeveralKeys(t *testing.T) {
	var b Broadcaster[string]
	ch, stop := b.Subscribe("one", "other")
	for _, key := range []string{"one", "other"} {
		b.Notify(key)
		<-ch
	}
	stop()
	assert.Zero(t, b.Len(), "waiters are kept after they stopped")
}

func TestSignalsMerge(t *testing.T) {
	var b Broadcaster[string]
	ch, stop := b.Subscribe("one")
	b.Notify("one")
	b.Notify("one")
	<-ch
	select {
	case <-ch:
		t.Error("two changes made two signals for a waiter that had not looked")
	default:
	}
	stop()
	b.Notify("one")
	assert.Zero(t, b.Len(), "waiters are kept after they stopped")
}

func TestEachWaiterIsSignalled(t *testing.T) {
	var b Broadcaster[string]
	b.Notify("one") // before the first subscription
	first, stopFirst := b.Subscribe("one")
	defer stopFirst()
	second, stopSecond := b.Subscribe("one")
	defer stopSecond()
	all, stopAll := b.SubscribeAll()
	defer stopAll()
	for i, ch := range []<-chan struct{}{first, second, all.Signal} {
		select {
		case <-ch:
			t.Errorf("waiter %d has a signal of an earlier change", i)
		default:
		}
	}
	b.Notify("one")
	<-first
	<-second
	<-all.Signal
	got := all.Take()
	assert.True(t, slices.Equal(got, []string{"one"}), "Take() = %q", got)
	assert.Empty(t, all.Take(), "the second Take()")
}
