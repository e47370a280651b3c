// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// SetWeight sets the canary's share of requests.
func (c *Client) SetWeight(
	ctx context.Context, req *pb.SetWeightRequest, opts ...grpc.CallOption,
) (*pb.SetWeightResponse, error) {
	return rpc[*pb.SetWeightRequest, *pb.SetWeightResponse]{
		name:       "SetWeight",
		capability: pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
		call:       c.router.SetWeight,
		check: func(r *pb.SetWeightResponse) error {
			return errors.Join(checkAction(r.GetAction()), checkVerified(r.GetVerified(), r.GetReason()))
		},
	}.do(ctx, c, req, opts)
}

// SetHeaderRoute routes requests that match to the canary, or removes the route.
func (c *Client) SetHeaderRoute(
	ctx context.Context, req *pb.SetHeaderRouteRequest, opts ...grpc.CallOption,
) (*pb.SetHeaderRouteResponse, error) {
	return rpc[*pb.SetHeaderRouteRequest, *pb.SetHeaderRouteResponse]{
		name:       "SetHeaderRoute",
		capability: pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE,
		call:       c.router.SetHeaderRoute,
		check:      func(r *pb.SetHeaderRouteResponse) error { return checkAction(r.GetAction()) },
	}.do(ctx, c, req, opts)
}

// SetMirror mirrors requests to the canary.
func (c *Client) SetMirror(
	ctx context.Context, req *pb.SetMirrorRequest, opts ...grpc.CallOption,
) (*pb.SetMirrorResponse, error) {
	return rpc[*pb.SetMirrorRequest, *pb.SetMirrorResponse]{
		name:       "SetMirror",
		capability: pb.Capability_CAPABILITY_TRAFFIC_MIRROR,
		call:       c.router.SetMirror,
		check:      func(r *pb.SetMirrorResponse) error { return checkAction(r.GetAction()) },
	}.do(ctx, c, req, opts)
}

// VerifyWeight reports whether the data plane applies the weight.
func (c *Client) VerifyWeight(
	ctx context.Context, req *pb.VerifyWeightRequest, opts ...grpc.CallOption,
) (*pb.VerifyWeightResponse, error) {
	return rpc[*pb.VerifyWeightRequest, *pb.VerifyWeightResponse]{
		name:       "VerifyWeight",
		capability: pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
		call:       c.router.VerifyWeight,
		check: func(r *pb.VerifyWeightResponse) error {
			return errors.Join(checkPercentage("weight", r.GetWeight()), checkVerified(r.GetVerified(), r.GetReason()))
		},
	}.do(ctx, c, req, opts)
}

// Reset returns all traffic to the stable leaders.
func (c *Client) Reset(ctx context.Context, req *pb.ResetRequest, opts ...grpc.CallOption) (*pb.ResetResponse, error) {
	return rpc[*pb.ResetRequest, *pb.ResetResponse]{
		name:       "Reset",
		capability: pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
		call:       c.router.Reset,
		check:      func(r *pb.ResetResponse) error { return checkAction(r.GetAction()) },
	}.do(ctx, c, req, opts)
}
