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

// trafficModel is the model of a stable Service, a canary Service, one route and its gateway.
type trafficModel struct {
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

// trafficView is a look at it.
type trafficView struct {
	trafficModel

	stable, canary int // ready endpoints
	pods           []string
	// inPlace: the two sides are told apart by these revisions.
	inPlace      bool
	from, update string
}

// isFenced says whether the stable Service leads to stable leaders only.
func (v trafficView) isFenced() bool { return v.fenced && v.pin == v.from }

// closed says whether the stable Service does not lead yet to leaders that may have a share.
func (v trafficView) closed(d traffic.Desired) bool {
	return (v.inPlace || d.HandedOver) && v.shut && (v.weight > 0 || d.Prepared) && v.canary > 0
}

// next is the next step towards d, nil if there is none.
func (v trafficView) next(d traffic.Desired) (step func(*trafficModel), what string) {
	d = v.complete(d)
	switch {
	case d.Unfenced && v.fenced:
		return func(r *trafficModel) { r.fenced, r.pin, r.shut, r.leaking = false, "", true, false }, "open"
	case d.HandedOver && (d.Prepared || v.weight > 0) && (!v.fenced || v.pin != passedPin):
		return func(r *trafficModel) { r.fenced, r.pin, r.shut, r.leaking = true, passedPin, true, false }, "pass"
	case (d.Unfenced || d.HandedOver) && v.closed(d):
		return nil, ""
	case v.weight > d.Weight:
		return func(r *trafficModel) { r.weight = d.Weight }, "retreat"
	case d.Fenced && !v.isFenced() && !d.HandedOver:
		return func(r *trafficModel) { r.fenced, r.leaking, r.shut, r.pin = true, true, false, v.from }, "fence"
	case d.Prepared && (!v.prepared || v.to != v.update):
		return func(r *trafficModel) { r.prepared, r.to = true, v.update }, "prepare"
	case v.weight < d.Weight && v.canary > 0:
		return func(r *trafficModel) { r.weight = d.Weight }, "advance"
	case !d.Prepared && v.prepared:
		return func(r *trafficModel) { r.prepared, r.to = false, "" }, "clean up"
	case !d.Fenced && v.fenced:
		return func(r *trafficModel) { r.fenced, r.pin = false, "" }, "lift"
	}
	return nil, ""
}

// complete is d with what it implies.
func (v trafficView) complete(d traffic.Desired) traffic.Desired {
	d.Prepared = d.Prepared || d.Weight > 0
	d.Fenced = !d.Unfenced && (d.Fenced || d.Prepared)
	d.Unfenced = d.Unfenced || v.inPlace && !d.Fenced
	return d
}

// Facts is what the planner is told of the moment.
func (v trafficView) Facts() traffic.Facts {
	if v.unread {
		return traffic.Facts{}
	}
	return traffic.Facts{
		Prepared: v.prepared, Weight: v.weight, StableEndpoints: v.stable, CanaryEndpoints: v.canary, CanaryPods: v.pods,
	}
}

// Look is what the planner is told.
func (v trafficView) Look(d traffic.Desired) traffic.View {
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
func (c *cluster) look() *trafficView {
	if c.traffic == nil {
		return nil
	}
	v := trafficView{trafficModel: *c.traffic, inPlace: c.inPlace()}
	if v.inPlace && c.record != nil && c.record.Release != nil {
		v.from, v.update = c.record.Release.StableRevision, c.record.Release.UpdateRevision
	}
	if c.traffic.pin == passedPin {
		for _, s := range c.added {
			v.stable += s.ready()
		}
	}
	for i, g := range c.stable.groups {
		if c.traffic.pin == passedPin {
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
	if c.traffic != nil {
		c.traffic.seen, c.traffic.leaking, c.traffic.shut = c.traffic.weight, false, false
	}
}

// route is what people and other tools do to the objects.
func (c *cluster) route(how string) {
	if c.traffic == nil {
		return
	}
	c.note("user: %s", how)
	switch how {
	case "apply the route again":
		c.traffic.weight = 0
	case "take the fence off":
		c.traffic.fenced, c.traffic.pin = false, ""
		c.opened++
	}
}

// setWeight is the RPC.
func (c *cluster) setWeight(weight int) {
	if c.traffic == nil || c.phase() != record.Progressing || c.record.Release.UpdateRevision != c.stable.template {
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
	step(c.traffic)
	return true
}

// checkStep: requests are never left to a few groups while others serve, too: in place, those that the stable Service is
// not pinned to; in blue-green, the second set while the user's own groups are on their way back from a promotion.
func (c *cluster) checkStep(what string, a SetTraffic) {
	if what == "retreat" && c.phase() == record.RollingBack && c.policy.Style == pb.Style_STYLE_BLUE_GREEN && c.traffic.canServe(c) {
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
	switch others := len(c.observe().groupsOffRevision()) > 0; {
	case what == "retreat" && a.Desired.Unfenced && c.traffic.canServe(c) && (c.traffic.fenced || c.traffic.shut):
		c.fail("the share goes before the stable Service leads to all leaders: %+v", *c.traffic)
	case what == "fence" && r.Unfenced && others:
		c.fail("the stable Service is pinned to few of the groups: %+v", *c.traffic)
	}
}

// canServe says whether a leader that has a share is ready.
func (r *trafficModel) canServe(c *cluster) bool { return c.look().canary > 0 }

// checkBatch: before LWS updates groups in place, requests are where that harms none.
func (c *cluster) checkBatch(a SetStable) {
	if a.Rolling == nil {
		return
	}
	next, was := ptr.Deref(a.Rolling.Partition, 0), ptr.Deref(c.stable.rolling.Partition, 0)
	if c.traffic == nil || !c.inPlace() || next >= was || c.stable.deleting {
		return
	}
	r, shares := a.Record.Release, c.traffic.weight > 0 || c.traffic.seen > 0
	switch {
	case r.Phase == record.RollingBack && shares:
		c.fail("groups return while the route has %d and the gateway %d %%", c.traffic.weight, c.traffic.seen)
	case r.Phase == record.RollingBack:
	case next == 0 && (shares || c.traffic.fenced || c.traffic.shut && c.traffic.canServe(c)):
		c.fail("every group may be updated, and requests are split: %+v", *c.traffic)
	case next > 0 && !r.Unfenced && (!c.traffic.fenced || c.traffic.leaking || c.traffic.pin != r.StableRevision):
		c.fail("groups are updated without the fence: %+v", *c.traffic)
	}
}

// checkRoad: requests go to whole groups that stay, and through the fence to nobody.
func (c *cluster) checkRoad(a Action) {
	if c.traffic == nil || c.stable.deleting {
		return
	}
	switch a.(type) {
	case DeleteCanary, RemoveFinalizer:
		if c.traffic.weight > 0 {
			c.fail("%s while the route has weight %d", a, c.traffic.weight)
		}
		if c.traffic.seen > 0 {
			c.fail("%s while the gateway has weight %d", a, c.traffic.seen)
		}
	case RestartGroup:
		if c.inPlace() && (c.traffic.weight > 0 || c.traffic.seen > 0) {
			c.fail("%s while the route has %d and the gateway %d %%", a, c.traffic.weight, c.traffic.seen)
		}
	case ScaleCanary, CreateCanary:
		if !c.traffic.fenced && c.phase() != record.HandingOver {
			c.fail("%s without the fence", a)
		}
	}
}

func (c *cluster) checkRoadAtRest() {
	if c.inPlace() && (c.phase() == record.Progressing || c.rolls()) || c.next != nil {
		return // there is nothing added that would tell
	}
	if c.traffic != nil && len(c.added) == 0 && *c.traffic != (trafficModel{}) {
		c.fail("%s is left of the traffic", fmt.Sprintf("%+v", *c.traffic))
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
