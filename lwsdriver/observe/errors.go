// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/lockstep-rollouts/lockstep/config"
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

// startsAdmitting matches the refusals of an API server that has just started: it learns the kinds of the parameters of admission policies,
// such as bounds, after up to 30 s, and refuses whatever those policies are for until then.
var startsAdmitting = regexp.MustCompile(`failed to find resource referenced by paramKind|paramKind kind .* not |not yet ready to handle request`)

// transient matches errors of client-go without a type, of a request that waits for its turn longer than its call lasts, and of an answer that broke off.
var transient = regexp.MustCompile(`client rate limiter Wait returned an error|reading response body.*Please retry`)

// granting returns the ClusterRoles of config/base that grant access to each resource.
var granting = sync.OnceValue(func() map[schema.GroupResource]string {
	roles, _ := config.DriverRules() // a test reads them, too
	all := map[schema.GroupResource]string{}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		for _, rule := range roles[name] {
			for _, resource := range rule.Resources {
				resource, _, _ = strings.Cut(resource, "/")
				key := schema.GroupResource{Group: rule.APIGroups[0], Resource: resource}
				if known := all[key]; !strings.HasSuffix(known, name) {
					all[key] = strings.TrimPrefix(known+" or "+name, " or ")
				}
			}
		}
	}
	return all
})

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
		if role := granting()[schema.GroupResource{Group: found[2], Resource: found[1]}]; role != "" {
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
	case startsAdmitting.MatchString(err.Error()):
		return pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE
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
		errors.As(err, &network), transient.MatchString(err.Error()):
		return pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE
	}
	return pb.ErrorReason_ERROR_REASON_INTERNAL
}
