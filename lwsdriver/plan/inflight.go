// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// InFlight reports whether a release is not over: an effect of it is neither undone nor permanent.
func InFlight(o Observation) bool {
	r := o.release()
	return r != nil && (r.Phase.Unfinished() || len(o.Added) > 0 || len(o.Budgets) > 0 || o.trafficDrifted())
}

// trafficDrifted reports whether the user's routes and Services differ from what they were, as far as the driver can restore
// them, or whether that is not known yet.
func (o Observation) trafficDrifted() bool {
	if o.Traffic == nil {
		return false
	}
	return Unread(o) || o.Traffic.Look(traffic.Desired{}).Stage == traffic.Drifted
}

// Unread reports whether the caches do not tell yet how the requests are routed, or whether budgets are left.
func Unread(o Observation) bool {
	return o.BudgetsUnread || o.trafficUnread()
}

// trafficUnread reports whether the caches do not tell yet how the requests are routed.
func (o Observation) trafficUnread() bool {
	return o.Traffic != nil && o.Traffic.Look(traffic.Desired{}).Stage == traffic.Unread
}

// checkRead refuses, for the moment, a request that depends on whether the last release is over.
func checkRead(o Observation) error {
	r := o.release()
	if r == nil || len(o.Added) > 0 || r.Phase.Unfinished() || !Unread(o) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"the caches do not tell yet whether release %q of LeaderWorkerSet %s has given its routes and Services back", r.ID, o.Key)
}

// inProgress is the refusal of a request that must wait for the end of the release in flight.
func inProgress(o Observation, text string, args ...any) error {
	return drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, text, args...),
		"release_id", o.release().ID)
}

// NothingWaits reports whether every group runs the template in the spec.
func NothingWaits(o Observation) bool {
	now := o.Stable.revisions()
	return o.Stable.Replicas == 0 || len(now) == 1 && now[0] == o.Stable.Revision
}
