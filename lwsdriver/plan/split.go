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

// In place, stable and updated groups belong to one workload. Requests are split between them while a batch leaves stable
// groups. Before the last of these may be replaced, the split ends: the stable Service selects the leaders of both revisions,
// the routes lose the share, and requests follow the groups. The record says so first, so that a driver which starts in
// between goes on instead of fencing the few groups that are left.

// splitState is where a release in place is with the split of its requests. What the record says is one half of it, what
// the release needs next the other; [moveSplit] is the only transition.
type splitState string

const (
	// splitNone: no requests are routed in place.
	splitNone splitState = ""
	// splitFenced: the stable Service selects stable leaders only, and a share goes to updated ones.
	splitFenced splitState = "fenced"
	// splitOpening: the split is to end, and the record does not say so yet.
	splitOpening splitState = "opening"
	// splitUnfenced: the stable Service selects the leaders of both revisions, and requests follow the groups.
	splitUnfenced splitState = "unfenced"
	// splitClosing: the batch leaves stable groups again and every group is one, so requests may be split again; the record
	// does not say so yet. To fence the Service earlier would leave the other groups without requests.
	splitClosing splitState = "closing"
)

// split returns the state of the split.
func (o Observation) split() splitState {
	if !o.routesInPlace() {
		return splitNone
	}
	r := o.Record.Release
	progressing := r.Phase == record.Progressing
	switch {
	case !r.Unfenced && (r.Phase == record.Promoting || progressing && o.coversAllGroups()):
		return splitOpening
	case !r.Unfenced:
		return splitFenced
	case progressing && !o.coversAllGroups() && len(o.groupsOffRevision()) == 0:
		return splitClosing
	}
	return splitUnfenced
}

// unfenced reports whether requests follow the groups.
func (o Observation) unfenced() bool { return o.split() == splitUnfenced }

// moveSplit returns the decision that records the next state of the split. Nil: none is due.
func moveSplit(o Observation, state pb.State) *Decision {
	switch o.split() {
	case splitOpening:
		return recordSplit(o, true, state)
	case splitClosing:
		return recordSplit(o, false, state)
	default:
		return nil
	}
}

// recordSplit records whether the split has ended, before that has an effect.
func recordSplit(o Observation, unfenced bool, state pb.State) *Decision {
	why := "split requests by weight again, since every group is at the stable revision"
	if unfenced {
		why = "end the split of requests, which follow the groups from now on"
	}
	next, r := *o.Record, *o.Record.Release
	r.Unfenced, next.Release = unfenced, &r
	a := SetStable{Record: next, Rolling: hold(), Why: why}
	if r.Phase != record.RollingBack {
		a.Rolling = ptr.To(o.unmoved())
	}
	return &Decision{Action: a, State: state, Reason: ReasonOpening, Message: why}
}

// requestsUnfenced is where requests go once the split has ended.
func requestsUnfenced() traffic.Desired { return traffic.Desired{Prepared: true, Unfenced: true} }

// routesInPlace reports whether the release routes requests between groups of the workload itself.
func (o Observation) routesInPlace() bool { return o.Traffic != nil && o.inPlace() }

// coversAllGroups reports whether the batch leaves no stable group.
func (o Observation) coversAllGroups() bool {
	s := Progress{}
	s.planned(o)
	return s.Planned > 0 && s.Planned >= o.Stable.Replicas
}

// allUpdated reports whether every group is at the update revision.
func (o Observation) allUpdated() bool {
	return !slices.ContainsFunc(o.Stable.above(0), func(g Group) bool { return !g.at(o.Record.Release.UpdateRevision) })
}

// WarmsUp says whether a group of the user's own workload gets requests by a mark only, so that it may be warmed up before.
func WarmsUp(o Observation, g Group) bool {
	return o.routesInPlace() && !o.unfenced() && o.Record.Release.Phase == record.Progressing && g.at(o.Record.Release.UpdateRevision)
}

// StaysStable says whether a group is, in place, one that the stable Service may lead to while it is pinned.
func StaysStable(o Observation, g Group) bool {
	return g.Revision == "" || g.at(o.Record.Release.StableRevision)
}

