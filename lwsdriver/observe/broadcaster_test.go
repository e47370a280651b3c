// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
)

func TestHubTellsOfSeveral(t *testing.T) {
	var h Broadcaster
	other := types.NamespacedName{Namespace: "default", Name: "other"}
	ch, stop := h.Subscribe(lwstest.VLLM, other)
	for _, key := range []types.NamespacedName{lwstest.VLLM, other} {
		h.Notify(key)
		<-ch
	}
	stop()
	if len(h.waiters) != 0 {
		t.Error("waiters are kept after they stopped")
	}
}

func TestHubMergesSignals(t *testing.T) {
	var h Broadcaster
	ch, stop := h.Subscribe(lwstest.VLLM)
	h.Notify(lwstest.VLLM)
	h.Notify(lwstest.VLLM)
	<-ch
	select {
	case <-ch:
		t.Error("two changes made two signals for a waiter that had not looked")
	default:
	}
	stop()
	h.Notify(lwstest.VLLM)
	if len(h.waiters) != 0 {
		t.Error("waiters are kept after they stopped")
	}
}
