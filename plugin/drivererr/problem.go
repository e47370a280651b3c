// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package drivererr

import (
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Problem is an error of the contract as plain data, which can be compared and encoded.
type Problem struct {
	Reason  pb.ErrorReason `json:"reason"`
	Message string         `json:"message"`
}

// ProblemOf returns err as a Problem, nil for nil. Its metadata and field violations are left out.
func ProblemOf(err error) *Problem {
	if err == nil {
		return nil
	}
	return &Problem{Reason: Reason(err), Message: status.Convert(err).Message()}
}

// Error returns the message.
func (p *Problem) Error() string { return p.Message }

// GRPCStatus lets [Reason], [Retryable] and gRPC read the problem like any error of the contract.
func (p *Problem) GRPCStatus() *status.Status { return status.Convert(New(p.Reason, "%s", p.Message)) }
