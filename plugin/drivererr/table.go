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

// ruleFor is the error table.
//
//nolint:funlen // A table with a row per reason; as a switch, no reason of the contract can be forgotten in it.
func ruleFor(reason pb.ErrorReason) rule {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:
		return rule{codes.InvalidArgument, "Correct the fields named in BadRequest; the same request fails again."}
	case pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED:
		return rule{codes.InvalidArgument, "Choose a new release id, or send the policy of the first call."}
	case pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
		return rule{codes.NotFound, "Check namespace and name; end the release on the host's side if the workload was deleted."}
	case pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return rule{codes.NotFound, "Call Initialize, or stop if another release has taken its place."}
	case pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:
		return rule{codes.FailedPrecondition, "Wait until the release named in the metadata has ended, or finalize it."}
	case pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED:
		return rule{codes.FailedPrecondition, "Follow the end that was chosen; begin a new release to go the other way."}
	case pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER:
		return rule{codes.FailedPrecondition, "Release the object that owns the workload with its own tool."}
	case pb.ErrorReason_ERROR_REASON_NAME_TAKEN:
		return rule{codes.FailedPrecondition, "Rename or delete the object in the message, or target the stable workload."}
	case pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG:
		return rule{codes.FailedPrecondition, "Give the workload a shorter name, or use STYLE_PARTITION."}
	case pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS:
		return rule{codes.FailedPrecondition, "Disown the workload, let its controller finish the roll, and adopt it before the next template change."}
	case pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY:
		return rule{codes.FailedPrecondition, "Make the workload again with groupIdentity Ordinal."}
	case pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND:
		return rule{codes.FailedPrecondition, "Create the object in the message, or correct the policy or the revision asked for."}
	case pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE:
		return rule{codes.FailedPrecondition, "Change the object in the message, or name another in the policy."}
	case pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED:
		return rule{codes.FailedPrecondition, "Raise or free the quota in the message, release in STYLE_PARTITION, or set policy.blue_green.force."}
	case pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT:
		return rule{codes.FailedPrecondition, "Remove the budget in the message for the time of the release, or leave out policy.group_disruption_budget."}
	case pb.ErrorReason_ERROR_REASON_RECORD_INVALID:
		return rule{codes.FailedPrecondition, "Restore what the message names, or use the driver version that wrote it."}
	case pb.ErrorReason_ERROR_REASON_NEWER_DRIVER:
		return rule{codes.FailedPrecondition, "Use the driver version that drives the release, or roll it back."}
	case pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING:
		return rule{codes.FailedPrecondition, "Install the workload's API in the cluster."}
	case pb.ErrorReason_ERROR_REASON_WORKLOAD_API_TOO_OLD:
		return rule{codes.FailedPrecondition, "Upgrade the workload's API and its controller."}
	case pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		return rule{codes.FailedPrecondition, "Grant the driver the verb and resource in the message."}
	case pb.ErrorReason_ERROR_REASON_REJECTED:
		return rule{codes.FailedPrecondition, "Change what the API server or webhook objects to in the message."}
	case pb.ErrorReason_ERROR_REASON_CONFLICT:
		return rule{codes.Aborted, "Retry at once; the driver reads the object afresh."}
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED:
		return rule{codes.Aborted, "Read BatchContext, decide again for its update revision, then retry."}
	case pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE:
		return rule{codes.Unavailable, "Retry with backoff."}
	case pb.ErrorReason_ERROR_REASON_NOT_SYNCED:
		return rule{codes.Unavailable, "Retry with backoff; after a start health says SERVING when it is over."}
	case pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED:
		return rule{codes.Unauthenticated, "Call with a token for the audience lockstep, or with a client certificate."}
	case pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED:
		return rule{codes.PermissionDenied, "Bind a role with the verb in the message to the user in the namespace, for example lockstep-operator."}
	case pb.ErrorReason_ERROR_REASON_RATE_LIMITED:
		return rule{codes.ResourceExhausted, "Retry with backoff, and call less often."}
	case pb.ErrorReason_ERROR_REASON_UNSUPPORTED:
		return rule{codes.Unimplemented, "Do without it; GetDriverInfo lists what the driver serves."}
	case pb.ErrorReason_ERROR_REASON_INTERNAL, pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return internalRule()
	default:
		return internalRule()
	}
}

func internalRule() rule {
	return rule{codes.Internal, "Report it with the driver's log; do not retry."}
}
