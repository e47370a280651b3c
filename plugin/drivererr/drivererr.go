// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivererr builds and reads the errors of the contract in proto/lockstep/v1alpha1.
//
// Each error is a gRPC status whose ErrorInfo carries one [pb.ErrorReason]. The reason decides the code ([Code]) and
// what the caller does about it ([Advice]); SPEC.md prints the same table, and a test walks both. Drivers build errors
// with [New] and [Invalid], hosts read them with [Reason] and [Retryable].
package drivererr

import (
	"fmt"
	"maps"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Domain is the ErrorInfo domain of every error of the contract.
const Domain = "lockstep.dev"

// reasonPrefix is what ErrorInfo.reason leaves out of the enum value's name.
const reasonPrefix = "ERROR_REASON_"

// New returns a status error with the reason's code and an ErrorInfo. The message is formatted like fmt.Sprintf, and names
// the object that the error is about.
func New(reason pb.ErrorReason, msg string, args ...any) error {
	return build(reason, sprintf(msg, args), &errdetails.ErrorInfo{Domain: Domain, Reason: name(reason)})
}

// FieldViolation describes an invalid field of a request.
type FieldViolation struct {
	// Field is the path in proto names, for example "policy.batches[1]".
	Field string
	// Description says what is wrong and what is allowed.
	Description string
}

// Invalid returns an INVALID_REQUEST error whose BadRequest names each field, nil without violations.
func Invalid(violations ...FieldViolation) error {
	if len(violations) == 0 {
		return nil
	}
	bad := &errdetails.BadRequest{}
	texts := make([]string, 0, len(violations))
	for _, v := range violations {
		bad.FieldViolations = append(bad.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
		texts = append(texts, v.Field+": "+v.Description)
	}
	reason := pb.ErrorReason_ERROR_REASON_INVALID_REQUEST
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: name(reason)}
	return build(reason, strings.Join(texts, "; "), info, bad)
}

// WithMetadata returns err with key and value added to its ErrorInfo, for programs: for example "release_id" of the
// release that holds the workload. An error without an ErrorInfo of this domain is returned as it is.
func WithMetadata(err error, key, value string) error {
	if infoOf(err) == nil {
		return err
	}
	old := status.Convert(err)
	details := make([]protoadapt.MessageV1, 0, len(old.Details()))
	for _, detail := range old.Details() {
		message, ok := detail.(protoadapt.MessageV1)
		if !ok {
			return err
		}
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			metadata := maps.Clone(info.GetMetadata())
			if metadata == nil {
				metadata = make(map[string]string, 1)
			}
			metadata[key] = value
			message = &errdetails.ErrorInfo{Domain: Domain, Reason: info.GetReason(), Metadata: metadata}
		}
		details = append(details, message)
	}
	return attach(status.New(old.Code(), old.Message()), details...)
}

// Reason returns the reason that err carries: UNSPECIFIED when it carries none of this domain or one that this version
// does not know. It looks through wrapped errors.
func Reason(err error) pb.ErrorReason {
	return pb.ErrorReason(pb.ErrorReason_value[reasonPrefix+infoOf(err).GetReason()])
}

// Metadata returns the ErrorInfo metadata of err, nil when there is none.
func Metadata(err error) map[string]string {
	return infoOf(err).GetMetadata()
}

// Violations returns the invalid fields that err names, nil when it names none.
func Violations(err error) []FieldViolation {
	if err == nil {
		return nil
	}
	var violations []FieldViolation
	for _, detail := range status.Convert(err).Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			violations = append(violations, FieldViolation{Field: v.GetField(), Description: v.GetDescription()})
		}
	}
	return violations
}

// Retryable reports whether the same request may succeed later without intervention. It is total over gRPC codes:
// ABORTED (retry at once), UNAVAILABLE and the reason RATE_LIMITED (with backoff) are retryable, all others are not. A
// DEADLINE_EXCEEDED is the caller's own deadline, so only the caller knows whether to retry.
func Retryable(err error) bool {
	switch status.Code(err) {
	case codes.Aborted, codes.Unavailable:
		return true
	case codes.ResourceExhausted: // also the code of messages that are too large
		return Reason(err) == pb.ErrorReason_ERROR_REASON_RATE_LIMITED
	default:
		return false
	}
}

// infoOf returns the ErrorInfo of this domain, nil when err has none.
func infoOf(err error) *errdetails.ErrorInfo {
	if err == nil {
		return nil
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

func build(reason pb.ErrorReason, message string, details ...protoadapt.MessageV1) error {
	return attach(status.New(Code(reason), message), details...)
}

// attach adds details. Only a status of code OK can't take them, and no reason has that code.
func attach(s *status.Status, details ...protoadapt.MessageV1) error {
	with, err := s.WithDetails(details...)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

func name(reason pb.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), reasonPrefix)
}

// sprintf formats a message only if there are args, so that a '%' in a quoted error is not taken for a verb.
func sprintf(msg string, args []any) string {
	if len(args) == 0 {
		return msg
	}
	return fmt.Sprintf(msg, args...)
}

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
