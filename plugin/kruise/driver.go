// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	plugin.ContextWatcher
	Adopt(context.Context, *pb.AdoptRequest, ...grpc.CallOption) (*pb.AdoptResponse, error)
	Disown(context.Context, *pb.DisownRequest, ...grpc.CallOption) (*pb.DisownResponse, error)
	Initialize(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	UpgradeBatch(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	Finalize(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
}

var _ Driver = (*plugin.Client)(nil)
