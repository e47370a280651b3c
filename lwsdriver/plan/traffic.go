// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Traffic is one look at how the release's requests are routed. A driver's is a [traffic.Observed], which is plain data.
type Traffic interface {
	// Facts returns what they meet now.
	Facts() traffic.Facts
	// Look returns how they stand against where they should go. It answers alike however often it is asked.
	Look(d traffic.Desired) traffic.View
}

// Drain is how far leaders that lost their traffic are with the requests that they have.
type Drain struct {
	Done bool
	// Message says what is still running, or what ran when the time was up.
	Message string
	// Recheck is when time alone will change the answer. Zero: never.
	Recheck time.Duration
}

// prepared is where requests go while none goes to the canary, though it could get some at once.
func prepared() traffic.Desired { return traffic.Desired{Prepared: true} }

// requested is where the host wants the requests to go, as far as there is a canary to send them to.
func (o Observation) requested(planned int) traffic.Desired {
	if o.routesInPlace() {
		return o.requestedInPlace()
	}
	d := prepared()
	c, wish := o.canary(), o.Record.Release.Traffic
	p := o.Record.Release.Phase
	promotes := o.switches() && (p == record.Promoting || p == record.Standby)
	if c == nil || c.Deleting || wish == nil && !promotes || c.serving(planned) == 0 {
		return d
	}
	if wish != nil {
		d.Weight, d.Mirror, d.HeaderRoutes = wish.Weight, wish.Mirror, wish.Routes()
	}
	if promotes {
		d.Weight = 100
	}
	if o.switches() && !o.switched() && !o.secondSetReady() {
		d.Weight = 0
	}
	return d
}

// serving is how many of the groups that stay may get requests.
func (w Workload) serving(planned int) int {
	n := 0
	for _, g := range w.Groups {
		if g.mayServe(planned) {
			n++
		}
	}
	return n
}

// Requests is where the requests should go at this moment.
func Requests(o Observation) traffic.Desired {
	if o.Record == nil || o.Record.Release == nil {
		return traffic.Desired{}
	}
	switch {
	case o.routesInPlace():
		return o.requestsInPlace()
	case o.handingOver() && !o.Stable.Deleting:
		return o.requestsHandedOver()
	case RemovesAdded(o):
		return prepared()
	case o.Record.Release.Phase == record.Progressing:
		return o.requested(measureProgress(o).Planned)
	case o.completesSecondSet():
		return o.requested(o.Stable.Replicas)
	case o.Record.Release.Phase == record.Promoting:
		return o.requested(o.capacity())
	case o.awaitsStable():
		return o.requestsUnchanged()
	}
	if len(o.Added) > 0 {
		return prepared()
	}
	return traffic.Desired{}
}

// RemovesAdded says whether what a release added is to go, so that its leaders need do no more than finish their requests.
func RemovesAdded(o Observation) bool {
	if len(o.Added) == 0 {
		return false
	}
	if o.Record == nil || o.Record.Release == nil {
		return true
	}
	r, c := o.Record.Release, o.canary()
	switch {
	case o.completesSecondSet():
		return c == nil || c.Deleting
	case r.Phase == record.Promoting, r.Phase == record.RollingBack, r.Phase == record.HandingOver:
		return false
	case r.Phase == record.Progressing:
		// The next template is there, or is on its way; or somebody deleted the canary.
		return c == nil || c.Deleting || (o.Stable.Revision != "" && o.Stable.Revision != r.UpdateRevision)
	default:
		return true
	}
}

// drainsStable says whether the user's workload is about to be rolled while all requests go to the canary.
func (o Observation) drainsStable() bool {
	if o.release() == nil || o.Record.Release.Phase != record.Promoting && o.Record.Release.Phase != record.Standby {
		return false
	}
	return record.SameRolling(o.Stable.Rolling, record.Hold()) && o.requested(o.capacity()).Weight == 100
}

