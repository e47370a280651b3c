// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// callTimeout bounds one call of the driver. No call waits for the cluster.
const callTimeout = 15 * time.Second

// headerRoute is the name of the header route that steps set.
const headerRoute = "argo-rollouts"

// Target is a workload, and the Rollout that releases it.
type Target struct {
	Driver Driver
	Ref    *pb.WorkloadRef
	Facts  Facts
	Config *Config
	// Confirm reports whether the Rollout is still as in Facts, before a release begins: a step may wait for seconds. Nil: it is.
	Confirm func(context.Context) (bool, error)
}

// NewTarget returns the workload that the configuration names.
func NewTarget(driver Driver, f Facts, config *Config) Target {
	return Target{
		Driver: driver, Facts: f, Config: config,
		Ref: &pb.WorkloadRef{Namespace: f.Namespace, Name: config.Workload},
	}
}

// Look returns the state of the workload, from the driver's caches.
func (t Target) Look(ctx context.Context) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := t.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: t.Ref})
	return response.GetContext(), err
}

// Perform makes the call of a move. It returns the state of the workload, nil if the call's response has none.
func (t Target) Perform(ctx context.Context, m Move) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	switch r := m.Request.(type) {
	case *pb.UndoRequest:
		_, err = t.Driver.Undo(ctx, r)
	case *pb.SetHeaderRouteRequest:
		_, err = t.Driver.SetHeaderRoute(ctx, r)
	case *pb.SetMirrorRequest:
		_, err = t.Driver.SetMirror(ctx, r)
	case *pb.SetWeightRequest:
		_, err = t.Driver.SetWeight(ctx, r)
	default:
		return converge.Perform(ctx, t.Driver, converge.Move{Request: m.Request})
	}
	return nil, err
}

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	converge.Driver
	plugin.ContextWatcher
	plugin.WorkloadsWatcher

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
