// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that calls need, as plugin.Client has it.
type Driver interface {
	Adopt(context.Context, *pb.AdoptRequest, ...grpc.CallOption) (*pb.AdoptResponse, error)
	Initialize(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	UpgradeBatch(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	Finalize(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
}

var _ Driver = (*plugin.Client)(nil)

// Call is a call of the driver. The zero value is no call.
type Call struct {
	// Request is an AdoptRequest, InitializeRequest, UpgradeBatchRequest or FinalizeRequest. Nil: no call.
	Request proto.Message
	// Why is the reason, for logs.
	Why string
}

// None reports whether there is no call.
func (c Call) None() bool { return c.Request == nil }

// Do makes the call. Each is idempotent, and none waits for the cluster. An error is the driver's.
func (c Call) Do(ctx context.Context, d Driver) error {
	var err error
	switch r := c.Request.(type) {
	case nil:
	case *pb.AdoptRequest:
		_, err = d.Adopt(ctx, r)
	case *pb.InitializeRequest:
		_, err = d.Initialize(ctx, r)
	case *pb.UpgradeBatchRequest:
		_, err = d.UpgradeBatch(ctx, r)
	case *pb.FinalizeRequest:
		_, err = d.Finalize(ctx, r)
	default:
		err = fmt.Errorf("make a call: unexpected request %T", r)
	}
	return err
}
