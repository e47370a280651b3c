// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func TestKeyLocks(t *testing.T) {
	var l keyLocks
	unlock, err := l.lock(t.Context(), lwstest.VLLM)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ctx, lwstest.VLLM); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock with an ended context: %v", err)
	}
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
	if len(l.locks) != 0 {
		t.Errorf("%d unused locks are kept", len(l.locks))
	}
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
			if got := b.Observer.Caches.Resolve(lwstest.VLLM); got != tt.want {
				t.Errorf("%s: default/vllm means %s, not %s", tt.reason, got, tt.want)
			}
			if got := b.Observer.Caches.Resolve(other); got != other {
				t.Errorf("its own name means %s", got)
			}
		})
	}
	b := newFixture(t, lwstest.HandedOver(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Predecessor = "vllm-old" }))
	before := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-old"}
	if got := b.Observer.Caches.Resolve(before); got != other {
		t.Errorf("the name of the object before means %s", got)
	}
	if b.locks.workload = before; !b.locks.covers(other) {
		t.Error("a driver of the object before does not work on its successor")
	}
	b.locks.workload = lwstest.VLLM
	if !b.locks.covers(other) || b.locks.covers(types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "another"}) {
		t.Error("a driver of default/vllm does not cover the workload with that alias, or covers others")
	}
}

// A driver of one DisaggregatedSet says so.
func TestScopeNamesItsWorkload(t *testing.T) {
	s := scope{workload: observe.KeyFor(observe.KindSet, "default", "llm")}
	_, err := s.lock(t.Context(), lwstest.VLLM)
	if err == nil || !strings.Contains(err.Error(), "started for DisaggregatedSet default/llm only") {
		t.Error(err)
	}
}
