// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// unusable is the error about an object that the policy names and that can't do what the release needs of it: a
// FAILED_PRECONDITION, since a person must change the object or the policy.
func unusable(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, format, args...)
}

// missing is the error about an object that the policy names and that does not exist.
func missing(s Setup, k Key) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
		"%s names %s, which does not exist in namespace %s: create it, or correct the policy", policyField, k, s.Namespace)
}

// taken is the error about an object of others that has the canary Service's name.
func taken(s Setup) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"Service %s/%s was not made for %s, but is where its canary's Service belongs: delete it, or name another in %s.canary_service",
		s.Namespace, s.Policy.CanaryService, s.Stable, policyField)
}
