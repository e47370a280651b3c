// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
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
