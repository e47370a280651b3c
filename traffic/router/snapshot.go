// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Snapshot returns an observation of a release's traffic, from caches only. It starts the informers that the release needs.
func (r *Router) Snapshot(s traffic.Setup) *traffic.Observed {
	w, err := r.look(s)
	if err != nil {
		return &traffic.Observed{Setup: s, Unread: drivererr.ProblemOf(err)}
	}
	return &traffic.Observed{Setup: s, World: w}
}
