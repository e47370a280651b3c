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
	// Standing is what was counted.
	Standing Standing
	// Warnings are for the caller whose intent was decided on. They refuse nothing.
	Warnings []*pb.Warning
}

// Standing is how many groups are where. All counts are groups.
type Standing struct {
	// Planned is what the target means at today's replicas.
	Planned int `json:"planned,omitzero"`
	// Desired is what the cluster is asked for at this moment.
	Desired int `json:"desired,omitzero"`
	// Updated exist at the update revision; UpdatedReady of them are ready, for minReady. While batches run these are
	// the added groups, in place and from promotion on the workload's own.
	Updated      int `json:"updated,omitzero"`
	UpdatedReady int `json:"updatedReady,omitzero"`
	// StableReady are ready at the stable revision.
	StableReady int `json:"stableReady,omitzero"`
	// Total exist, at any revision.
	Total int `json:"total,omitzero"`
	// Threshold of the planned groups may be unready.
	Threshold int `json:"threshold,omitzero"`
	// Weight is the percentage of requests that go to the update revision: what the routes ask for if Routed, or else
	// the share of ready leaders that run it.
	Weight int  `json:"weight,omitzero"`
	Routed bool `json:"routed,omitzero"`
	// ProgressAt is when the last new group became ready, or the target or phase changed.
	ProgressAt time.Time `json:"progressAt,omitzero"`

	// ready are the groups of the goal that are ready, however shortly; available those that are for minReady.
	ready, available int
	// lost is when each of the others was lost, the earliest first; zero for one that was never there.
	lost []time.Time
	// stuck is the one of them that is at fault if nothing else becomes ready. Nil: none.
	stuck *Group
	// nextReady is when the next group will have been ready for minReady. Zero: none is on its way.
	nextReady time.Duration
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
