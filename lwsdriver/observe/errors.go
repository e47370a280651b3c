// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ErrBehind means that a write succeeded and its event has not arrived: the watch is slow or broken.
var ErrBehind = errors.New("the API server's watch is behind its writes")

// ErrChanged means that the object of a patch has changed since it was observed.
var ErrChanged = errors.New("the object has been changed by another client")

// lacksPermission matches the API server's message for a missing permission. Webhooks, admission policies and quotas answer 403
// too, and no permission would change that.
var lacksPermission = regexp.MustCompile(`forbidden: User ".*" cannot `)

// ContractError returns an error with an ErrorReason. One that has a reason keeps it.
func ContractError(err error) error {
	if err == nil || drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the call ended before the API server answered: %v", err)
	default:
		return drivererr.New(reasonOf(err), "%v", err)
	}
}

// reasonOf returns the ErrorReason of a Kubernetes error.
func reasonOf(err error) pb.ErrorReason {
	var network net.Error
	switch {
	case errors.Is(err, ErrBehind):
		return pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE
	case errors.Is(err, ErrChanged):
		return pb.ErrorReason_ERROR_REASON_CONFLICT
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err) && lacksPermission.MatchString(err.Error()):
		return pb.ErrorReason_ERROR_REASON_FORBIDDEN
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return pb.ErrorReason_ERROR_REASON_CONFLICT
	case apierrors.IsAlreadyExists(err):
		return pb.ErrorReason_ERROR_REASON_NAME_TAKEN
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return pb.ErrorReason_ERROR_REASON_REJECTED
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsUnexpectedServerError(err),
		utilnet.IsConnectionRefused(err), utilnet.IsConnectionReset(err),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.As(err, &network):
		return pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE
	}
	return pb.ErrorReason_ERROR_REASON_INTERNAL
}
