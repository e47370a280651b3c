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

// Decision is the next write and the state of the workload.
type Decision struct {
	// Action is the next write. Nil means nothing to write until something changes.
	Action Action
	// State, Reason and Message are reported to hosts.
	State           pb.State
	Reason, Message string
	// Recheck is when time alone will change the decision. Zero means never.
	Recheck time.Duration
	// Wait is what it waits for without an Action, Since when that began, if an object tells. Zero means since [Waiting].
	Wait  Wait
	Since time.Time
	// Remedy is what to do if that lasts too long. Empty means a general one.
	Remedy string
	// Waiting is to be kept for the next observation, and record what the record is to have of it.
	Waiting Waiting
	record  record.Waiting
	// Overwritten says which other client overwrote what the decision repairs. Empty means none that is known.
	Overwritten string
	// Deadline is when the release fails without further progress. Zero means that it waits for nothing.
	Deadline time.Time
	// Progress is what was counted.
	Progress Progress
	// Effects are what the engine keeps doing until the next decision. The next observations have the results.
	Effects Effects
	// InFlight is how many groups the release has in flight, and Starts how many more the Action puts there. See admission.go.
	InFlight, Starts int
	// Warnings are for the caller whose intent was decided. They do not refuse it.
	Warnings []*pb.Warning
}

// writeStable returns the decision for a write of the user's workload, which describes itself.
func writeStable(a SetStable, reason string) Decision {
	return Decision{Action: a, Reason: reason, Message: a.Why}
}

// nameReverter has a decision say which field manager has changed what it repairs, if that is known and another one.
func (d Decision) nameReverter(what, by string) Decision {
	if by == "" || by == record.FieldManager {
		return d
	}
	d.Overwritten = by + " has changed " + what
	d.Remedy = fmt.Sprintf("Keep %s from changing %s", by, what)
	d.Message += "; " + d.Overwritten
	return d
}

// Reasons of a Decision. They are part of the contract: hosts and users match on them.
const (
	ReasonNotAdopted          = "NotAdopted"
	ReasonHoldWithoutRecord   = "HoldWithoutRecord"
	ReasonHeld                = "Held"
	ReasonNewRevisionWaits    = "NewRevisionWaits"
	ReasonHoldDrifted         = "HoldDrifted"
	ReasonWaitingForLWS       = "WaitingForLeaderWorkerSet"
	ReasonCreatingCanary      = "CreatingCanary"
	ReasonNewRevision         = "NewRevision"
	ReasonCanaryDeleted       = "CanaryDeleted"
	ReasonCanaryDrifted       = "CanaryDrifted"
	ReasonScaling             = "Scaling"
	ReasonNoBatch             = "WaitingForFirstBatch"
	ReasonGroupsNotReady      = "GroupsNotReady"
	ReasonMinReady            = "WaitingForMinReady"
	ReasonBatchReady          = "BatchReady"
	ReasonDeadline            = "ProgressDeadlineExceeded"
	ReasonRolling             = "StableRolling"
	ReasonCleaningUp          = "CanaryTerminating"
	ReasonPromoted            = "Promoted"
	ReasonRolledBack          = "RolledBack"
	ReasonNothing             = "NothingToRelease"
	ReasonMixedRevisions      = "MixedRevisions"
	ReasonRestarting          = "RestartingGroups"
	ReasonScaleDownDelay      = "WaitingForScaleDownDelay"
	ReasonOpening             = "EndingTrafficSplit"
	ReasonDraining            = "Draining"
	ReasonLabelling           = "LabellingLeaders"
	ReasonTemplateRestored    = "StableTemplateRestored"
	ReasonDeleting            = "WorkloadDeleting"
	ReasonScaledToZero        = "ScaledToZero"
	ReasonUnreleased          = "UnreleasedRevision"
	ReasonStableShrunk        = "StableCapacityReduced"
	ReasonNewerDriver         = "NewerDriver"
	ReasonWaitingForAdmission = "WaitingForAdmission"
	ReasonStyleNotSupported   = "StyleNotSupported"
	ReasonTemplateRefused     = "TemplateUnsupported"
	ReasonCacheStale          = "CacheStale"
	ReasonInvariantViolation  = "InvariantViolation"
)

// ReasonTwoRevisions is the reason of a group whose pods LWS built from two revisions.
const ReasonTwoRevisions = "BuiltFromTwoRevisions"

// Action is one write. The set is closed: apply has a case for each.
type Action interface {
	fmt.Stringer
	action()
}

// SetStable writes the record and the rolling update configuration of the user's workload in one request, so that the
// intent and its first effect are atomic.
type SetStable struct {
	Record record.Record
	// Rolling is the configuration to set. Nil means unchanged.
	Rolling *lws.RollingUpdateConfiguration
	// SaveTemplate adds the stable revision's template to the record, in the same request.
	SaveTemplate bool
	// RestoreTemplate writes the template in the record to the spec.
	RestoreTemplate bool
	// Replicas is the number of groups to set. Nil means unchanged.
	Replicas *int
	// Why describes the write in events and logs.
	Why string
}

// RestartGroup deletes the leader of a group of the user's workload; LWS then recreates the whole group.
type RestartGroup struct{ Leader string }

// RemoveRecord removes the record and restores the user's rolling update configuration. Only Disown requests it.
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

// RepairCanary restores the template of an added workload after an edit by another client.
type RepairCanary struct{ Name string }

// ScaleCanary sets the number of groups of an added workload, and the target that asks for them.
type ScaleCanary struct {
	Name     string
	Replicas int
	Target   *record.Target
}

// RemoveFinalizer removes the driver's finalizer from an added workload.
type RemoveFinalizer struct{ Name string }

// DeleteCanary deletes an added workload and all its groups.
type DeleteCanary struct{ Name string }

// SetTraffic makes the next write towards the desired routing.
type SetTraffic struct {
	Desired traffic.Desired
	// Why describes the write in events and logs.
	Why string
}

// LabelServing sets or removes the label that lets a leader of an updated group receive requests.
type LabelServing struct {
	// Name is the added workload, or the user's own in place. Leader is the pod.
	Name, Leader string
	Serves       bool
}

func (SetStable) action()       {}
func (RestartGroup) action()    {}
func (SetTraffic) action()      {}
func (LabelServing) action()    {}
func (RemoveRecord) action()    {}
func (CreateCanary) action()    {}
func (RepairCanary) action()    {}
func (ScaleCanary) action()     {}
func (RemoveFinalizer) action() {}
func (DeleteCanary) action()    {}

func (a SetTraffic) String() string { return a.Why }
func (a LabelServing) String() string {
	if a.Serves {
		return fmt.Sprintf("label leader %s as serving, since its group is ready", a.Leader)
	}
	return fmt.Sprintf("remove the serving label from leader %s", a.Leader)
}
func (a SetStable) String() string { return a.Why }
func (a RestartGroup) String() string {
	return "restart the group of " + a.Leader
}
func (RemoveRecord) String() string {
	return "remove the record and restore the user's rolling update configuration"
}
func (a CreateCanary) String() string {
	return fmt.Sprintf("create %s with %s", a.Name, Counted(a.Replicas, "group", "groups"))
}
func (a RepairCanary) String() string { return "restore the template of " + a.Name }
func (a ScaleCanary) String() string {
	return fmt.Sprintf("scale %s to %s", a.Name, Counted(a.Replicas, "group", "groups"))
}
func (a RemoveFinalizer) String() string { return "remove the finalizer from " + a.Name }
func (a DeleteCanary) String() string    { return "delete " + a.Name }

// Counted returns a number with the noun in the form that fits it, as in "1 group" and "2 groups".
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
