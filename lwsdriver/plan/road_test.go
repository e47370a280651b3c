// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// road is the model of a stable Service, a canary Service, one route and its gateway.
type road struct {
	fenced, prepared bool
	pin, to          string // in place: the revisions that the two Services are pinned to
	shut             bool   // in place: the stable Service is open, and its endpoints do not follow yet
	weight           int    // in the route
	seen             int    // by the gateway
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
	// inPlace: the two sides are told apart by these revisions.
	inPlace      bool
	from, update string
}

// isFenced says whether the stable Service leads to stable leaders only.
func (v roadView) isFenced() bool { return v.fenced && v.pin == v.from }

// closed says whether the stable Service does not lead yet to leaders that may have a share.
func (v roadView) closed(d traffic.Desired) bool {
	return (v.inPlace || d.HandedOver) && v.shut && (v.weight > 0 || d.Prepared) && v.canary > 0
}

// next is the next step towards d, nil if there is none.
func (v roadView) next(d traffic.Desired) (step func(*road), what string) {
	d = v.complete(d)
	switch {
	case d.Unfenced && v.fenced:
		return func(r *road) { r.fenced, r.pin, r.shut, r.leaking = false, "", true, false }, "open"
	case d.HandedOver && (d.Prepared || v.weight > 0) && (!v.fenced || v.pin != passedPin):
		return func(r *road) { r.fenced, r.pin, r.shut, r.leaking = true, passedPin, true, false }, "pass"
	case (d.Unfenced || d.HandedOver) && v.closed(d):
		return nil, ""
	case v.weight > d.Weight:
		return func(r *road) { r.weight = d.Weight }, "retreat"
	case d.Fenced && !v.isFenced() && !d.HandedOver:
		return func(r *road) { r.fenced, r.leaking, r.shut, r.pin = true, true, false, v.from }, "fence"
	case d.Prepared && (!v.prepared || v.to != v.update):
		return func(r *road) { r.prepared, r.to = true, v.update }, "prepare"
	case v.weight < d.Weight && v.canary > 0:
		return func(r *road) { r.weight = d.Weight }, "advance"
	case !d.Prepared && v.prepared:
		return func(r *road) { r.prepared, r.to = false, "" }, "clean up"
	case !d.Fenced && v.fenced:
		return func(r *road) { r.fenced, r.pin = false, "" }, "lift"
	}
	return nil, ""
}

// complete is d with what it implies.
func (v roadView) complete(d traffic.Desired) traffic.Desired {
	d.Prepared = d.Prepared || d.Weight > 0
	d.Fenced = !d.Unfenced && (d.Fenced || d.Prepared)
	d.Unfenced = d.Unfenced || v.inPlace && !d.Fenced
	return d
}

// Facts is what the planner is told of the moment.
func (v roadView) Facts() traffic.Facts {
	if v.unread {
		return traffic.Facts{}
	}
	return traffic.Facts{
		Prepared: v.prepared, Weight: v.weight, StableEndpoints: v.stable, CanaryEndpoints: v.canary, CanaryPods: v.pods,
	}
}

// Look is what the planner is told.
func (v roadView) Look(d traffic.Desired) traffic.View {
	if v.unread {
		return traffic.View{Reason: traffic.ReasonNotSynced, Message: "the caches are not filled yet"}
	}
	out := traffic.View{Facts: v.Facts(), Fenced: v.isFenced()}
	step, what := v.next(d)
	d = v.complete(d)
	closed := (d.Unfenced || d.HandedOver) && v.closed(d)
	blocked := v.blocked || v.gone && what != "retreat" && (d.Fenced || d.Prepared || d.Weight > 0)
	switch {
	case step != nil && blocked, v.gone && blocked:
		out.Stage, out.Reason = traffic.Blocked, traffic.ReasonBlocked
		out.Message, out.Withdrawn = "somebody must act", what != "retreat" && v.weight == v.seen && !closed
		return out
	case step != nil:
		out.Stage, out.Next, out.Reason = traffic.Drifted, what, traffic.ReasonWriting
	case d.Fenced || d.Prepared || d.Weight > 0 || closed:
		switch {
		case closed:
			out.Reason = traffic.ReasonServiceNotOpen
		case d.Fenced && v.leaking:
			out.Reason = traffic.ReasonFenceNotInForce
		case d.Weight > 0 && v.canary == 0:
			out.Reason = traffic.ReasonNoCanaryEndpoints
		case d.Weight < 100 && v.stable == 0:
			out.Reason = traffic.ReasonNoStableEndpoints
		case v.weight != v.seen:
			out.Reason = traffic.ReasonRouteNotObserved
		}
	}
	out.Withdrawn, out.Message = step == nil && v.weight == v.seen && !closed, out.Reason
	switch {
	case step != nil:
	case out.Reason == "":
		out.Stage = traffic.Verified
	case out.Withdrawn:
		out.Stage = traffic.Acknowledged
	default:
		out.Stage = traffic.Written
	}
	return out
}

