// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The TrafficRouter service. What a host asks for is recorded on the workload, and the loop takes the requests there and
// keeps them there; so it outlives the call as a batch does.

// SetWeight asks for the canary's share.
func (d *Driver) SetWeight(ctx context.Context, req *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	bad := append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)
	if err := drivererr.Invalid(append(bad, checkPercent("weight", req.GetWeight())...)...); err != nil {
		return nil, err
	}
	weight := int(req.GetWeight())
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		return wish(s, req, fmt.Sprintf("send %d %% of the requests to the canary", weight),
			func(t *release.Traffic) { t.Weight = weight })
	})
	if err != nil {
		return nil, err
	}
	v, err := d.awaitWeight(ctx, key, asked{req.GetReleaseId(), weight, req.GetWait()})
	if err != nil {
		return nil, err
	}
	return &pb.SetWeightResponse{Action: action, Verified: v.verified, Reason: v.reason, Message: v.message}, nil
}

// SetHeaderRoute sends what matches to the canary.
func (d *Driver) SetHeaderRoute(ctx context.Context, req *pb.SetHeaderRouteRequest) (*pb.SetHeaderRouteResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	route, bad := traffic.ParseHeaderRoute(req.GetName(), req.GetMatches())
	if err := drivererr.Invalid(append(checkID(req.GetReleaseId()), bad...)...); err != nil {
		return nil, err
	}
	why := fmt.Sprintf("send what matches header route %s to the canary", route.Name)
	if len(route.Matches) == 0 {
		why = "remove header route " + route.Name
	}
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		return wish(s, req, why, func(t *release.Traffic) { t.SetHeaderRoute(route) })
	})
	if err != nil {
		return nil, err
	}
	return &pb.SetHeaderRouteResponse{Action: action}, nil
}

// SetMirror copies requests to the canary.
func (d *Driver) SetMirror(ctx context.Context, req *pb.SetMirrorRequest) (*pb.SetMirrorResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := drivererr.Invalid(append(checkID(req.GetReleaseId()), checkPercent("percentage", req.GetPercentage())...)...); err != nil {
		return nil, err
	}
	mirror := int(req.GetPercentage())
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		return wish(s, req, fmt.Sprintf("copy %d %% of the requests to the canary", mirror),
			func(t *release.Traffic) { t.Mirror = mirror })
	})
	if err != nil {
		return nil, err
	}
	return &pb.SetMirrorResponse{Action: action}, nil
}

// Reset returns all requests to the stable leaders.
func (d *Driver) Reset(ctx context.Context, req *pb.ResetRequest) (*pb.ResetResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := drivererr.Invalid(append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)...); err != nil {
		return nil, err
	}
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		return wish(s, anyRevision{req}, "send all requests to the stable leaders", func(t *release.Traffic) { *t = release.Traffic{} })
	})
	if err != nil {
		return nil, err
	}
	v, err := d.awaitWeight(ctx, key, asked{req.GetReleaseId(), 0, req.GetWait()})
	if err != nil {
		return nil, err
	}
	return &pb.ResetResponse{Action: action, Verified: v.verified}, nil
}

// VerifyWeight says whether the data plane has taken a weight, from the caches alone.
func (d *Driver) VerifyWeight(_ context.Context, req *pb.VerifyWeightRequest) (*pb.VerifyWeightResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := drivererr.Invalid(append(checkID(req.GetReleaseId()), checkPercent("weight", req.GetWeight())...)...); err != nil {
		return nil, err
	}
	s, err := d.observer.observe(key)
	if err != nil {
		return nil, err
	}
	if _, err := routed(s, req.GetReleaseId()); err != nil {
		return nil, err
	}
	v := verify(s, int(req.GetWeight()))
	return &pb.VerifyWeightResponse{Verified: v.verified, Weight: int32of(v.weight), Reason: v.reason, Message: v.message}, nil
}

func checkPercent(field string, n int32) []drivererr.FieldViolation {
	if n < 0 || n > 100 {
		return []drivererr.FieldViolation{{Field: field, Description: fmt.Sprintf("%d is not 0 to 100", n)}}
	}
	return nil
}

// routed returns the release that a request names, if it routes requests.
func routed(s *seen, id string) (*release.Release, error) {
	r, err := current(s, id)
	if err != nil {
		return nil, err
	}
	if s.Policy.Traffic == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"release %q of LeaderWorkerSet %s has no policy.traffic, so nothing splits its requests and shares follow group counts: "+
				"begin a release whose policy names a Service and routes", r.ID, s.key)
	}
	return r, nil
}

// wished is a request about where the requests go.
type wished interface {
	GetReleaseId() string
	// GetUpdateRevision is the one that the host means. Empty: whatever the release is at.
	GetUpdateRevision() string
}

