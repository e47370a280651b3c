// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Decision is what to do next and how things stand.
type Decision struct {
	// Action is the next write. Nil: nothing to write until something changes.
	Action Action
	// State, Reason and Message are what a host is told.
	State           pb.State
	Reason, Message string
	// Recheck is when time alone will change the decision. Zero: never.
	Recheck time.Duration
	// Deadline is when the release fails unless it comes nearer to its goal. Zero: it waits for no group.
	Deadline time.Time
	// Progress is what was counted.
	Progress Progress
	// Warnings are for the caller whose intent was decided on. They refuse nothing.
	Warnings []*pb.Warning
}

// Reasons that a Decision gives. They are part of the contract: hosts and people match on them.
const (
	ReasonNotAdopted         = "NotAdopted"
	ReasonHeldUnmanaged      = "HeldButNotAdopted"
	ReasonHeld               = "Held"
	ReasonNewRevisionWaits   = "NewRevisionWaits"
	ReasonHoldDrifted        = "HoldDrifted"
	ReasonWaitingForLWS      = "WaitingForLeaderWorkerSet"
	ReasonCreatingCanary     = "CreatingCanary"
	ReasonNewRevision        = "NewRevision"
	ReasonCanaryDeleted      = "CanaryDeleted"
	ReasonCanaryDrifted      = "CanaryDrifted"
	ReasonScaling            = "Scaling"
	ReasonNoBatch            = "WaitingForFirstBatch"
	ReasonGroupsNotReady     = "GroupsNotReady"
	ReasonMinReady           = "WaitingForMinReady"
	ReasonBatchReady         = "BatchReady"
	ReasonDeadline           = "ProgressDeadlineExceeded"
	ReasonRolling            = "StableRolling"
	ReasonCleaningUp         = "CanaryTerminating"
	ReasonPromoted           = "Promoted"
	ReasonRolledBack         = "RolledBack"
	ReasonNothing            = "NothingToRelease"
	ReasonMixedRevisions     = "MixedRevisions"
	ReasonRestarting         = "RestartingGroups"
	ReasonScaleDownDelay     = "WaitingForScaleDownDelay"
	ReasonOpening            = "EndingTrafficSplit"
	ReasonDraining           = "Draining"
	ReasonMarking            = "MarkingLeaders"
	ReasonTemplateReturned   = "StableTemplateReturned"
	ReasonDeleting           = "WorkloadDeleting"
	ReasonStyleNotSupported  = "StyleNotSupported"
	ReasonInvariantViolation = "InvariantViolation"
)

// Action is one write. The set is closed: apply has a case for each.
type Action interface {
	fmt.Stringer
	action()
}

// SetStable writes the record and the rolling update configuration of the user's workload in one request, so that the
// intent and its first effect can't be torn apart.
type SetStable struct {
	Record record.Record
	// Rolling is the configuration to set. Nil: it stays as it is.
	Rolling *lws.RollingUpdateConfiguration
	// SaveTemplate adds the stable revision's template to the record, in the same request.
	SaveTemplate bool
	// RestoreTemplate puts the template in the record back into the spec.
	RestoreTemplate bool
	// Replicas is the number of groups to set. Nil: it stays as it is.
	Replicas *int
	// Why says it for events and logs.
	Why string
}

// RestartGroup deletes the leader of a group of the user's workload, and with it the group, which LWS makes anew.
type RestartGroup struct{ Leader string }

// RemoveRecord removes the record and puts the user's rolling update configuration back. Only a host asks for it.
type RemoveRecord struct {
	Rolling lws.RollingUpdateConfiguration
}

// CreateCanary adds the second workload.
type CreateCanary struct {
	Name     string
	Revision string
	Replicas int
	Target   *record.Target
}

// RepairCanary puts back the template of an added workload that somebody edited.
type RepairCanary struct{ Name string }

// ScaleCanary sets the groups of an added workload, and the target that they are for.
type ScaleCanary struct {
	Name     string
	Replicas int
	Target   *record.Target
}

// RemoveFinalizer removes our finalizer from an added workload.
type RemoveFinalizer struct{ Name string }

// DeleteCanary asks for the deletion of an added workload and of all its groups.
type DeleteCanary struct{ Name string }

// SetTraffic makes the next write that takes the requests where they should go.
type SetTraffic struct {
	Desired traffic.Desired
	// Why says which, for events and logs.
	Why string
}

// MarkLeader lets requests go to the leader of a canary group, or keeps them from it.
type MarkLeader struct {
	// Name is the added workload, in place the user's own; Leader the pod.
	Name, Leader string
	Serves       bool
}

func (SetStable) action()       {}
func (RestartGroup) action()    {}
func (SetTraffic) action()      {}
func (MarkLeader) action()      {}
func (RemoveRecord) action()    {}
func (CreateCanary) action()    {}
func (RepairCanary) action()    {}
func (ScaleCanary) action()     {}
func (RemoveFinalizer) action() {}
func (DeleteCanary) action()    {}

func (a SetTraffic) String() string { return a.Why }
func (a MarkLeader) String() string {
	if a.Serves {
		return fmt.Sprintf("let requests go to %s, whose group is whole", a.Leader)
	}
	return fmt.Sprintf("keep requests from %s", a.Leader)
}
func (a SetStable) String() string { return a.Why }
func (a RestartGroup) String() string {
	return "restart the group of " + a.Leader
}
func (RemoveRecord) String() string { return "give the workload back as the user had it" }
func (a CreateCanary) String() string {
	return fmt.Sprintf("create %s with %d groups", a.Name, a.Replicas)
}
func (a RepairCanary) String() string    { return "put back the template of " + a.Name }
func (a ScaleCanary) String() string     { return fmt.Sprintf("scale %s to %d groups", a.Name, a.Replicas) }
func (a RemoveFinalizer) String() string { return "let go of " + a.Name }
func (a DeleteCanary) String() string    { return "delete " + a.Name }
