// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Identity is what tells whether Lockstep may drive an object.
type Identity struct {
	// AddedTo names the workload whose release added the object. Empty: none did.
	AddedTo string `json:"addedTo,omitzero"`
	// CopiedLabels are labels of added workloads on an object that no release added.
	CopiedLabels []string `json:"copiedLabels,omitzero"`
	// ControllerKind and ControllerName are of the object that controls it. Empty: none does.
	ControllerKind string `json:"controllerKind,omitzero"`
	ControllerName string `json:"controllerName,omitzero"`
	// UnnumberedGroup is a group-index label that is no number. Empty: there is none.
	UnnumberedGroup string `json:"unnumberedGroup,omitzero"`
	// Unobserved: LWS does not report observedGeneration, so it is older than v0.9.0.
	Unobserved bool `json:"unobserved,omitzero"`
	// AppliedBy is the mark of a tool that applies the object from Git. Empty: there is none.
	AppliedBy string `json:"appliedBy,omitzero"`
	// VolumeClaims is how many volumeClaimTemplates the template has.
	VolumeClaims int `json:"volumeClaims,omitzero"`
}

// CheckWorkload refuses a workload that Lockstep must not drive. The error has an ErrorReason.
func CheckWorkload(o Observation) error {
	switch i := o.Identity; {
	case i.AddedTo != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"LeaderWorkerSet %s was added by the release of %q: name that workload instead", o.Key, i.AddedTo)
	case len(i.CopiedLabels) > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"LeaderWorkerSet %s carries labels of what a release adds (%s), but no release added it; they were probably copied "+
				"with a manifest: remove them, and ownerReferences and finalizers that came along",
			o.Key, strings.Join(i.CopiedLabels, ", "))
	case i.ControllerName != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
			"LeaderWorkerSet %s is controlled by %s %q, which would rewrite what Lockstep writes: release it through that object",
			o.Key, i.ControllerKind, i.ControllerName)
	case o.Stable.Deleting:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "LeaderWorkerSet %s is being deleted", o.Key)
	case i.UnnumberedGroup != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY,
			"LeaderWorkerSet %s does not number its groups (one has the group-index %q, so groupIdentity is not Ordinal): it knows "+
				"no partition then, which is how Lockstep holds a workload. Make it again with groupIdentity Ordinal", o.Key, i.UnnumberedGroup)
	case i.Unobserved:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_API_TOO_OLD,
			"the LeaderWorkerSet controller does not report observedGeneration for %s, so it is older than v0.9.0, and counts "+
				"groups as ready while their workers are not: upgrade LWS and its CRDs to v0.9.0 or later", o.Key)
	}
	return nil
}
