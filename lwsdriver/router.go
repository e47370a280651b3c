// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The TrafficRouter service. A requested weight is recorded on the workload, and the loop writes the routes and keeps them; so
// it outlives the call, as a batch does.

// SetWeight sets the canary's share of requests.
func (d *Driver) SetWeight(ctx context.Context, req *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkDuration("wait", req.GetWait()), checkPercent("weight", req.GetWeight()))
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, weightOf(req))
	if err != nil {
		return nil, err
	}
	v, err := d.awaitWeight(ctx, key, req.GetReleaseId(), int(req.GetWeight()), req.GetWait())
	if err != nil {
		return nil, err
	}
	return &pb.SetWeightResponse{Action: m.action, Verified: v.Verified, Reason: v.Reason, Message: v.Message}, nil
}

// SetHeaderRoute routes matching requests to the canary.
func (d *Driver) SetHeaderRoute(ctx context.Context, req *pb.SetHeaderRouteRequest) (*pb.SetHeaderRouteResponse, error) {
	_, bad := traffic.ParseHeaderRoute(req.GetName(), req.GetMatches())
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), bad)
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, headerRouteOf(req))
	if err != nil {
		return nil, err
	}
	return &pb.SetHeaderRouteResponse{Action: m.action}, nil
}

// SetMirror mirrors requests to the canary.
func (d *Driver) SetMirror(ctx context.Context, req *pb.SetMirrorRequest) (*pb.SetMirrorResponse, error) {
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkPercent("percentage", req.GetPercentage()))
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, mirrorOf(req))
	if err != nil {
		return nil, err
	}
	return &pb.SetMirrorResponse{Action: m.action}, nil
}

// Reset returns all requests to the stable leaders.
func (d *Driver) Reset(ctx context.Context, req *pb.ResetRequest) (*pb.ResetResponse, error) {
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkDuration("wait", req.GetWait()))
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, resetOf(req))
	if err != nil {
		return nil, err
	}
	v, err := d.awaitWeight(ctx, key, req.GetReleaseId(), 0, req.GetWait())
	if err != nil {
		return nil, err
	}
	return &pb.ResetResponse{Action: m.action, Verified: v.Verified}, nil
}

// VerifyWeight returns whether the data plane has acknowledged a weight, from the caches alone.
func (d *Driver) VerifyWeight(_ context.Context, req *pb.VerifyWeightRequest) (*pb.VerifyWeightResponse, error) {
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkPercent("weight", req.GetWeight()))
	if err != nil {
		return nil, err
	}
	v, err := d.verifyWeight(key, req.GetReleaseId(), int(req.GetWeight()))
	if err != nil {
		return nil, err
	}
	return &pb.VerifyWeightResponse{Verified: v.Verified, Weight: toInt32(v.Weight), Reason: v.Reason, Message: v.Message}, nil
}

func checkPercent(field string, n int32) []drivererr.FieldViolation {
	if n < 0 || n > 100 {
		return fieldViolation(field, "%d is not 0 to 100", n)
	}
	return nil
}

// awaitWeight returns once a weight is verified or blocked, at the latest after wait. The release may end, and another may
// begin, meanwhile.
func (d *Driver) awaitWeight(
	ctx context.Context, key types.NamespacedName, id string, weight int, wait *durationpb.Duration,
) (v plan.Verification, err error) {
	err = d.pollUntil(ctx, key, wait, func() (_ bool, err error) {
		v, err = d.verifyWeight(key, id, weight)
		return v.Verified || v.Blocked, err
	})
	return v, err
}

// verifyWeight returns how far a weight is from being in force. Hosts call it on every reconcile, so it neither decides nor waits.
func (d *Driver) verifyWeight(key types.NamespacedName, release string, weight int) (plan.Verification, error) {
	s, err := d.engine.Observe(key)
	if err != nil {
		return plan.Verification{}, err
	}
	if _, err := plan.RoutedRelease(s.Observation, release); err != nil {
		return plan.Verification{}, err
	}
	return plan.VerifyWeight(s.Observation, weight), nil
}
