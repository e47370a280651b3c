// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A handover makes another object the workload while a host waits for changes of it.
func TestNotifySignalsAliases(t *testing.T) {
	stable := lwstest.InPhase(t, record.Promoting)
	b := newFixture(t, stable)
	changed, stop := b.Changes.Subscribe(lwstest.VLLM)
	defer stop()
	signalled := func(key types.NamespacedName) bool {
		b.Notify(key)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	green := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-new"}
	assert.True(t, signalled(lwstest.VLLM) && !signalled(green), "before the handover: want changes of default/vllm only")
	require.NoError(t, b.Caches.Workloads.GetIndexer().Delete(stable))
	b.cache(lwstest.HandedOver(t))
	assert.True(t, signalled(green) && signalled(lwstest.VLLM), "after the handover: want changes of either object")
}