// look is the observer's, nil without a traffic policy.
func (c *cluster) look() *roadView {
	if c.road == nil {
		return nil
	}
	v := roadView{road: *c.road, inPlace: c.inPlace()}
	if v.inPlace && c.record != nil && c.record.Release != nil {
		v.from, v.update = c.record.Release.StableRevision, c.record.Release.UpdateRevision
	}
	if c.road.pin == passedPin {
		for _, s := range c.added {
			v.stable += s.ready()
		}
	}
	for i, g := range c.stable.groups {
		if c.road.pin == passedPin {
			break
		}
		if g.ready && i < c.stable.leaders.replicas && (!v.inPlace || !v.fenced || g.revision == v.pin) {
			v.stable++
		}
		if v.inPlace && g.ready && g.serving && g.revision == v.to {
			v.canary++
			v.pods = append(v.pods, fmt.Sprintf("%s-%d", c.stable.name, i))
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
		c.road.seen, c.road.leaking, c.road.shut = c.road.weight, false, false
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
		c.road.fenced, c.road.pin = false, ""
		c.opened++
	}
}

// setWeight is the RPC.
func (c *cluster) setWeight(weight int) {
	if c.road == nil || c.phase() != record.Progressing || c.record.Release.UpdateRevision != c.stable.template {
		return
	}
	c.note("host: weight %d", weight)
	c.request(Route{ReleaseID: c.record.Release.ID, Weight: &weight})
}

// applyTraffic is one write of the router, made from what it sees. A look that is as old as a write of others is only
// possible where two drivers are at work, and they put right what the other did.
func (c *cluster) applyTraffic(a SetTraffic, versions map[string]int) bool {
	step, what := c.look().next(a.Desired)
	if step == nil || what != a.Why || versions[c.stable.name] != c.stable.version {
		return false
	}
	if what == "lift" && len(c.added) > 0 && !c.stable.deleting && !a.Desired.HandedOver {
		c.fail("the fence is lifted with %s there", c.added[0].name)
	}
	c.checkStep(what, a)
	step(c.road)
	return true
}

// checkStep: requests are never left to a few groups while others serve, too: in place, those that the stable Service is
// not pinned to; in blue-green, the second set while the user's own groups are on their way back from a promotion.
func (c *cluster) checkStep(what string, a SetTraffic) {
	if what == "retreat" && c.phase() == record.Returning && c.policy.Style == pb.Style_STYLE_BLUE_GREEN && c.road.canServe(c) {
		back := 0
		for i, g := range c.stable.groups {
			if i < c.stable.replicas && g.ready && g.revision == c.record.Release.StableRevision {
				back++
			}
		}
		if back < c.stable.replicas-c.policy.Threshold(c.stable.replicas) {
			c.fail("all requests go to %d of %d groups", back, c.stable.replicas)
		}
	}
	if !c.inPlace() || c.record == nil || c.record.Release == nil || c.stable.deleting {
		return
	}
	r := c.record.Release
	switch others := len(c.observe().strayed()) > 0; {
	case what == "retreat" && a.Desired.Unfenced && c.road.canServe(c) && (c.road.fenced || c.road.shut):
		c.fail("the share goes before the stable Service leads to all leaders: %+v", *c.road)
	case what == "fence" && r.Unfenced && others:
		c.fail("the stable Service is pinned to few of the groups: %+v", *c.road)
	}
}

// canServe says whether a leader that has a share is ready.
func (r *road) canServe(c *cluster) bool { return c.look().canary > 0 }

// checkBatch: before LWS updates groups in place, requests are where that harms none.
func (c *cluster) checkBatch(a SetStable) {
	if a.Rolling == nil {
		return
	}
	next, was := ptr.Deref(a.Rolling.Partition, 0), ptr.Deref(c.stable.rolling.Partition, 0)
	if c.road == nil || !c.inPlace() || next >= was || c.stable.deleting {
		return
	}
	r, shares := a.Record.Release, c.road.weight > 0 || c.road.seen > 0
	switch {
	case r.Phase == record.Returning && shares:
		c.fail("groups return while the route has %d and the gateway %d %%", c.road.weight, c.road.seen)
	case r.Phase == record.Returning:
	case next == 0 && (shares || c.road.fenced || c.road.shut && c.road.canServe(c)):
		c.fail("every group may be updated, and requests are split: %+v", *c.road)
	case next > 0 && !r.Unfenced && (!c.road.fenced || c.road.leaking || c.road.pin != r.StableRevision):
		c.fail("groups are updated without the fence: %+v", *c.road)
	}
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
	case RestartGroup:
		if c.inPlace() && (c.road.weight > 0 || c.road.seen > 0) {
			c.fail("%s while the route has %d and the gateway %d %%", a, c.road.weight, c.road.seen)
		}
	case ScaleCanary, CreateCanary:
		if !c.road.fenced && c.phase() != record.Adopting {
			c.fail("%s without the fence", a)
		}
	}
}

func (c *cluster) checkRoadAtRest() {
	if c.inPlace() && (c.phase() == record.Progressing || c.rolls()) || c.next != nil {
		return // there is nothing added that would tell
	}
	if c.road != nil && len(c.added) == 0 && *c.road != (road{}) {
		c.fail("%s is left of the traffic", fmt.Sprintf("%+v", *c.road))
	}
	if c.adopted > 0 && c.phase() == record.Progressing {
		return // the marks of the last release go at the end of this one, if it began so soon
	}
	for i, g := range c.stable.groups {
		if g.serving {
			c.fail("the mark of group %d is left", i)
		}
	}
}
