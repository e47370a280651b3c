// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// protectRequests returns the write that takes requests away from updated groups that can't serve them. It comes before waits that
// these groups have no part in, such as for LWS or an autoscaler, and before writes that may be refused. Nil means that none is due.
func protectRequests(o Observation, state pb.State) *Decision {
	c := o.canary()
	if o.inPlace() {
		c = &o.Stable
	}
	if o.Traffic == nil || c == nil || c.Deleting || o.inPlace() && (o.release().Unfenced || o.splitMoves() || o.release().Phase != record.Progressing) {
		return nil
	}
	if want := o.requested(o.routedGroups()); want.Weight < o.Traffic.Facts().Weight {
		if _, d := reconcileTraffic(o, want, state); d != nil {
			return d
		}
	}
	return markGroups(*c, state, func(g Group) bool { return g.Serving && g.Ready })
}
