// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A handover makes another object the workload while a host follows it.
func TestFollow(t *testing.T) {
	stable := lwstest.InPhase(t, record.Promoting)
	b := newFixture(t, stable)
	f := b.Follow(lwstest.VLLM)
	defer f.Stop()
	signalled := func(key types.NamespacedName) bool {
		changed := f.Changed()
		b.Changes.Notify(key)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	green := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-new"}
	if !signalled(lwstest.VLLM) || signalled(green) {
		t.Error("before the handover: want changes of default/vllm only")
	}
	if err := b.Caches.Workloads.GetIndexer().Delete(stable); err != nil {
		t.Fatal(err)
	}
	b.cache(lwstest.HandedOver(t))
	if !signalled(green) || !signalled(lwstest.VLLM) {
		t.Error("after the handover: want changes of either object")
	}
	f.Stop()
	if n := b.Changes.Len(); n != 0 {
		t.Errorf("%d workloads have waiters after Stop", n)
	}
}
