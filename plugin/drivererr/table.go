// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package drivererr

import (
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
	pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG:              {codes.FailedPrecondition, "Give the workload a shorter name, or use STYLE_PARTITION."},
	pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS:            {codes.FailedPrecondition, "Disown the workload, let its controller finish the roll, and adopt it before the next template change."},
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY: {codes.FailedPrecondition, "Make the workload again with groupIdentity Ordinal."},
	pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND:        {codes.FailedPrecondition, "Create the object in the message, or correct the policy or the revision asked for."},
	pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE:         {codes.FailedPrecondition, "Change the object in the message, or name another in the policy."},
	pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED:             {codes.FailedPrecondition, "Raise or free the quota in the message, release in STYLE_PARTITION, or set policy.blue_green.force."},
	pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT: {codes.FailedPrecondition, "Remove the budget in the message for the time of the release, or leave out policy.group_disruption_budget."},
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
