// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// In place the two sides are groups of one workload. Requests are split between them while a batch leaves stable groups.
// Before the last of these may go, the split ends: the stable Service is opened to the leaders of both revisions, then the
// share goes, and from then on requests follow the groups. That it has ended is recorded first. What differs from the
// requests of a canary is here.

// opened is where requests go once the split has ended.
func opened() traffic.Desired { return traffic.Desired{Prepared: true, Open: true} }

// splits says whether the release routes requests between groups of the workload itself.
func (o Observation) splits() bool { return o.Traffic != nil && o.inPlace() }

// wide says whether the batch leaves no stable group.
func (o Observation) wide() bool {
	s := Progress{}
	s.planned(o)
	return s.Planned > 0 && s.Planned >= o.Stable.Replicas
}

// open says whether the stable Service leads to the leaders of both revisions. Once it was recorded that may change only
// when every group is at the stable revision: to be pinned to a few of them would leave the others without requests.
func (o Observation) open() bool {
	r := o.release()
	return o.splits() && r.Open && (r.Phase != record.Progressing || o.wide() || len(o.strayed()) > 0)
}

// allUpdated reports whether every group is at the update revision.
func (o Observation) allUpdated() bool {
	return !slices.ContainsFunc(o.Stable.above(0), func(g Group) bool { return !g.at(o.Record.Release.UpdateRevision) })
}

// WarmsUp says whether a group of the user's own workload gets requests by a mark only, so that it may be warmed up before.
func WarmsUp(o Observation, g Group) bool {
	return o.splits() && !o.open() && o.Record.Release.Phase == record.Progressing && g.at(o.Record.Release.UpdateRevision)
}

// Stays says whether a group is, in place, one that the stable Service may lead to while it is pinned.
func Stays(o Observation, g Group) bool {
	return g.Revision == "" || g.at(o.Record.Release.StableRevision)
}

// wantedInPlace is where the host wants the requests to go, as far as there are groups to send them to.
func (o Observation) wantedInPlace() traffic.Desired {
	d, wish := prepared(), o.Record.Release.Traffic
	serves := func(g Group) bool { return g.Ready && g.at(o.Record.Release.UpdateRevision) }
	switch {
	case o.open():
		return opened()
	case wish != nil && slices.ContainsFunc(o.Stable.above(0), serves):
		d.Weight, d.Mirror, d.HeaderRoutes = wish.Weight, wish.Mirror, wish.Routes()
	}
	return d
}

// keptInPlace is where requests go while none goes to the update revision by a share.
func (o Observation) keptInPlace() traffic.Desired {
	if o.open() {
		return opened()
	}
	return prepared()
}

// requestsInPlace is where the requests should go at this moment.
func (o Observation) requestsInPlace() traffic.Desired {
	r := o.Record.Release
	switch {
	case r.UpdateRevision == "":
		return traffic.Desired{}
	case r.Phase == record.Promoting:
		return opened()
	case r.Phase == record.Progressing && r.UpdateRevision == o.Stable.Revision && len(o.abandoned()) == 0:
		return o.wantedInPlace()
	case r.Phase == record.Progressing, r.Phase == record.Returning:
		return o.keptInPlace()
	}
	return traffic.Desired{}
}

// declare records whether the split has ended, before that has an effect.
func declare(o Observation, open bool, state pb.State) *Decision {
	why := "split requests by weight again, since every group is at the stable revision"
	if open {
		why = "end the split of requests, which follow the groups from now on"
	}
	next, r := *o.Record, *o.Record.Release
	r.Open, next.Release = open, &r
	a := SetStable{Record: next, Rolling: hold(), Why: why}
	if r.Phase != record.Returning {
		a.Rolling = ptr.To(o.unmoved())
	}
	return &Decision{Action: a, State: state, Reason: ReasonOpening, Message: why}
}

// unmoved is the configuration of the batch as it is, as far as LWS takes it again: a scale-down may have made both of its
// numbers round to 0. It is the hold if somebody changed it.
func (o Observation) unmoved() rolling {
	same := o.Record.LastSet()
	if !record.SameRolling(same, o.Stable.Rolling) {
		return record.Hold()
	}
	if o.Stable.Replicas > 0 && scaled(same.MaxUnavailable, o.Stable.Replicas, false) == 0 {
		same.MaxUnavailable = intstr.FromInt32(1) // there is no surge in place
	}
	return same
}

