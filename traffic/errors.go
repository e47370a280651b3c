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

// unsupported is the error about a request that the objects of the policy can't express: the caller must ask for less, or
// name other objects in the policy.
func unsupported(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, format, args...)
}

// taken is the error about an object of others that has the name of a generated one. otherwise says what to do if it
// can't be deleted.
func taken(s Setup, k Key, otherwise string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"%s %s/%s was not made for %s, but is where its canary's %s belongs: delete it, or %s",
		k.Kind, s.Namespace, k.Name, s.Stable, k.Kind, otherwise)
}

// otherService is the way out of a name that is taken.
const otherService = "name another in " + policyField + ".canary_service"
