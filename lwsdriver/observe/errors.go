// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
var lacksPermission = regexp.MustCompile(`forbidden: User ".*" cannot (?:[a-z]+ resource "([a-z]+)(?:/[a-z]+)?" in API group "([a-z0-9.-]*)")?`)

// boundsPolicy is how the API server names the admission policy that enforces bounds. It reads them from a cache, which follows what the driver
// has written a moment later.
const boundsPolicy = "ValidatingAdmissionPolicy 'lockstep-bounds'"

// granting has the ClusterRoles of config/base that grant access to resources.
var granting = map[schema.GroupResource]string{
	{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}: "lockstep-driver-core",
	{Resource: "pods"}: "lockstep-driver-core",
	{Group: "apps", Resource: "controllerrevisions"}:                   "lockstep-driver-core",
	{Resource: "resourcequotas"}:                                       "lockstep-driver-core",
	{Group: "policy", Resource: "poddisruptionbudgets"}:                "lockstep-driver-core",
	{Group: "events.k8s.io", Resource: "events"}:                       "lockstep-driver-core",
	{Resource: "services"}:                                             "lockstep-driver-core (to read), lockstep-driver-gateway or lockstep-driver-ingress",
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:            "lockstep-driver-gateway or lockstep-driver-ingress",
	{Group: "gateway.networking.k8s.io", Resource: "httproutes"}:       "lockstep-driver-gateway",
	{Group: "gateway.networking.k8s.io", Resource: "grpcroutes"}:       "lockstep-driver-gateway",
	{Group: "networking.k8s.io", Resource: "ingresses"}:                "lockstep-driver-ingress",
	{Group: "inference.networking.k8s.io", Resource: "inferencepools"}: "lockstep-driver-pools",
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:       "lockstep-driver-autoscalers",
	{Group: "keda.sh", Resource: "scaledobjects"}:                      "lockstep-driver-autoscalers",

	{Group: "disaggregatedset.x-k8s.io", Resource: "disaggregatedsets"}:                    "lockstep-driver-disaggregated",
	{Group: "disaggregatedset.x-k8s.io", Resource: "disaggregatedsetrolescalers"}:          "lockstep-driver-disaggregated",
	{Group: "lockstep.dev", Resource: "replicabounds"}:                                     "lockstep-driver-disaggregated",
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       "lockstep-driver-disaggregated",
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: "lockstep-driver-disaggregated",
}

// ContractError returns an error with an ErrorReason. One that has a reason keeps it.
func ContractError(err error) error {
	if err == nil || drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the call ended before the API server answered: %v", err)
	default:
		return drivererr.New(reasonOf(err), "%v%s", err, permissionRemedy(err))
	}
}

// permissionRemedy returns what to add to the message of a missing permission: the ClusterRole that grants it. Empty for other errors.
func permissionRemedy(err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	// A refusal by a webhook or a quota is 403, too, and no role would change it.
	if found := lacksPermission.FindStringSubmatch(err.Error()); found != nil {
		if role := granting[schema.GroupResource{Group: found[2], Resource: found[1]}]; role != "" {
			return fmt.Sprintf(" (config/base: ClusterRole %s grants it)", role)
		}
	}
	return ""
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
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), boundsPolicy):
		// An object that is gone was observed before it was deleted: another observation shows that.
		return pb.ErrorReason_ERROR_REASON_CONFLICT
	case apierrors.IsAlreadyExists(err):
		return pb.ErrorReason_ERROR_REASON_NAME_TAKEN
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		// A webhook, an admission policy or a quota refused the write, see lacksPermission.
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
