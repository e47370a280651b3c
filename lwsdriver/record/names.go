// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strconv"
	"strings"
)

// All names that Lockstep writes on objects. Except for events, it leaves nothing else in a cluster.
const (
	// FieldManager owns the fields that the driver writes.
	FieldManager = "lockstep"
	// UndoManager owns a template that Undo restored, which shows in the history.
	UndoManager = "lockstep-undo"

	// RecordAnnotation on the stable workload holds the Record.
	RecordAnnotation = "lockstep.dev/release"
	// OwnerAnnotation on an added workload holds the namespace and the UID of the user's workload, separated by a slash. It
	// identifies an orphan: Kubernetes removes the owner reference when the user's workload is deleted with --cascade=orphan.
	OwnerAnnotation = "lockstep.dev/added-to"
	// TargetAnnotation on the workload that grows holds the Target, next to the replicas that follow from it.
	TargetAnnotation = "lockstep.dev/target"

	// WantedPartition, WantedMaxUnavailable and WantedMaxSurge on the stable workload are the values that a request had
	// when the admission policy (config/admission) replaced them with the hold. See Wanted.
	WantedPartition      = "lockstep.dev/wanted-partition"
	WantedMaxUnavailable = "lockstep.dev/wanted-max-unavailable"
	WantedMaxSurge       = "lockstep.dev/wanted-max-surge"

	// RoleLabel marks what Lockstep added: RoleCanary or RoleSnapshot.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the second workload of a release.
	RoleCanary = "canary"
	// RoleSnapshot is a ControllerRevision of the driver: a revision in the workload's history.
	RoleSnapshot = "snapshot"
	// StableLabel on an added workload or snapshot names the workload that it belongs to.
	StableLabel = "lockstep.dev/stable"
	// RevisionLabel on an added workload is the stable workload's update revision that it carries. Its own revision
	// differs if the policy adds metadata to the leader. On a snapshot it is the saved revision.
	RevisionLabel = "lockstep.dev/revision"

	// WorkloadLabel on a workload that was handed over is the name that hosts know it by. A release copies the label to
	// the objects that it adds, whose names derive from it.
	WorkloadLabel = "lockstep.dev/workload"

	// SnapshotAnnotation on a snapshot has the metadata of its revision.
	SnapshotAnnotation = "lockstep.dev/history"
	// HistoryLimitAnnotation on the stable workload is how many revisions its history keeps. The user sets it; see
	// HistoryLimit.
	HistoryLimitAnnotation = "lockstep.dev/history-limit"

	// TrafficAnnotation on an added workload holds the TrafficPolicy as protobuf JSON, so that routes can be restored
	// when the stable workload or its record is gone.
	TrafficAnnotation = "lockstep.dev/traffic"
	// ServingLabel on a leader pod of an added workload lets it receive requests: its whole group is ready.
	ServingLabel = "lockstep.dev/serving"
	// Serving is the label's only value.
	Serving = "true"

	// RolloutIDLabel and RolloutBatchLabel on a pod of an updated group are the rollout that updated it and the batch,
	// from 1. They are the labels of Kruise Rollouts, for the tools that read those.
	RolloutIDLabel    = "rollouts.kruise.io/rollout-id"
	RolloutBatchLabel = "rollouts.kruise.io/rollout-batch-id"

	// Finalizer keeps an added workload and its groups until their requests are withdrawn.
	Finalizer = "lockstep.dev/release"
)

const (
	// revisionPrefix is how many characters of a revision hash a canary's name has.
	revisionPrefix = 6

	// maxStatefulSetName is what StatefulSet's controller-revision-hash label leaves of 63 characters: "-" and a hash of
	// up to 10 follow the name. The leader StatefulSet is named like the workload, a worker StatefulSet
	// "<workload>-<index>".
	maxStatefulSetName = 52
)

// CanaryName returns the name of the second workload that carries revision, for the workload that hosts know by a name.
// It does not derive from the name of the workload's object, so that names do not grow with each handover; but it always
// differs from it.
func CanaryName(workload, object, revision string) string {
	if len(revision) > revisionPrefix {
		revision = revision[:revisionPrefix]
	}
	name := workload + "-" + revision
	if name != object || revision == "" {
		return name
	}
	// The object's revision has the same prefix: another last character makes the names differ.
	last := "x"
	if strings.HasSuffix(name, last) {
		last = "z"
	}
	return name[:len(name)-1] + last
}

// MaxStableName returns how long a workload's name may be for the names of its canary, with the given number of groups,
// to fit Kubernetes' limits.
func MaxStableName(replicas int) int {
	// The last group has the longest index.
	index := len(strconv.Itoa(max(replicas-1, 0)))
	return maxStatefulSetName - len("-") - index - len("-") - revisionPrefix
}
