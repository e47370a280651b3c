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
	endpointsLag     bool   // in place: the stable Service is unfenced, but its endpoints are not updated yet
	weight           int    // in the route
	seen             int    // by the gateway
	leaking          bool
	gone             bool // the stable Service
	blocked          bool // writes are refused
	unread           bool // the caches are not filled
}

// trafficView is an observation of it.
type trafficView struct {
	trafficModel

	stable, canary int // ready endpoints
	pods           []string
	// inPlace: these revisions distinguish the two sides.
	inPlace      bool
	from, update string
}

// isFenced reports whether the stable Service selects stable leaders only.
func (v trafficView) isFenced() bool { return v.fenced && v.pin == v.from }

// awaitsEndpoints reports whether the stable Service lacks endpoints of leaders that may have a share.
func (v trafficView) awaitsEndpoints(d traffic.Desired) bool {
	return (v.inPlace || d.HandedOver) && v.endpointsLag && (v.weight > 0 || d.Prepared) && v.canary > 0
}

// next returns the next step towards d, or nil.
func (v trafficView) next(d traffic.Desired) (step func(*trafficModel), what string) {
	d = v.complete(d)
	switch {
	case d.Unfenced && v.fenced:
		return func(r *trafficModel) { r.fenced, r.pin, r.endpointsLag, r.leaking = false, "", true, false }, "unfence"
	case d.HandedOver && (d.Prepared || v.weight > 0) && (!v.fenced || v.pin != handedOverPin):
		return func(r *trafficModel) { r.fenced, r.pin, r.endpointsLag, r.leaking = true, handedOverPin, true, false }, "hand over"
	case (d.Unfenced || d.HandedOver) && v.awaitsEndpoints(d):
		return nil, ""
	case v.weight > d.Weight:
		return func(r *trafficModel) { r.weight = d.Weight }, "withdraw"
	case d.Fenced && !v.isFenced() && !d.HandedOver:
		return func(r *trafficModel) { r.fenced, r.leaking, r.endpointsLag, r.pin = true, true, false, v.from }, "fence"
	case d.Prepared && (!v.prepared || v.to != v.update):
		return func(r *trafficModel) { r.prepared, r.to = true, v.update }, "prepare"
	case v.weight < d.Weight && v.canary > 0:
		return func(r *trafficModel) { r.weight = d.Weight }, "shift"
	case !d.Prepared && v.prepared:
		return func(r *trafficModel) { r.prepared, r.to = false, "" }, "clean up"
	case !d.Fenced && v.fenced:
		return func(r *trafficModel) { r.fenced, r.pin = false, "" }, "remove the fence"
	}
	return nil, ""
}

// complete returns d with what it implies.
func (v trafficView) complete(d traffic.Desired) traffic.Desired {
	d.Prepared = d.Prepared || d.Weight > 0
	d.Fenced = !d.Unfenced && (d.Fenced || d.Prepared)
	d.Unfenced = d.Unfenced || v.inPlace && !d.Fenced
	return d
}

// Facts returns the present state.
func (v trafficView) Facts() traffic.Facts {
	if v.unread {
		return traffic.Facts{}
	}
	return traffic.Facts{
		Prepared: v.prepared, Weight: v.weight, StableEndpoints: v.stable, CanaryEndpoints: v.canary, CanaryPods: v.pods,
	}
}