// drainStable waits until the leaders of the user's workload get no requests and have finished those that they have, before
// LWS rolls them. Nil: that is so; or they go on getting requests, as the host wants it.
func drainStable(o Observation, v traffic.View) *Decision {
	switch {
	case o.Traffic == nil || v.Stage == traffic.Blocked || !o.drainsStable():
		return nil
	case v.Stage < traffic.Acknowledged:
		return awaitTraffic(v, pb.State_STATE_PROMOTING)
	}
	return drained(o, pb.State_STATE_PROMOTING)
}

// DrainingGroups are the groups that go next, once no more requests come to their leaders: they need do no more than finish those
// that they have.
func DrainingGroups(o Observation) []Group {
	switch {
	case o.Traffic == nil:
		return nil
	case o.routesInPlace():
		return o.drainingInPlace()
	}
	if o.drainsStable() {
		if o.Traffic.Look(o.requested(o.capacity())).Stage < traffic.Acknowledged {
			return nil
		}
		return o.Stable.from(0)
	}
	if o.handingOver() {
		if o.stableDrained() || !withdrawn(o.Traffic.Look(o.requestsHandedOver())) {
			return nil
		}
		return o.Stable.from(0)
	}
	if RemovesAdded(o) {
		if !withdrawn(o.Traffic.Look(prepared())) {
			return nil
		}
		return o.Added[0].from(0)
	}
	c := o.canary()
	if c == nil || o.Record.Release.Phase != record.Progressing && !o.completesSecondSet() {
		return nil
	}
	planned := measureProgress(o).Planned
	if v := o.Traffic.Look(o.requested(planned)); planned >= c.Replicas || !follows(v) || c.reached(v, planned) {
		return nil
	}
	return c.from(planned)
}

// from are the groups that exist from an index on.
func (w Workload) from(index int) []Group {
	var out []Group
	for _, g := range w.Groups {
		if g.Index >= index && g.Revision != "" {
			out = append(out, g)
		}
	}
	return out
}

// reached says whether requests may still come to leaders from an index on.
func (w Workload) reached(v traffic.View, index int) bool {
	return slices.ContainsFunc(w.from(index), func(g Group) bool { return slices.Contains(v.CanaryPods, g.Leader) })
}

// capacity is how many groups the canary is asked to have.
func (o Observation) capacity() int {
	if c := o.canary(); c != nil {
		return c.Replicas
	}
	return 0
}

// mayServe says whether requests may go to a canary group's leader: the group is whole, and it stays.
func (g Group) mayServe(planned int) bool { return g.Ready && g.Index < planned }

// steer returns the write that takes the requests nearer to where they should go, nil if none is due, and how they
// stand. Without a traffic policy they stand well.
func steer(o Observation, want traffic.Desired, state pb.State) (traffic.View, *Decision) {
	if o.Traffic == nil {
		return traffic.View{Facts: traffic.Facts{Prepared: true}, Fenced: true, Withdrawn: true, Stage: traffic.Verified}, nil
	}
	v := o.Traffic.Look(want)
	if v.Stage != traffic.Drifted {
		return v, nil
	}
	return v, &Decision{
		Action: SetTraffic{Desired: want, Why: v.Next}, State: state, Reason: v.Reason,
		Message: "requests are being routed: " + v.Message,
	}
}

// follows says whether requests go where they should, as far as routes and gateways can tell. A stable workload that has
// no ready leader does not keep the canary from getting its share: that release may be what mends it.
func follows(v traffic.View) bool {
	return v.Stage == traffic.Verified || v.Stage == traffic.Acknowledged && v.Reason == traffic.ReasonNoStableEndpoints
}

// fenced says whether canary leaders may become ready without getting requests through the stable Service.
func fenced(v traffic.View) bool {
	return v.Fenced && v.Stage != traffic.Blocked && v.Reason != traffic.ReasonFenceNotInForce
}

func awaitTraffic(v traffic.View, state pb.State) *Decision {
	return &Decision{State: state, Reason: v.Reason, Message: v.Message}
}

