// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	converge.Driver
	plugin.ContextWatcher

	Has(pb.Capability) bool
	Undo(context.Context, *pb.UndoRequest, ...grpc.CallOption) (*pb.UndoResponse, error)
	SetWeight(context.Context, *pb.SetWeightRequest, ...grpc.CallOption) (*pb.SetWeightResponse, error)
	SetHeaderRoute(context.Context, *pb.SetHeaderRouteRequest, ...grpc.CallOption) (*pb.SetHeaderRouteResponse, error)
	SetMirror(context.Context, *pb.SetMirrorRequest, ...grpc.CallOption) (*pb.SetMirrorResponse, error)
	VerifyWeight(context.Context, *pb.VerifyWeightRequest, ...grpc.CallOption) (*pb.VerifyWeightResponse, error)
}

var _ Driver = (*plugin.Client)(nil)

// Serving returns the revision from which a release would start. Empty: the groups run none, or several.
func Serving(c *pb.BatchContext) string {
	if c.GetState() == pb.State_STATE_PROMOTING {
		return ""
	}
	return plugin.Serving(c) // in all other states the stable groups are as before the release
}