// Look compares the present with the desired state.
func (v trafficView) Look(d traffic.Desired) traffic.View {
	if v.unread {
		return traffic.View{Reason: traffic.ReasonNotSynced, Message: "the caches are not filled yet"}
	}
	out := traffic.View{Facts: v.Facts(), Fenced: v.isFenced()}
	step, what := v.next(d)
	d = v.complete(d)
	closed := (d.Unfenced || d.HandedOver) && v.awaitsEndpoints(d)
	blocked := v.blocked || v.gone && what != "withdraw" && (d.Fenced || d.Prepared || d.Weight > 0)
	switch {
	case step != nil && blocked, v.gone && blocked:
		out.Stage, out.Reason = traffic.Blocked, traffic.ReasonBlocked
		out.Message, out.Withdrawn = "blocked", what != "withdraw" && v.weight == v.seen && !closed
		return out
	case step != nil:
		out.Stage, out.Next, out.Reason = traffic.Drifted, what, traffic.ReasonWriting
	case d.Fenced || d.Prepared || d.Weight > 0 || closed:
		switch {
		case closed:
			out.Reason = traffic.ReasonEndpointsNotFollowing
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

// look is the observer; nil without a traffic policy.
func (c *cluster) look() *trafficView {
	if c.traffic == nil {
		return nil
	}
	v := trafficView{trafficModel: *c.traffic, inPlace: c.inPlace()}
	if v.inPlace && c.record != nil && c.record.Release != nil {
		v.from, v.update = c.record.Release.StableRevision, c.record.Release.UpdateRevision
	}
	if c.traffic.pin == handedOverPin {
		for _, s := range c.added {
			v.stable += s.ready()
		}
	}
	for i, g := range c.stable.groups {
		if c.traffic.pin == handedOverPin {
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
		c.traffic.seen, c.traffic.leaking, c.traffic.endpointsLag = c.traffic.weight, false, false
	}
}

// route edits the objects, as users and tools do.
func (c *cluster) route(how string) {
	if c.traffic == nil {
		return
	}
	c.note("user: %s", how)
	switch how {
	case "apply the route again":
		c.traffic.weight = 0
	case "remove the fence":
		c.traffic.fenced, c.traffic.pin = false, ""
		c.unfenced++
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

// applyTraffic is one write of the router, made from its own observation. A stale one is possible only with two drivers,
// and each repairs the other's writes.
func (c *cluster) applyTraffic(a SetTraffic, versions map[string]int) bool {
	step, what := c.look().next(a.Desired)
	if step == nil || what != a.Why || versions[c.stable.name] != c.stable.version {
		return false
	}
	if what == "remove the fence" && len(c.added) > 0 && !c.stable.deleting && !a.Desired.HandedOver {
		c.fail("the fence is removed while %s exists", c.added[0].name)
	}
	c.checkStep(what, a)
	before := c.traffic.weight
	step(c.traffic)
	c.countTurns(before)
	return true
}

// checkStep: requests are never left to a few groups while others serve, too: in place, the groups that the stable
// Service does not select; in blue-green, the user's own groups before they are restored after a promotion.
func (c *cluster) checkStep(what string, a SetTraffic) {
	if what == "withdraw" && c.phase() == record.RollingBack && c.policy.Style == pb.Style_STYLE_BLUE_GREEN && c.traffic.canServe(c) {
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
	case what == "withdraw" && a.Desired.Unfenced && c.traffic.canServe(c) && (c.traffic.fenced || c.traffic.endpointsLag):
		c.fail("the share is withdrawn before the stable Service selects all leaders: %+v", *c.traffic)
	case what == "fence" && r.Unfenced && others:
		c.fail("the stable Service is pinned to few of the groups: %+v", *c.traffic)
	}
}

// canServe reports whether a leader with a share is ready.
func (r *trafficModel) canServe(c *cluster) bool { return c.look().canary > 0 }

// checkBatch: before LWS updates groups in place, the routing loses no request by it.
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
		c.fail("groups roll back while the route has %d and the gateway %d %%", c.traffic.weight, c.traffic.seen)
	case r.Phase == record.RollingBack:
	case next == 0 && (shares || c.traffic.fenced || c.traffic.endpointsLag && c.traffic.canServe(c)):
		c.fail("every group may be updated, and requests are split: %+v", *c.traffic)
	case next > 0 && !r.Unfenced && (!c.traffic.fenced || c.traffic.leaking || c.traffic.pin != r.StableRevision):
		c.fail("groups are updated without the fence: %+v", *c.traffic)
	}
}

// checkTraffic: only ready groups that stay receive requests, and none through the fence.
func (c *cluster) checkTraffic(a Action) {
	if c.traffic == nil || c.stable.deleting {
		return
	}
	switch a := a.(type) {
	case SetTraffic:
		c.checkRaise(a.Desired.Weight)
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

func (c *cluster) checkTrafficAtRest() {
	if c.phase() == record.Progressing || c.inPlace() && c.rolls() || c.next != nil {
		return // the release is not over
	}
	if c.traffic != nil && len(c.added) == 0 && *c.traffic != (trafficModel{}) {
		c.fail("%s is left of the traffic", fmt.Sprintf("%+v", *c.traffic))
	}
	if c.handovers > 0 && c.phase() == record.Progressing {
		return // the marks of the last release are removed with this one's, if it began early
	}
	for i, g := range c.stable.groups {
		if g.serving {
			c.fail("the mark of group %d is left", i)
		}
	}
}
