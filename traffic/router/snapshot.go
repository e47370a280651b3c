// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import "github.com/lockstep-rollouts/lockstep/traffic"

// Snapshot is [Router.Observe] for several questions about one look: the answers are about the caches as they are now.
func (r *Router) Snapshot(s traffic.Setup) func(traffic.Desired) traffic.View {
	w, why := r.look(s)
	return func(d traffic.Desired) traffic.View {
		if why != nil {
			return blind(why)
		}
		return traffic.Look(s, d, w)
	}
}
