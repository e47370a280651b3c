// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"reflect"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Route requests a change of a release's routing. Exactly one of the changes is set.
type Route struct {
	ReleaseID string
	// Revision is the update revision that the caller means. Empty means any.
	Revision string
	// Weight is the canary's share, and Mirror the share copied to it, in percent.
	Weight, Mirror *int
	// HeaderRoute sends the requests that match it to the canary. Without matches, it is removed.
	HeaderRoute *traffic.HeaderRoute
	// Reset returns all requests to the stable leaders.
	Reset bool
}

func (t Route) change(w *record.Traffic) {
	switch {
	case t.Weight != nil:
		w.Weight = *t.Weight
	case t.Mirror != nil:
		w.Mirror = *t.Mirror
	case t.HeaderRoute != nil:
		w.SetHeaderRoute(*t.HeaderRoute)
	case t.Reset:
		*w = record.Traffic{}
	}
}

func (t Route) why() string {
	switch {
	case t.Weight != nil:
		return fmt.Sprintf("send %d %% of the requests to the canary", *t.Weight)
	case t.Mirror != nil:
		return fmt.Sprintf("copy %d %% of the requests to the canary", *t.Mirror)
	case t.HeaderRoute != nil && len(t.HeaderRoute.Matches) == 0:
		return "remove header route " + t.HeaderRoute.Name
	case t.HeaderRoute != nil:
		return fmt.Sprintf("send what matches header route %s to the canary", t.HeaderRoute.Name)
	}
	return "send all requests to the stable leaders"
}

// decide records the requested routing; the loop applies it.
func (t Route) decide(o Observation) (Decision, error) {
	r, err := RoutedRelease(o, t.ReleaseID)
	if err != nil {
		return Decision{}, err
	}
	if err := checkRevision(o, r, t.Revision); err != nil {
		return Decision{}, err
	}
	next := r.Traffic.With(t.change)
	if t.Weight != nil && next != nil {
		next.Groups = o.requestedFor(r.Traffic, *t.Weight)
	}
	if next != nil {
		if excess := traffic.Excess(next.HeaderRoutes); excess != "" {
			return Decision{}, drivererr.Invalid(drivererr.FieldViolation{Field: "matches", Description: excess})
		}
		d := traffic.Desired{Weight: next.Weight, Mirror: next.Mirror, HeaderRoutes: next.HeaderRoutes}
		if err := traffic.Supported(*o.Policy.Traffic, d); err != nil {
			return Decision{}, err
		}
	}
	// A weight of 0 is always granted: hosts reset routes when they clean up.
	over := !takesShare(r.Phase)
	switch {
	case reflect.DeepEqual(next, r.Traffic), over && next == nil: // a release that is over gets no requests
		return Decision{}, nil
	case over:
		return Decision{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is %s, so its canary no longer receives requests", r.ID, o.objectName(), phaseText(r.Phase))
	}
	if o.Traffic != nil && t.HeaderRoute != nil && len(t.HeaderRoute.Matches) > 0 {
		if err := o.Traffic.CheckHeaderRoutes(next.HeaderRoutes); err != nil {
			return Decision{}, err
		}
	}
	return Decision{Action: SetStable{Record: amendRelease(o, func(r *record.Release) { r.Traffic = next }), Why: t.why()}}, nil
}

// requestedFor returns the number of groups that a weight is requested for. A host may repeat a weight at any time: the
// next batch counts once it is complete.
func (o Observation) requestedFor(had *record.Traffic, weight int) int {
	s := measureProgress(o)
	switch {
	case weight == 0:
		return 0
	case had.RequestedWeight() == weight && s.available < s.Planned-s.Threshold:
		return had.Groups
	}
	return s.Planned
}

// RoutedRelease returns the release that a request names, if it routes requests. The error has an ErrorReason.
func RoutedRelease(o Observation, id string) (*record.Release, error) {
	r, err := CurrentRelease(o, id)
	if err != nil {
		return nil, err
	}
	if o.Policy.Traffic == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"release %q of %s has no policy.traffic, so nothing splits its requests and shares follow group counts: "+
				"begin a release whose policy names a Service and routes", r.ID, o.objectName())
	}
	return r, nil
}

// takesShare reports whether the canary of a release in this phase may receive a share of the requests.
func takesShare(p record.Phase) bool {
	return p == record.Progressing || p == record.Promoting || p == record.Standby
}

// Verification is the answer to whether a weight is in force.
type Verification struct {
	// Verified: the weight is in force. Blocked: it can't be, and waiting does not help.
	Verified, Blocked bool
	// Weight is the weight in force.
	Weight int
	// Reason and Message explain what is missing. Empty if Verified.
	Reason, Message string
}

// ReasonFollowsGroups is why a weight is impossible: every group of the workload is to be updated in place.
const ReasonFollowsGroups = "ShareFollowsGroups"

// VerifyWeight compares a weight with the desired one, and that with the data plane. The release must route requests.
func VerifyWeight(o Observation, weight int) Verification {
	d := Requests(o)
	view := o.Traffic.Look(d)
	v := Verification{
		Verified: view.Stage == traffic.Verified && d.Weight == weight, Blocked: view.Stage == traffic.Blocked,
		Weight: view.Weight, Reason: view.Reason, Message: view.Message,
	}
	r := o.Record.Release
	// No weight can be set any more, so a host that asks for less than all would wait for ever.
	if o.splitEnded() && (r.Phase == record.Progressing || r.Phase == record.Promoting) {
		return v.followGroups(o, weight)
	}
	last := r.Traffic.RequestedWeight()
	if s := o.currentShare(); s.isCapped() && !v.Blocked && !o.awaitsSecondSet() {
		v.Verified = false
		switch {
		case s.requested != weight:
			v.Reason, v.Message = "OtherWeight", fmt.Sprintf("the weight requested last is %d", s.requested)
		default:
			v.Reason, v.Message = s.capReason(), s.capMessage(o)
		}
		return v
	}
	switch {
	case v.Verified || view.Reason != "":
	case !takesShare(r.Phase):
		v.Reason = "ReleaseFinalized"
		v.Message = fmt.Sprintf("the release is %s, so its canary no longer receives requests", phaseText(r.Phase))
	case last != weight:
		v.Reason, v.Message = "OtherWeight", fmt.Sprintf("the weight requested last is %d", last)
	case RemovesAdded(o):
		v.Reason, v.Message = ReasonNewRevision, "the canary is being deleted, so all requests go to the stable leaders"
	case o.awaitsSecondSet():
		v.Reason = ReasonGroupsNotReady
		v.Message = "requests move once the second set is complete and ready"
	default:
		v.Reason, v.Message = traffic.ReasonNoCanaryEndpoints, "no group of the canary is ready, so all requests go to the stable leaders"
	}
	return v
}

// followGroups is the answer where the share follows the groups: the last stable groups are being replaced, or may be.
func (v Verification) followGroups(o Observation, weight int) Verification {
	share, all, settled := measureProgress(o).Weight, o.allUpdated(), v.Reason == ""
	v.Verified, v.Weight = weight == 100 && all && settled, share
	switch {
	case v.Verified || weight == 100 && all:
	case weight == 100:
		v.Reason, v.Message = ReasonGroupsNotReady, "the last stable groups are being replaced, and requests follow the groups"
	default:
		v.Blocked, v.Reason = true, ReasonFollowsGroups
		v.Message = fmt.Sprintf("the batch leaves no stable group, so requests follow the groups: %d %% go to the update revision, and finally all of them; "+
			"no other weight is possible", share)
	}
	return v
}
