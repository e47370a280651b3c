// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// trafficModel models routing: objects are written at once, and gateways follow at once.
type trafficModel struct{ desired traffic.Desired }

func (r *trafficModel) set(d traffic.Desired) { r.desired = withImplied(d) }

// withImplied returns d with what it implies.
func withImplied(d traffic.Desired) traffic.Desired {
	d.HeaderRoutes = nil // the forecast's host requests none
	d.Prepared = d.Prepared || d.Weight > 0 || d.Mirror > 0
	d.Fenced = (d.Fenced || d.Prepared) && !d.Unfenced
	return d
}

// trafficView is an observation of it.
type trafficView struct {
	now    traffic.Desired
	stable int
	pods   []string
}

func (w *world) look() trafficView {
	v := trafficView{now: w.traffic.desired}
	for _, s := range w.sets() {
		for i, g := range s.Groups {
			updated := s == w.canary || plan.InPlace(w.policy.Style) && g.Revision == newRevision
			switch {
			case !g.Ready:
			case !updated:
				v.stable++
			case w.serving[g]:
				v.pods = append(v.pods, leader(w.nameOf(s), i))
			}
		}
	}
	return v
}

// nameOf returns the name of a set.
func (w *world) nameOf(s *native.Set) string {
	if s == w.canary {
		return canaryName
	}
	return w.name
}

// Facts returns the present state.
func (v trafficView) Facts() traffic.Facts {
	return traffic.Facts{
		Prepared: v.now.Prepared, Weight: v.now.Weight,
		StableEndpoints: v.stable, CanaryEndpoints: len(v.pods), CanaryPods: v.pods,
	}
}

// Look compares the present with a desired state.
func (v trafficView) Look(d traffic.Desired) traffic.View {
	d = withImplied(d)
	out := traffic.View{Facts: v.Facts(), Fenced: v.now.Fenced, Stage: traffic.Acknowledged}
	same := d.Weight == v.now.Weight && d.Mirror == v.now.Mirror && d.Prepared == v.now.Prepared && d.Fenced == v.now.Fenced && d.HandedOver == v.now.HandedOver
	switch {
	case !same:
		out.Stage, out.Next, out.Reason = traffic.Drifted, "route requests", traffic.ReasonWriting
	case d.Weight > 0 && len(v.pods) == 0:
		out.Reason = traffic.ReasonNoCanaryEndpoints
	case d.Fenced && d.Weight < 100 && v.stable == 0:
		out.Reason = traffic.ReasonNoStableEndpoints
	default:
		out.Stage = traffic.Verified
	}
	out.Withdrawn, out.Message = same, out.Reason
	return out
}
