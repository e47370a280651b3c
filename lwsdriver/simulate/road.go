// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// road is where requests go: objects that are written at once, and gateways that follow at once.
type road struct{ desired traffic.Desired }

func (r *road) set(d traffic.Desired) { r.desired = complete(d) }

// complete is d with what it implies.
func complete(d traffic.Desired) traffic.Desired {
	d.HeaderRoutes = nil // the forecast's host asks for none
	d.Prepared = d.Prepared || d.Weight > 0 || d.Mirror > 0
	d.Fenced = d.Fenced || d.Prepared
	return d
}

// roadView is a look at it.
type roadView struct {
	now    traffic.Desired
	stable int
	pods   []string
}

func (w *world) look() roadView {
	v := roadView{now: w.road.desired, stable: w.stable.Ready()}
	if w.canary == nil {
		return v
	}
	for i, g := range w.canary.Groups {
		if g.Ready && w.serving[g] {
			v.pods = append(v.pods, leader(canaryName, i))
		}
	}
	return v
}

// Look is what the planner is told.
func (v roadView) Look(d traffic.Desired) traffic.View {
	d = complete(d)
	out := traffic.View{
		Fenced: v.now.Fenced, Prepared: v.now.Prepared, Weight: v.now.Weight,
		StableEndpoints: v.stable, CanaryEndpoints: len(v.pods), CanaryPods: v.pods,
	}
	same := d.Weight == v.now.Weight && d.Mirror == v.now.Mirror && d.Prepared == v.now.Prepared && d.Fenced == v.now.Fenced && d.Passed == v.now.Passed
	switch {
	case !same:
		out.Drift, out.Next, out.Reason = true, "route requests", traffic.ReasonWriting
	case d.Weight > 0 && len(v.pods) == 0:
		out.Reason = traffic.ReasonNoCanaryEndpoints
	case d.Fenced && d.Weight < 100 && v.stable == 0:
		out.Reason = traffic.ReasonNoStableEndpoints
	}
	out.Taken, out.Withdrawn, out.Verified = same, same, out.Reason == ""
	out.Message = out.Reason
	return out
}