// requestedInPlace is where the host wants the requests to go, as far as there are groups to send them to.
func (o Observation) requestedInPlace() traffic.Desired {
	d, wish := prepared(), o.Record.Release.Traffic
	serves := func(g Group) bool { return g.Ready && g.at(o.Record.Release.UpdateRevision) }
	switch {
	case o.unfenced():
		return requestsUnfenced()
	case wish != nil && slices.ContainsFunc(o.Stable.above(0), serves):
		d.Weight, d.Mirror, d.HeaderRoutes = wish.Weight, wish.Mirror, wish.Routes()
	}
	return d
}

// keptInPlace is where requests go while none goes to the update revision by a share.
func (o Observation) keptInPlace() traffic.Desired {
	if o.unfenced() {
		return requestsUnfenced()
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
		return requestsUnfenced()
	case r.Phase == record.Progressing && r.UpdateRevision == o.Stable.Revision && len(o.abandoned()) == 0:
		return o.requestedInPlace()
	case r.Phase == record.Progressing, r.Phase == record.RollingBack:
		return o.keptInPlace()
	}
	return traffic.Desired{}
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
	if !o.routesInPlace() {
		return steer(o, prepared(), state)
	}
	if d := moveSplit(o, state); d != nil {
		return traffic.View{}, d
	}
	v, d := steer(o, o.requestedInPlace(), state)
	if d == nil && !o.unfenced() {
		d = markLeaders(o, o.Stable, o.Stable.Replicas, follows(v), state)
	}
	return v, d
}

// endSplit ends the split of requests. Nil: that is so, and every group may be replaced.
func endSplit(o Observation, state pb.State) *Decision {
	if !o.routesInPlace() {
		return nil
	}
	if !o.Record.Release.Unfenced {
		return recordSplit(o, true, state)
	}
	v, d := steer(o, requestsUnfenced(), state)
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
	if !o.routesInPlace() || o.Record.Release.UpdateRevision == "" {
		return nil
	}
	strays := o.groupsOffRevision()
	v, d := steer(o, o.keptInPlace(), state)
	alone := v.StableEndpoints == 0 && slices.ContainsFunc(strays, func(g Group) bool { return g.Ready })
	switch {
	case alone && !o.unfenced() && v.Stage != traffic.Unread:
		return recordSplit(o, true, state) // no other group serves
	case d != nil:
		return d
	case !v.Withdrawn:
		return awaitTraffic(v, state)
	case o.unfenced() || len(strays) == 0:
		return nil
	}
	return drained(o, state)
}

// drainingInPlace are the groups that are restarted next, once no request comes to them by a share.
func (o Observation) drainingInPlace() []Group {
	r := o.Record.Release
	groups := o.groupsOffRevision()
	if r.Phase == record.Progressing && o.Stable.Revision == r.UpdateRevision {
		groups = o.abandoned()
	}
	batches := r.Phase == record.Progressing || r.Phase == record.RollingBack
	if !batches || o.unfenced() || o.Stable.Revision == "" || len(groups) == 0 {
		return nil
	}
	if !withdrawn(o.Traffic.Look(prepared())) {
		return nil
	}
	return groups
}

// lowersPartition says whether LWS may update more groups under a configuration than under the one in force.
func (o Observation) lowersPartition(next rolling) bool {
	return ptr.Deref(next.Partition, 0) < ptr.Deref(o.Stable.Rolling.Partition, 0)
}

// awaitSplit says what has to be waited for before LWS updates groups: a fence around the stable ones, or the end of the split.
func (o Observation) awaitSplit(v traffic.View) *Decision {
	if !o.routesInPlace() || fenced(v) && !o.unfenced() || unsplit(v) && o.unfenced() {
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
	if !o.routesInPlace() || r == nil || a.Rolling == nil || !o.lowersPartition(*a.Rolling) {
		return nil
	}
	v := o.Traffic.Look(prepared())
	switch back, all := r.Phase == record.RollingBack, ptr.Deref(a.Rolling.Partition, 0) == 0; {
	case (back || all) && v.Weight > 0:
		return fmt.Errorf("groups go while they get %d %% of the requests", v.Weight)
	case !back && all && v.Fenced:
		return errors.New("the last stable group goes while the stable Service leads to no other")
	case !back && !all && !r.Unfenced && !v.Fenced:
		return errors.New("groups are updated before the stable Service is fenced")
	}
	return nil
}
