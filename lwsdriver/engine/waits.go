// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// waits hold, per workload, what its last decision waits for. In memory only: a driver that restarts counts again.
type waits struct {
	mu  sync.Mutex
	all map[types.NamespacedName]plan.Waiting
}

func (w *waits) get(key types.NamespacedName) plan.Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[key]
}

func (w *waits) set(key types.NamespacedName, now plan.Waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now == (plan.Waiting{}) {
		delete(w.all, key)
		return
	}
	if w.all == nil {
		w.all = map[types.NamespacedName]plan.Waiting{}
	}
	w.all[key] = now
}
