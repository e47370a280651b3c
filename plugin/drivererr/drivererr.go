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
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Domain is the ErrorInfo domain of every error of the contract.
const Domain = "lockstep.dev"

// reasonPrefix is what ErrorInfo.reason leaves out of the enum value's name.
const reasonPrefix = "ERROR_REASON_"

// New returns a status error with the reason's code and an ErrorInfo. The message is formatted like fmt.Sprintf, and names
// the object that the error is about.
func New(reason pb.ErrorReason, msg string, args ...any) error {
	return buildError(reason, formatMessage(msg, args), &errdetails.ErrorInfo{Domain: Domain, Reason: Name(reason)})
}

// FieldViolation describes an invalid field of a request.
type FieldViolation struct {
	// Field is the path in proto names, for example "policy.batches[1]".
	Field string
	// Description says what is wrong and what is allowed.
	Description string
}

// Fields collects the violations of the fields below a path.
type Fields struct {
	Path string
	List []FieldViolation
}

// Add adds a violation of a field below the path, or of the path itself if the field is empty.
func (f *Fields) Add(field, format string, args ...any) {
	f.List = append(f.List, FieldViolation{strings.Trim(f.Path+"."+field, "."), fmt.Sprintf(format, args...)})
}

// Duration returns the value of a field, zero if that is not set or not valid. It adds a violation if the field is not from 0 to most.
func (f *Fields) Duration(field string, d *durationpb.Duration, zero, most time.Duration) time.Duration {
	got := d.AsDuration()
	switch {
	case d.GetSeconds() == 0 && d.GetNanos() == 0:
		return zero
	case d.CheckValid() != nil:
		f.Add(field, "is not a valid duration")
		return zero
	case got < 0:
		f.Add(field, "is negative: %s", got)
	case got > most:
		f.Add(field, "is %s: at most %s is allowed", got, most)
	}
	return got
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
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: Name(reason)}
	return buildError(reason, strings.Join(texts, "; "), info, bad)
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
	return attachDetails(status.New(old.Code(), old.Message()), details...)
}

// Reason returns the reason that err carries: UNSPECIFIED when it carries none of this domain or one that this version
// does not know. It looks through wrapped errors.
func Reason(err error) pb.ErrorReason {
	// A missing or unknown reason has the zero value of the map, UNSPECIFIED.
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

func buildError(reason pb.ErrorReason, message string, details ...protoadapt.MessageV1) error {
	return attachDetails(status.New(Code(reason), message), details...)
}

// attachDetails adds details. Only a status of code OK can't take them, and no reason has that code.
func attachDetails(s *status.Status, details ...protoadapt.MessageV1) error {
	with, err := s.WithDetails(details...)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

// Name returns a reason as ErrorInfo has it: "NAME_TAKEN".
func Name(reason pb.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), reasonPrefix)
}

// formatMessage formats a message only if there are args, so that a '%' in a quoted error is not taken for a verb.
func formatMessage(msg string, args []any) string {
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

// rule is one row of the error table.
type rule struct {
	code   codes.Code
	advice string
}

// Code returns the gRPC code that errors of this reason have. It is total: a reason that this version does not know,
// and UNSPECIFIED, are defects and therefore codes.Internal.
func Code(reason pb.ErrorReason) codes.Code {
	return ruleFor(reason).code
}

// Advice returns what the caller does about an error of this reason, as in SPEC.md.
func Advice(reason pb.ErrorReason) string {
	return ruleFor(reason).advice
}

// rules is the error table.
var rules = map[pb.ErrorReason]rule{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:            {codes.InvalidArgument, "Correct the fields named in BadRequest; the same request fails again."},
	pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED:          {codes.InvalidArgument, "Choose a new release id, or send the policy of the first call."},
	pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:         {codes.NotFound, "Check namespace and name; end the release on the host's side if the workload was deleted."},
	pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:          {codes.NotFound, "Call Initialize, or stop if another release has taken its place."},
	pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:        {codes.FailedPrecondition, "Wait until the release named in the metadata has ended, or finalize it."},
	pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED:          {codes.FailedPrecondition, "Follow the end that was chosen; begin a new release to go the other way."},
	pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER:              {codes.FailedPrecondition, "Release the object that owns the workload with its own tool."},
	pb.ErrorReason_ERROR_REASON_NAME_TAKEN:                 {codes.FailedPrecondition, "Rename or delete the object in the message, or target the stable workload."},
	pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG:              {codes.FailedPrecondition, "Give the workload a shorter name, or release it in style partition."},
	pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS:            {codes.FailedPrecondition, "Disown the workload, let its controller finish the roll, and adopt it before the next template change."},
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY: {codes.FailedPrecondition, "Make the workload again with groupIdentity Ordinal."},
	pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND:        {codes.FailedPrecondition, "Create the object in the message, or correct the policy or the revision asked for."},
	pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE:         {codes.FailedPrecondition, "Change the object in the message, or name another in the policy."},
	pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED:             {codes.FailedPrecondition, "Raise or free the quota in the message, release in style partition, or set policy.blue_green.force."},
	pb.ErrorReason_ERROR_REASON_RECORD_INVALID:             {codes.FailedPrecondition, "Restore what the message names, or use the driver version that wrote it."},
	pb.ErrorReason_ERROR_REASON_NEWER_DRIVER:               {codes.FailedPrecondition, "Use the driver version that drives the release, or roll it back."},
	pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING:       {codes.FailedPrecondition, "Install the workload's API in the cluster."},
	pb.ErrorReason_ERROR_REASON_WORKLOAD_API_TOO_OLD:       {codes.FailedPrecondition, "Upgrade the workload's API and its controller."},
	pb.ErrorReason_ERROR_REASON_FORBIDDEN:                  {codes.FailedPrecondition, "Grant the driver the verb and resource in the message."},
	pb.ErrorReason_ERROR_REASON_REJECTED:                   {codes.FailedPrecondition, "Change what the API server or webhook objects to in the message."},
	pb.ErrorReason_ERROR_REASON_CONFLICT:                   {codes.Aborted, "Retry at once; the driver reads the object afresh."},
	pb.ErrorReason_ERROR_REASON_REVISION_CHANGED:           {codes.Aborted, "Read BatchContext, decide again for its update revision, then retry."},
	pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE:            {codes.Unavailable, "Retry with backoff."},
	pb.ErrorReason_ERROR_REASON_NOT_SYNCED:                 {codes.Unavailable, "Retry with backoff; after a start health says SERVING when it is over."},
	pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED:            {codes.Unauthenticated, "Call with a token for the audience lockstep, or with a client certificate."},
	pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED:          {codes.PermissionDenied, "Bind a role with the verb in the message to the user in the namespace, for example lockstep-operator."},
	pb.ErrorReason_ERROR_REASON_RATE_LIMITED:               {codes.ResourceExhausted, "Retry with backoff, and call less often."},
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED:                {codes.Unimplemented, "Do without it; GetDriverInfo lists what the driver serves."},
}

func ruleFor(reason pb.ErrorReason) rule {
	if r, ok := rules[reason]; ok {
		return r
	}
	return rule{codes.Internal, "Report it with the driver's log; do not retry."}
}
