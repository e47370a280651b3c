// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Snapshot is one look at a release's traffic, from caches only. A cache that no release needed before begins to be filled.
func (r *Router) Snapshot(s traffic.Setup) *traffic.Observed {
	w, err := r.look(s)
	if err != nil {
		return &traffic.Observed{Setup: s, Unread: drivererr.ProblemOf(err)}
	}
	return &traffic.Observed{Setup: s, World: w}
}
