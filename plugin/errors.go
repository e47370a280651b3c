// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"google.golang.org/grpc/status"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// Reason returns the contract's reason that err carries, UNSPECIFIED if it carries none.
func Reason(err error) pb.ErrorReason {
	return drivererr.Reason(err)
}

// Retryable reports whether the same call may succeed later without intervention: that is true of ABORTED and
// UNAVAILABLE only.
func Retryable(err error) bool {
	return drivererr.Retryable(err)
}

// prefixed prefixes the message of a status error with the driver's name, and keeps its code and details.
func prefixed(name string, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err).Proto()
	s.Message = fmt.Sprintf("%s: %s", name, s.GetMessage())
	return status.FromProto(s).Err()
}

// broken returns the error for a response that violates the contract.
func broken(name, rpc string, cause error) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL,
		"%s: response to %s breaks the contract: %v", name, rpc, cause)
}