// anyRevision is a request to return all requests, which no template makes wrong.
type anyRevision struct{ *pb.ResetRequest }

func (anyRevision) GetUpdateRevision() string { return "" }

// wish records where the host wants the requests to go.
func wish(s *seen, req wished, why string, change func(*release.Traffic)) (plan.Action, error) {
	r, err := routed(s, req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	if err := checkRevision(s, r, req.GetUpdateRevision()); err != nil {
		return nil, err
	}
	next := r.Traffic.With(change)
	if next != nil {
		d := traffic.Desired{Weight: next.Weight, Mirror: next.Mirror, HeaderRoutes: next.Routes()}
		if err := traffic.Supported(*s.setup, d); err != nil {
			return nil, err
		}
	}
	over := !serves(r.Phase)
	switch {
	case reflect.DeepEqual(next, r.Traffic), over && next == nil: // a release that is over gets no requests
		return nil, nil //nolint:nilnil // no action, no error
	case over:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s is %s, so its canary gets no requests any more", r.ID, s.key, phaseText(r.Phase))
	}
	record, with := *s.Record, *r
	with.Traffic, record.Release = next, &with
	return plan.SetStable{Record: record, Rolling: s.Stable.Rolling, Why: why}, nil
}

// serves says whether the canary of a release in this phase may get requests by a share.
func serves(p release.Phase) bool {
	return p == release.Progressing || p == release.Promoting || p == release.Standby
}

// asked is a weight that a host waits for.
type asked struct {
	id     string
	weight int
	wait   *durationpb.Duration
}

// awaitWeight returns once a weight is in force or can't be, at the latest after wait. The release may end, and another
// may begin, while it waits.
func (d *Driver) awaitWeight(ctx context.Context, key types.NamespacedName, a asked) (v verdict, err error) {
	err = d.until(ctx, key, a.wait, func() (bool, error) {
		s, err := d.observer.observe(key)
		if err != nil {
			return false, err
		}
		if _, err := routed(s, a.id); err != nil {
			return false, err
		}
		v = verify(s, a.weight)
		return v.verified || v.blocked, nil
	})
	return v, err
}

// verdict says whether a weight is in force.
type verdict struct {
	verified, blocked bool
	weight            int
	reason, message   string
}

// verify compares a weight with what is desired now, and that with the data plane.
func verify(s *seen, weight int) verdict {
	d := plan.Requests(s.Observation)
	view := s.Traffic.Look(d)
	v := verdict{verified: view.Verified && d.Weight == weight, weight: view.Weight, reason: view.Reason, message: view.Message}
	v.blocked = view.Err != nil
	r, last := s.Record.Release, 0
	if follows, all := plan.FollowsGroups(s.Observation); follows && (r.Phase == release.Progressing || r.Phase == release.Promoting) {
		return v.following(s, weight, all)
	}
	if r.Traffic != nil {
		last = r.Traffic.Weight
	}
	switch {
	case v.verified || view.Reason != "":
	case !serves(r.Phase):
		v.reason = "ReleaseFinalized"
		v.message = fmt.Sprintf("the release is %s, so its canary gets no requests any more", phaseText(r.Phase))
	case last != weight:
		v.reason, v.message = "OtherWeight", fmt.Sprintf("the weight that was asked for last is %d", last)
	case plan.Retires(s.Observation):
		v.reason, v.message = plan.ReasonNewRevision, "the canary is going, so all requests go to the stable leaders"
	case plan.AwaitsDouble(s.Observation):
		v.reason = plan.ReasonGroupsNotReady
		v.message = "requests move once every group that the workload has is there a second time, and ready"
	default:
		v.reason, v.message = traffic.ReasonNoCanaryEndpoints, "no group of the canary is whole, so all requests go to the stable leaders"
	}
	return v
}

// following is the verdict where the share follows the groups: the last stable ones are replaced, or may be.
func (v verdict) following(s *seen, weight int, all bool) verdict {
	share := plan.Plan(s.Observation).Standing.Weight
	unsettled := v.reason != ""
	v.verified, v.weight = weight == 100 && all && !unsettled, share
	switch {
	case v.verified || weight == 100 && all:
	case weight == 100:
		v.reason, v.message = plan.ReasonGroupsNotReady, "the last stable groups are being replaced, and requests follow the groups"
	default:
		v.blocked, v.reason = true, ReasonFollowsGroups
		v.message = fmt.Sprintf("the batch leaves no stable group, so requests follow the groups: %d %% go to the update revision, and all of them will; "+
			"no other weight can be had", share)
	}
	return v
}

// ReasonFollowsGroups is why a weight can't be had: every group of the workload is to be updated in place.
const ReasonFollowsGroups = "ShareFollowsGroups"
