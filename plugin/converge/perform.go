// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that moves need, as plugin.Client has it.
type Driver interface {
	Adopt(context.Context, *pb.AdoptRequest, ...grpc.CallOption) (*pb.AdoptResponse, error)
	Disown(context.Context, *pb.DisownRequest, ...grpc.CallOption) (*pb.DisownResponse, error)
	Initialize(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	UpgradeBatch(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	Finalize(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
}

var _ Driver = (*plugin.Client)(nil)

// Perform makes the call of a move. It returns the context of the response, nil if there is none. Errors have an ErrorReason.
func Perform(ctx context.Context, d Driver, m Move) (*pb.BatchContext, error) {
	switch r := m.Request.(type) {
	case nil:
		return nil, nil //nolint:nilnil // No call, no response.
	case *pb.AdoptRequest:
		response, err := d.Adopt(ctx, r)
		return response.GetContext(), err
	case *pb.DisownRequest:
		_, err := d.Disown(ctx, r)
		return nil, err
	case *pb.InitializeRequest:
		response, err := d.Initialize(ctx, r)
		return response.GetContext(), err
	case *pb.UpgradeBatchRequest:
		response, err := d.UpgradeBatch(ctx, r)
		return response.GetContext(), err
	case *pb.FinalizeRequest:
		response, err := d.Finalize(ctx, r)
		return response.GetContext(), err
	default:
		return nil, fmt.Errorf("unexpected request %T", r)
	}
}

// Outdated reports whether the release is no longer what the call assumed, so that the next one is decided anew.
func Outdated(err error) bool {
	switch plugin.Reason(err) { // All others need a user, or are retryable.
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_CONFLICT,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return true
	default:
		return false
	}
}

// Retryable reports whether the same call may succeed later without intervention. Each call has a deadline, so a driver that
// hangs counts as unavailable.
func Retryable(err error) bool {
	return plugin.Retryable(err) || status.Code(err) == codes.DeadlineExceeded
}
