// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func TestKeyLocks(t *testing.T) {
	var l keyLocks
	unlock, err := l.lock(t.Context(), lwstest.VLLM)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.lock(ctx, lwstest.VLLM)
	assert.ErrorIs(t, err, context.Canceled, "a second lock with an ended context")
	second := make(chan struct{})
	go func() {
		defer close(second)
		if unlock, err := l.lock(context.Background(), lwstest.VLLM); err == nil {
			unlock()
		}
	}()
	unlock()
	<-second
	l.mu.Lock()
	defer l.mu.Unlock()
	assert.Empty(t, l.locks, "unused locks are kept")
}

// A name means the object of that name, or else the one that has it as an alias by label and record.
func TestResolve(t *testing.T) {
	other := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-new"}
	for _, tt := range []struct {
		name, reason string
		objects      []*lws.LeaderWorkerSet
		want         types.NamespacedName
	}{
		{"no object", "the name itself", nil, lwstest.VLLM},
		{"itself", "an object's own name takes precedence", []*lws.LeaderWorkerSet{lwstest.InPhase(t, record.Promoted), lwstest.HandedOver(t)}, lwstest.VLLM},
		{"adopted", "it keeps the old name as an alias", []*lws.LeaderWorkerSet{lwstest.HandedOver(t)}, other},
		{"adopted twice", "and so it does the second time", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Predecessor = "vllm-old" }),
		}, other},
		{"one after the other", "the first has not been deleted yet", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, r *record.Record) {
				w.Name, w.UID, r.UID, r.Predecessor = "vllm-newer", "newer", "newer", "vllm-new"
			}),
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) {
				r.Release.Phase, r.Release.Successor = record.HandingOver, "vllm-newer"
			}),
		}, other},
		{"two", "the alias is ambiguous", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t), lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, r *record.Record) { w.Name, w.UID, r.UID = "vllm-newer", "newer", "newer" }),
		}, lwstest.VLLM},
		{"copied", "the record is another object's", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.UID = "copy" }),
		}, lwstest.VLLM},
		{"label alone", "labels are copied", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Workload = "" }),
		}, lwstest.VLLM},
		{"record alone", "removing the label removes the alias", []*lws.LeaderWorkerSet{
			lwstest.HandedOver(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.Labels = nil }),
		}, lwstest.VLLM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, tt.objects...)
			assert.Equal(t, tt.want, b.Observer.Caches.Resolve(lwstest.VLLM), "%s: default/vllm means", tt.reason)
			assert.Equal(t, other, b.Observer.Caches.Resolve(other), "its own name means")
		})
	}
	b := newFixture(t, lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Predecessor = "vllm-old" }))
	before := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-old"}
	assert.Equal(t, other, b.Observer.Caches.Resolve(before), "the name of the object before means")
	b.locks.workload = before
	assert.True(t, b.locks.covers(other), "a driver of the object before does not work on its successor")
	b.locks.workload = lwstest.VLLM
	assert.True(t, b.locks.covers(other) && !b.locks.covers(types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "another"}),
		"a driver of default/vllm does not cover the workload with that alias, or covers others")
}

// A driver of one DisaggregatedSet says so.
func TestScopeNamesItsWorkload(t *testing.T) {
	s := scope{workload: observe.KeyFor(observe.KindSet, "default", "llm")}
	_, err := s.lock(t.Context(), lwstest.VLLM)
	assert.ErrorContains(t, err, "started for DisaggregatedSet default/llm only")
}
