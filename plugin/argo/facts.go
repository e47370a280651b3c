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

// What this plugin writes on a Rollout, and nothing else.
const (
	// AnnotationRevision, on the pod template, is the workload's template revision that this template stands for. A new
	// value is what starts the Rollout. Absent: AnnotationFirst.
	AnnotationRevision = "lockstep.dev/revision"
	// AnnotationFirst, on the Rollout, is what a pod template without AnnotationRevision stands for: what the groups
	// ran when the plugin first saw both.
	AnnotationFirst = "lockstep.dev/first-revision"
	// AnnotationSeen, on the Rollout, is the workload's template revision that was last written into the pod template.
	// When the workload's is still this one and the pod template asks for another, then the Rollout was undone, not the
	// workload edited.
	AnnotationSeen = "lockstep.dev/seen-revision"
)

// annotationNumber is where Argo counts a Rollout's revisions.
const annotationNumber = "rollout.argoproj.io/revision"

// ownerPrefix begins the owner of releases that Rollouts drive.
const ownerPrefix = "argo-rollouts/"

// defaultProgressDeadline is Argo's, in seconds.
const defaultProgressDeadline = 600

// Facts are what decisions need of a Rollout. They are read alike from what the controller sends and from the API.
//
// The controller sends Rollouts as gob, which drops what points to a zero value: CurrentStepIndex 0 and Replicas 0
// arrive as nil. So nothing here depends on telling the two apart.
type Facts struct {
	Namespace, Name, UID, ResourceVersion string
	// Created tells which of two Rollouts came first.
	Created time.Time
	// Deleting is true once the Rollout is marked for deletion.
	Deleting bool
	// Number is the Rollout's revision number.
	Number string
	// Hash and Stable are the pod template hashes of the present and of the stable template. Stable is empty until the
	// first deployment is over.
	Hash, Stable string
	// Current is true when the status belongs to the present spec.
	Current bool
	// Abort and PromoteFull are what people asked for.
	Abort, PromoteFull bool
	// Index is the current step.
	Index int
	// Deadline is the Rollout's progressDeadlineSeconds.
	Deadline int32
	// Template, First and Seen are the annotations.
	Template, First, Seen string
	// Lone is true when the pod template has no other annotation than AnnotationRevision.
	Lone bool
	// Referenced is true when the pod template is that of another object, and can't be written here.
	Referenced bool
	// Begun are the releases that executed steps of this attempt have worked on.
	Begun []string
	// Rival is the name of a Rollout that came first to the same workload. Empty: none, or not known.
	Rival string
}

// ReadFacts reads a Rollout.
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
		Lone:       len(ro.Spec.Template.Annotations) == 1,
		Referenced: ro.Spec.WorkloadRef != nil,
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

// stepStatus is what a step leaves in the Rollout's status. It only ever tells who ended a release: the cluster says
// where it stands.
type stepStatus struct {
	Release string `json:"release"`
}

func (s stepStatus) encode() json.RawMessage {
	raw, _ := json.Marshal(s) //nolint:errchkjson // One string.
	return raw
}

// begun are the releases of steps that ran and were not aborted. After an abort Argo shows the statuses of the aborted
// attempt once more, to the first step of the retry.
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

// Owner is how the driver knows the Rollout.
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

// id is the id of the given attempt at the Rollout's present template.
func (f Facts) id(revision string, attempt int) ID {
	return ID{Rollout: f.short(), Number: f.Number, Hash: f.Hash, Revision: revision, Attempt: attempt}
}

// short is what of the uid goes into ids.
func (f Facts) short() string {
	return strings.ReplaceAll(f.UID, "-", "")[:min(8, len(strings.ReplaceAll(f.UID, "-", "")))]
}

// Wanted is the workload's revision that the Rollout's present template stands for. Empty: not known.
func (f Facts) Wanted() string {
	if f.Template != "" {
		return f.Template
	}
	return f.First
}

// promoted reports whether Argo takes the present template for stable, as of the present spec.
func (f Facts) promoted() bool {
	return f.Current && f.Stable != "" && f.Stable == f.Hash
}

// aborted reports whether an abort takes the release back: one that comes once Argo has taken the template for stable does not.
func (f Facts) aborted() bool { return f.Abort && !f.promoted() }

// firstDeployment reports whether the Rollout never had another template. What its workload runs then is none of its
// releases.
func (f Facts) firstDeployment() bool {
	return f.Template == "" && (f.Number == "0" || f.Number == "1")
}
