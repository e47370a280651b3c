// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// road is the model of a stable Service, a canary Service, one route and its gateway.
type road struct {
	fenced, prepared bool
	weight           int // in the route
	seen             int // by the gateway
	leaking          bool
	gone             bool // the stable Service
	blocked          bool // writes are refused
	unread           bool // the caches are not filled
}

// roadView is a look at it.
type roadView struct {
	road

	stable, canary int // ready endpoints
	pods           []string
}

// next is the next step towards d, nil if there is none.
func (v roadView) next(d traffic.Desired) (step func(*road), what string) {
	d.Prepared = d.Prepared || d.Weight > 0
	d.Fenced = d.Fenced || d.Prepared
	switch {
	case v.weight > d.Weight:
		return func(r *road) { r.weight = d.Weight }, "retreat"
	case d.Fenced && !v.fenced:
		return func(r *road) { r.fenced, r.leaking = true, true }, "fence"
	case d.Prepared && !v.prepared:
		return func(r *road) { r.prepared = true }, "prepare"
	case v.weight < d.Weight && v.canary > 0:
		return func(r *road) { r.weight = d.Weight }, "advance"
	case !d.Prepared && v.prepared:
		return func(r *road) { r.prepared = false }, "clean up"
	case !d.Fenced && v.fenced:
		return func(r *road) { r.fenced = false }, "lift"
	}
	return nil, ""
}

// Look is what the planner is told.
func (v roadView) Look(d traffic.Desired) traffic.View {
	if v.unread {
		return traffic.View{Reason: traffic.ReasonNotSynced, Message: "the caches are not filled yet"}
	}
	out := traffic.View{
		Fenced: v.fenced, Prepared: v.prepared, Weight: v.weight,
		StableEndpoints: v.stable, CanaryEndpoints: v.canary, CanaryPods: v.pods,
	}
	step, what := v.next(d)
	blocked := v.blocked || v.gone && what != "retreat" && (d.Fenced || d.Prepared || d.Weight > 0)
	switch {
	case step != nil && blocked, v.gone && blocked:
		out.Drift, out.Err, out.Reason = true, errors.New("somebody must act"), traffic.ReasonBlocked
		out.Message, out.Withdrawn = "somebody must act", what != "retreat" && v.weight == v.seen
		return out
	case step != nil:
		out.Drift, out.Next, out.Reason = true, what, traffic.ReasonWriting
	case d.Fenced || d.Prepared || d.Weight > 0:
		switch {
		case v.leaking:
			out.Reason = traffic.ReasonFenceNotInForce
		case d.Weight > 0 && v.canary == 0:
			out.Reason = traffic.ReasonNoCanaryEndpoints
		case d.Weight < 100 && v.stable == 0:
			out.Reason = traffic.ReasonNoStableEndpoints
		case v.weight != v.seen:
			out.Reason = traffic.ReasonRouteNotObserved
		}
	}
	out.Taken = step == nil && v.weight == v.seen
	out.Withdrawn = out.Taken
	out.Verified, out.Message = out.Reason == "", out.Reason
	return out
}

// look is the observer's, nil without a traffic policy.
func (c *cluster) look() *roadView {
	if c.road == nil {
		return nil
	}
	v := roadView{road: *c.road}
	for i, g := range c.stable.groups {
		if g.ready && i < c.stable.leaders.replicas {
			v.stable++
		}
	}
	if len(c.added) > 0 {
		for i, g := range c.added[0].groups {
			if g.ready && g.serving {
				v.canary++
				v.pods = append(v.pods, fmt.Sprintf("%s-%d", c.added[0].name, i))
			}
		}
	}
	return &v
}

// follow lets the gateway and the endpoints catch up.
func (c *cluster) follow() {
	if c.road != nil {
		c.road.seen, c.road.leaking = c.road.weight, false
	}
}

// route is what people and other tools do to the objects.
func (c *cluster) route(how string) {
	if c.road == nil {
		return
	}
	c.note("user: %s", how)
	switch how {
	case "apply the route again":
		c.road.weight = 0
	case "take the fence off":
		c.road.fenced = false
	}
}

// setWeight is the RPC.
func (c *cluster) setWeight(weight int) {
	if c.road == nil || c.phase() != release.Progressing || c.record.Release.UpdateRevision != c.stable.template {
		return
	}
	c.note("host: weight %d", weight)
	r := *c.record.Release
	r.Traffic = r.Traffic.With(func(t *release.Traffic) { t.Weight = weight })
	c.rewrite(r)
}

// applyTraffic is one write of the router, made from what it sees. A look that is as old as a write of others is only
// possible where two drivers are at work, and they put right what the other did.
func (c *cluster) applyTraffic(a SetTraffic, versions map[string]int) bool {
	step, what := c.look().next(a.Desired)
	if step == nil || what != a.Why || versions[c.stable.name] != c.stable.version {
		return false
	}
	if what == "lift" && len(c.added) > 0 && !c.stable.deleting {
		c.fail("the fence is lifted with %s there", c.added[0].name)
	}
	step(c.road)
	return true
}

// checkRoad: requests go to whole groups that stay, and through the fence to nobody.
func (c *cluster) checkRoad(a Action) {
	if c.road == nil || c.stable.deleting {
		return
	}
	switch a.(type) {
	case DeleteCanary, LetGo:
		if c.road.weight > 0 {
			c.fail("%s while the route has weight %d", a, c.road.weight)
		}
		if c.road.seen > 0 {
			c.fail("%s while the gateway has weight %d", a, c.road.seen)
		}
	case ScaleCanary, CreateCanary:
		if !c.road.fenced {
			c.fail("%s without the fence", a)
		}
	}
}

func (c *cluster) checkRoadAtRest() {
	if c.road != nil && len(c.added) == 0 && *c.road != (road{}) {
		c.fail("%s is left of the traffic", fmt.Sprintf("%+v", *c.road))
	}
}
