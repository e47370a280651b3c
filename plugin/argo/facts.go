// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// The annotations are all that this plugin writes on a Rollout.
const (
	// AnnotationRevision, on the pod template, is the workload's template revision that this template stands for. A new
	// value starts the Rollout. Absent: AnnotationFirst.
	AnnotationRevision = "lockstep.dev/revision"
	// AnnotationFirst, on the Rollout, is the revision that a pod template without AnnotationRevision stands for: the one
	// that the groups ran when the plugin first observed Rollout and workload.
	AnnotationFirst = "lockstep.dev/first-revision"
	// AnnotationSeen, on the Rollout, is the workload's template revision that was last written into the pod template. If
	// the workload still has it and the pod template stands for another one, the Rollout was undone; otherwise the workload
	// was edited.
	AnnotationSeen = "lockstep.dev/seen-revision"
)

// annotationNumber is Argo's own annotation with a Rollout's revision number.
const annotationNumber = "rollout.argoproj.io/revision"

// ownerPrefix begins the owner of releases that Rollouts drive.
const ownerPrefix = "argo-rollouts/"

// defaultProgressDeadline is Argo's, in seconds.
const defaultProgressDeadline = 600

// Facts are what decisions need of a Rollout, whether Argo's controller sent it or the API server.
//
// Argo's controller sends Rollouts as gob, which drops pointers to zero values: CurrentStepIndex 0 and Replicas 0 arrive as
// nil. So nothing here depends on the difference.
type Facts struct {
	Namespace, Name, UID, ResourceVersion string
	// Created is the creation time, by which the older of two Rollouts is found.
	Created time.Time
	// Deleting is true once the Rollout is marked for deletion.
	Deleting bool
	// Number is the Rollout's revision number.
	Number string
	// Hash and Stable are the pod template hashes of the current and of the stable template. Stable is empty until the
	// first deployment has ended.
	Hash, Stable string
	// Current is true when the status belongs to the current spec.
	Current bool
	// Abort and PromoteFull are set by the commands of the same names.
	Abort, PromoteFull bool
	// Index is the current step.
	Index int
	// Deadline is the Rollout's progressDeadlineSeconds.
	Deadline int32
	// Template, First and Seen are the annotations.
	Template, First, Seen string
	// OnlyAnnotation is true when the pod template has no other annotation than AnnotationRevision.
	OnlyAnnotation bool
	// Referenced is true when the pod template is that of another object, and can't be written here.
	Referenced bool
	// Begun are the ids of the releases on which steps of this attempt have worked.
	Begun []string
	// Rival is the name of an older Rollout of the same workload. Empty: none, or not known.
	Rival string
}

// ReadFacts returns the facts of a Rollout.
func ReadFacts(ro *v1alpha1.Rollout) Facts {
	f := Facts{
		Namespace: ro.Namespace, Name: ro.Name, UID: string(ro.UID), ResourceVersion: ro.ResourceVersion,
		Created: ro.CreationTimestamp.Time, Deleting: ro.DeletionTimestamp != nil,
		Number: ro.Annotations[annotationNumber],
		Hash:   ro.Status.CurrentPodHash, Stable: ro.Status.StableRS,
		Current: ro.Status.ObservedGeneration == strconv.FormatInt(ro.Generation, 10),
		Abort:   ro.Status.Abort, PromoteFull: ro.Status.PromoteFull,
		Deadline: defaultProgressDeadline,
		Template: ro.Spec.Template.Annotations[AnnotationRevision],
		First:    ro.Annotations[AnnotationFirst], Seen: ro.Annotations[AnnotationSeen],
		OnlyAnnotation: len(ro.Spec.Template.Annotations) == 1,
		Referenced:     ro.Spec.WorkloadRef != nil,
	}
	if f.Number == "" {
		f.Number = "0"
	}
	if ro.Status.CurrentStepIndex != nil {
		f.Index = int(*ro.Status.CurrentStepIndex)
	}
	if ro.Spec.ProgressDeadlineSeconds != nil {
		f.Deadline = *ro.Spec.ProgressDeadlineSeconds
	}
	f.Begun = begun(ro.Status.Canary.StepPluginStatuses)
	return f
}

// stepStatus is what a step stores in the Rollout's status. It is read only to find out who ended a release: the state of the
// release is in the cluster.
type stepStatus struct {
	Release string `json:"release"`
}

func (s stepStatus) encode() json.RawMessage {
	raw, _ := json.Marshal(s) //nolint:errchkjson // One string.
	return raw
}

// begun returns the releases of steps that ran and were not aborted. After an abort, Argo sends the statuses of the aborted
// attempt once more with the first step of the retry.
func begun(statuses []v1alpha1.StepPluginStatus) []string {
	aborted := map[int32]bool{}
	for _, s := range statuses {
		if s.Operation == v1alpha1.StepPluginOperationAbort {
			aborted[s.Index] = true
		}
	}
	var ids []string
	for _, s := range statuses {
		var status stepStatus
		if s.Name != PluginName || s.Operation != v1alpha1.StepPluginOperationRun || aborted[s.Index] ||
			json.Unmarshal(s.Status, &status) != nil || status.Release == "" {
			continue
		}
		ids = append(ids, status.Release)
	}
	return ids
}

// Owner returns the owner of the Rollout's releases, as the driver records it.
func (f Facts) Owner() string {
	return ownerPrefix + f.Namespace + "/" + f.Name
}

// ownerOf returns the Rollout that an owner names.
func ownerOf(owner string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(owner, ownerPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// id returns the id of an attempt to release the Rollout's current template.
func (f Facts) id(revision string, attempt int) ID {
	return ID{Rollout: f.short(), Number: f.Number, Hash: f.Hash, Revision: revision, Attempt: attempt}
}

// short returns the part of the uid that ids have.
func (f Facts) short() string {
	return strings.ReplaceAll(f.UID, "-", "")[:min(8, len(strings.ReplaceAll(f.UID, "-", "")))]
}

// Wanted returns the workload's revision that the Rollout's current template stands for. Empty: not known.
func (f Facts) Wanted() string {
	if f.Template != "" {
		return f.Template
	}
	return f.First
}

// promoted reports whether Argo considers the current template stable, as of the current spec.
func (f Facts) promoted() bool {
	return f.Current && f.Stable != "" && f.Stable == f.Hash
}

// aborted reports whether an abort rolls the release back: not once Argo considers the template stable.
func (f Facts) aborted() bool { return f.Abort && !f.promoted() }

// firstDeployment reports whether the Rollout never had another template. What its workload runs then was not released by the
// Rollout.
func (f Facts) firstDeployment() bool {
	return f.Template == "" && (f.Number == "0" || f.Number == "1")
}
