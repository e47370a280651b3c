// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

// protectRequests returns the write that takes requests away from canary groups that can't serve them. It comes before waits that
// the canary's groups have no part in, such as for an autoscaler, and before writes that may be refused. Nil: none is due.
func protectRequests(o Observation, planned int, state pb.State) *Decision {
	c := o.canary()
	if o.Traffic == nil || o.inPlace() || c == nil || c.Deleting {
		return nil
	}
	if want := o.requested(planned); want.Weight < o.Traffic.Facts().Weight {
		if _, d := reconcileTraffic(o, want, state); d != nil {
			return d
		}
	}
	for _, g := range c.Groups {
		if g.Serving && !g.Ready && g.Revision != "" {
			m := MarkLeader{Name: c.Name, Leader: g.Leader}
			return &Decision{Action: m, State: state, Reason: ReasonMarking, Message: m.String()}
		}
	}
	return nil
}