// withdraw takes all requests from the canary, and lets it finish those that it has: before any of its capacity goes.
// Nil: that is so.
func withdraw(o Observation, state pb.State) *Decision {
	v, d := steer(o, prepared(), state)
	switch {
	case servesAlone(o, v):
		return &Decision{
			State: state, Reason: traffic.ReasonNoStableEndpoints,
			Message: fmt.Sprintf("%d %% of the requests stay with the canary until the stable Service has a ready leader of %s", v.Weight, o.Stable.Name),
		}
	case d != nil:
		return d
	case !v.Withdrawn:
		return awaitTraffic(v, state)
	}
	return drained(o, state)
}

// drained waits for the requests of leaders that get no more. Nil: they are done.
func drained(o Observation, state pb.State) *Decision {
	if o.Drain == nil || o.Drain.Done {
		return nil
	}
	return &Decision{State: state, Reason: ReasonDraining, Message: o.Drain.Message, Recheck: o.Drain.Recheck}
}

// servesAlone says whether requests are better off with the canary: the stable Service has nobody to send them to, and
// the canary has.
func servesAlone(o Observation, v traffic.View) bool {
	return o.Stable.Replicas > 0 && v.Weight > 0 && v.StableEndpoints == 0 && v.CanaryEndpoints > 0 && v.Stage != traffic.Blocked
}

// restoreTraffic leaves nothing of the release on the user's Services and routes. Nil: that is so.
func restoreTraffic(o Observation, state pb.State) *Decision {
	v, d := steer(o, traffic.Desired{}, state)
	switch {
	case d != nil:
		return d
	case v.Reason == traffic.ReasonServiceNotOpen:
		d = awaitTraffic(v, state)
		d.Recheck = time.Second // without a record nobody knows whose endpoints these are
		return d
	case v.Stage <= traffic.Blocked:
		return awaitTraffic(v, state)
	}
	if d = markLeaders(o, o.Stable, 0, true, state); d != nil {
		d.Message = "requests are as before; the marks on leaders go"
	}
	return d
}

// withdrawn reports whether no request reaches the update revision by a share, as far as routes and gateways tell.
func withdrawn(v traffic.View) bool { return v.Withdrawn && v.Weight == 0 }

// markLeaders keeps requests from the leaders of groups that are not whole, although those leaders may be ready. settled
// says that the routes are as they should be, so that a group which is about to go may lose its mark.
func markLeaders(o Observation, c Workload, planned int, settled bool, state pb.State) *Decision {
	if o.Traffic == nil {
		return nil
	}
	for _, g := range c.Groups {
		serves := g.mayServe(planned) && (c.Name != o.Stable.Name || g.at(o.Record.Release.UpdateRevision))
		if g.Serving == serves || g.Revision == "" || (g.Serving && g.Ready && !settled) {
			continue
		}
		m := MarkLeader{Name: c.Name, Leader: g.Leader, Serves: serves}
		return &Decision{Action: m, State: state, Reason: ReasonMarking, Message: m.String()}
	}
	return nil
}

// routeCanary keeps the requests where the host wants them while there is a canary that serves: the routes, then the
// leaders that may get some. It returns how the requests stand, and a decision if there is something to write.
func routeCanary(o Observation, planned int, state pb.State) (traffic.View, *Decision) {
	v, d := steer(o, o.requested(planned), state)
	if d != nil {
		return v, d
	}
	if c := o.canary(); c != nil && !c.Deleting {
		return v, markLeaders(o, *c, planned, follows(v), state)
	}
	return v, nil
}

// share is the percentage of requests that go to the update revision: what the routes say, or else what follows from
// group counts.
func (s *Progress) share(o Observation) {
	if o.Traffic == nil || o.Record == nil || o.Record.Release == nil || o.unfenced() {
		return
	}
	switch o.Record.Release.Phase {
	case record.Promoted, record.Nothing:
		return // both sides run the update revision
	case record.HandingOver:
		s.Weight, s.Routed = 100, true // by whichever Service
		return
	default:
	}
	if !o.trafficUnread() {
		s.Weight, s.Routed = o.Traffic.Facts().Weight, true
	}
}