// routeInPlace keeps the requests where the host wants them while batches run: the routes, then the leaders that may get
// some. It returns how the requests stand, and a decision if there is something to write.
func routeInPlace(o Observation, state pb.State) (traffic.View, *Decision) {
	switch {
	case !o.splits():
		return steer(o, prepared(), state)
	case o.wide() && !o.Record.Release.Open:
		return traffic.View{}, declare(o, true, state)
	case o.Record.Release.Open && !o.open():
		return traffic.View{}, declare(o, false, state)
	}
	v, d := steer(o, o.wantedInPlace(), state)
	if d == nil && !o.open() {
		d = markLeaders(o, o.Stable, o.Stable.Replicas, follows(v), state)
	}
	return v, d
}

// openInPlace ends the split of requests. Nil: that is so, and every group may be replaced.
func openInPlace(o Observation, state pb.State) *Decision {
	if !o.splits() {
		return nil
	}
	if !o.Record.Release.Open {
		return declare(o, true, state)
	}
	v, d := steer(o, opened(), state)
	if d == nil && !unsplit(v) {
		d = awaitTraffic(v, state)
	}
	return d
}

// unsplit says whether requests are not split any more, as far as routes and gateways can tell.
func unsplit(v traffic.View) bool { return withdrawn(v) && !v.Fenced }

// withdrawInPlace takes all requests that come by a share from the updated groups, and lets them finish those that they
// have: before any of them is restarted. Nil: that is so; or the stable Service leads to them as to any other group.
func withdrawInPlace(o Observation, state pb.State) *Decision {
	if !o.splits() || o.Record.Release.UpdateRevision == "" {
		return nil
	}
	strays := o.strayed()
	v, d := steer(o, o.keptInPlace(), state)
	alone := v.StableEndpoints == 0 && slices.ContainsFunc(strays, func(g Group) bool { return g.Ready })
	switch {
	case alone && !o.open() && v.Stage != traffic.Unread:
		return declare(o, true, state) // nobody else serves
	case d != nil:
		return d
	case !v.Withdrawn:
		return awaitTraffic(v, state)
	case o.open() || len(strays) == 0:
		return nil
	}
	return drained(o, state)
}

// leavingInPlace are the groups that are restarted next, once no request comes to them by a share.
func (o Observation) leavingInPlace() []Group {
	r := o.Record.Release
	groups := o.strayed()
	if r.Phase == record.Progressing && o.Stable.Revision == r.UpdateRevision {
		groups = o.abandoned()
	}
	batches := r.Phase == record.Progressing || r.Phase == record.Returning
	if !batches || o.open() || o.Stable.Revision == "" || len(groups) == 0 {
		return nil
	}
	if !withdrawn(o.Traffic.Look(prepared())) {
		return nil
	}
	return groups
}

// lowers says whether LWS may update more groups under a configuration than under the one in force.
func (o Observation) lowers(next rolling) bool {
	return ptr.Deref(next.Partition, 0) < ptr.Deref(o.Stable.Rolling.Partition, 0)
}

// allows says what has to be waited for before LWS updates groups: a fence around the stable ones, or the end of the split.
func (o Observation) allows(v traffic.View) *Decision {
	if !o.splits() || fenced(v) && !o.open() || unsplit(v) && o.open() {
		return nil
	}
	return awaitTraffic(v, pb.State_STATE_UPGRADING)
}

// returnPace is the configuration under which LWS takes groups back to the stable template: not before requests have left
// those that go.
func (o Observation) returnPace(saved rolling) rolling {
	if withdrawInPlace(o, pb.State_STATE_ROLLING_BACK) != nil {
		return record.Hold()
	}
	return o.pace(saved)
}

// checkSplit: no group goes while a share of the requests comes to it, nor one that nobody else could serve for.
func checkSplit(o Observation, a SetStable) error {
	r := a.Record.Release
	if !o.splits() || r == nil || a.Rolling == nil || !o.lowers(*a.Rolling) {
		return nil
	}
	v := o.Traffic.Look(prepared())
	switch back, all := r.Phase == record.Returning, ptr.Deref(a.Rolling.Partition, 0) == 0; {
	case (back || all) && v.Weight > 0:
		return fmt.Errorf("groups go while they get %d %% of the requests", v.Weight)
	case !back && all && v.Fenced:
		return errors.New("the last stable group goes while the stable Service leads to no other")
	case !back && !all && !r.Open && !v.Fenced:
		return errors.New("groups are updated before the stable Service is fenced")
	}
	return nil
}
