// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strconv"
	"strings"
)

// What Lockstep writes on objects. Nothing else of it is ever found in a cluster, but for events.
const (
	// FieldManager owns the fields that the driver writes.
	FieldManager = "lockstep"
	// UndoManager owns a template that Undo brought back, so that the history can say so.
	UndoManager = "lockstep-undo"

	// RecordAnnotation on the stable workload holds the Record.
	RecordAnnotation = "lockstep.dev/release"
	// TargetAnnotation on the workload that grows holds the Target, beside the number that it sets.
	TargetAnnotation = "lockstep.dev/target"

	// WantedPartition, WantedMaxUnavailable and WantedMaxSurge on the stable workload are what its user asked for when
	// the admission policy (config/admission) put the hold in its place. See Wanted.
	WantedPartition      = "lockstep.dev/wanted-partition"
	WantedMaxUnavailable = "lockstep.dev/wanted-max-unavailable"
	WantedMaxSurge       = "lockstep.dev/wanted-max-surge"

	// RoleLabel marks what a release added, RoleCanary or RoleBudget, and RoleSnapshot.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the second workload of a release.
	RoleCanary = "canary"
	// RoleBudget is a PodDisruptionBudget of a release.
	RoleBudget = "budget"
	// RoleSnapshot is a ControllerRevision of the driver's: a template in the workload's history.
	RoleSnapshot = "snapshot"
	// StableLabel on an added workload, budget or snapshot names the workload that it was added to.
	StableLabel = "lockstep.dev/stable"
	// RevisionLabel on an added workload is the stable workload's update revision that it carries. Its own revision
	// differs as soon as the policy adds metadata to the leader. On a snapshot it is the revision that is kept.
	RevisionLabel = "lockstep.dev/revision"

	// WorkloadLabel on a workload that was adopted is the name that hosts know it by. A release of it copies the label to
	// what it adds, whose name follows from it.
	WorkloadLabel = "lockstep.dev/workload"

	// SnapshotAnnotation on a snapshot says what is known of it beside its template.
	SnapshotAnnotation = "lockstep.dev/history"
	// HistoryLimitAnnotation on the stable workload is how many revisions its history keeps. Its user sets it; see
	// HistoryLimit.
	HistoryLimitAnnotation = "lockstep.dev/history-limit"

	// TrafficAnnotation on an added workload holds the TrafficPolicy as protobuf JSON: who finds that workload without
	// its stable one must still be able to give the routes back.
	TrafficAnnotation = "lockstep.dev/traffic"
	// ServingLabel on a leader pod of an added workload lets requests go to it: its whole group is ready.
	ServingLabel = "lockstep.dev/serving"
	// Serving is the label's only value.
	Serving = "true"

	// RolloutIDLabel and RolloutBatchLabel on a pod of an updated group say which rollout updated it, and in which of its
	// batches, from 1. They are Kruise Rollouts', so that what reads those reads ours.
	RolloutIDLabel    = "rollouts.kruise.io/rollout-id"
	RolloutBatchLabel = "rollouts.kruise.io/rollout-batch-id"

	// Finalizer keeps an added workload, and so its groups, until traffic has left them.
	Finalizer = "lockstep.dev/release"
)

const (
	// revisionPrefix is how much of a revision hash goes into a canary's name.
	revisionPrefix = 6

	// maxStatefulSetName is what StatefulSet's controller-revision-hash label leaves of 63 characters: "-" and a hash
	// of up to 10 follow the name. The leader StatefulSet is named like the workload, a worker one "<workload>-<index>".
	maxStatefulSetName = 52
)

// CanaryName is the name of the second workload that carries revision for the workload that hosts know by a name. It does
// not depend on what the workload's object is called, so that names do not grow with each second set that is adopted; but
// for this: it is never that object's own.
func CanaryName(workload, object, revision string) string {
	if len(revision) > revisionPrefix {
		revision = revision[:revisionPrefix]
	}
	name := workload + "-" + revision
	if name != object || revision == "" {
		return name
	}
	// Two revisions that begin alike, and the object has the name of one: another last character keeps them apart.
	last := "x"
	if strings.HasSuffix(name, last) {
		last = "z"
	}
	return name[:len(name)-1] + last
}

// BudgetName is the name of the PodDisruptionBudget that a release keeps over leaders, or over workers.
func BudgetName(stable string, workers bool) string {
	if workers {
		return stable + "-lockstep-workers"
	}
	return stable + "-lockstep-leaders"
}

// MaxStableName is the length up to which a workload's canary of the given number of groups still fits Kubernetes'
// limits on names.
func MaxStableName(replicas int) int {
	index := len(strconv.Itoa(max(replicas-1, 0)))
	return maxStatefulSetName - len("-") - index - len("-") - revisionPrefix
}
