// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"k8s.io/utils/ptr"
)

// The annotations are all that this plugin writes on a Rollout.
const (
	// AnnotationRevision, on the pod template, is the workload's template revision that this template stands for. A new
	// value starts the Rollout. A number after a dot counts the starts after the first. Absent: AnnotationFirst.
	AnnotationRevision = "lockstep.dev/revision"
	// AnnotationFirst, on the Rollout, is the revision that a pod template without AnnotationRevision stands for: the one
	// that the groups ran when the plugin first observed Rollout and workload.
	AnnotationFirst = "lockstep.dev/first-revision"
	// AnnotationSeen, on the Rollout, is the workload's template revision that was last written into the pod template. If
	// the workload still has it and the pod template stands for another one, the Rollout was undone; otherwise the workload
	// was edited.
	AnnotationSeen = "lockstep.dev/seen-revision"
	// AnnotationCanary and AnnotationStable, on the Rollout, are the workload's template revision, which a release rolls out, and the
	// one that its groups ran before. Analyses read them: they are the values of the pods' label
	// leaderworkerset.sigs.k8s.io/template-revision-hash.
	AnnotationCanary = "lockstep.dev/canary-revision"
	AnnotationStable = "lockstep.dev/stable-revision"
)

// annotationNumber is Argo's own annotation with a Rollout's revision number.
const annotationNumber = "rollout.argoproj.io/revision"

// ownerPrefix begins the owner of releases that Rollouts drive.
const ownerPrefix = "argo-rollouts/"

// Facts are what decisions need of a Rollout, whether Argo's controller sent it or the API server.
//
// Argo's controller sends Rollouts as gob, which drops pointers to zero values: CurrentStepIndex 0 and Replicas 0 arrive as
// nil. So nothing here depends on the difference.
type Facts struct {
	Namespace, Name, UID string
	// Owner is the owner of the Rollout's releases, as the driver records it.
	Owner string
	// Retry is the command that begins another attempt, for messages.
	Retry string
	// Number is the Rollout's revision number.
	Number string
	// Hash and Stable identify the current and the stable template of the Rollout. Stable is empty until the first deployment
	// has ended.
	Hash, Stable string
	// Current is true when the status belongs to the current spec: it is observed, and Hash is that of its template.
	Current bool
	// StepsDone is true once no step is left, and there were some. Argo also leaves none if it takes Hash for stable.
	StepsDone bool
	// SeenAsked is true if the Controller has seen that a user or all steps asked for Hash before it was stable.
	SeenAsked bool
	// Skipped is true once Argo has skipped a step of this plugin, because its ConfigMap disables the plugin: nothing asked for the template.
	Skipped bool
	// Abort and PromoteFull are set by the commands of the same names.
	Abort, PromoteFull bool
	// Wanted is the workload's revision that the Rollout's current template stands for. It is empty if that is not known.
	Wanted string
	// Begun are the ids of the releases on which steps of this attempt have worked.
	Begun []string
	// Rival is the name of the Rollout that releases the workload instead: an older one, or the one with its last release if each knows it by
	// another name. Empty means none, or not known.
	Rival string
	// ResourceVersion is the precondition of a write.
	ResourceVersion string
	// Created is the creation time, by which the older of two Rollouts is found.
	Created time.Time
	// Deleting is true once the Rollout is marked for deletion.
	Deleting bool
	// Index is the current step.
	Index int
	// Noted are the annotations.
	Noted revisions
	// OnlyAnnotation is true when the pod template has no other annotation than AnnotationRevision.
	OnlyAnnotation bool
	// Observed is true once Argo has noted the generation, which it also does for a spec that it can't process.
	Observed bool
	// Referenced is true when the pod template is that of another object, and can't be written here.
	Referenced bool
}

// ReadFacts returns the facts of a Rollout.
func ReadFacts(ro *v1alpha1.Rollout) Facts {
	f := Facts{
		Namespace: ro.Namespace, Name: ro.Name, UID: string(ro.UID),
		Owner: ownerPrefix + ro.Namespace + "/" + ro.Name, Retry: "kubectl argo rollouts retry rollout " + ro.Name + " -n " + ro.Namespace,
		Number: cmp.Or(ro.Annotations[annotationNumber], "0"),
		Hash:   ro.Status.CurrentPodHash, Stable: ro.Status.StableRS,
		Abort: ro.Status.Abort, PromoteFull: ro.Status.PromoteFull,
		Begun:           begunReleases(&ro.Status),
		ResourceVersion: ro.ResourceVersion,
		Created:         ro.CreationTimestamp.Time, Deleting: ro.DeletionTimestamp != nil,
		Index: int(ptr.Deref(ro.Status.CurrentStepIndex, 0)),
		Noted: revisions{
			template: ro.Spec.Template.Annotations[AnnotationRevision],
			first:    ro.Annotations[AnnotationFirst], seen: ro.Annotations[AnnotationSeen],
			canary: ro.Annotations[AnnotationCanary], stable: ro.Annotations[AnnotationStable],
		},
		OnlyAnnotation: len(ro.Spec.Template.Annotations) == 1,
		Referenced:     ro.Spec.WorkloadRef != nil,
	}
	f.Skipped = slices.ContainsFunc(ro.Status.Canary.StepPluginStatuses, func(s v1alpha1.StepPluginStatus) bool { return s.Disabled && s.Name == PluginName })
	f.Observed = ro.Status.ObservedGeneration == strconv.FormatInt(ro.Generation, 10)
	f.Current = f.Observed && !isInvalidSpec(ro)
	f.Wanted = f.Noted.standsFor()
	if canary := ro.Spec.Strategy.Canary; canary != nil {
		f.StepsDone = len(canary.Steps) > 0 && f.Index >= len(canary.Steps)
	}
	return f
}

// isInvalidSpec reports whether Argo can't process the spec. It calls no plugin then, and keeps the status of an older spec.
func isInvalidSpec(ro *v1alpha1.Rollout) bool {
	return slices.ContainsFunc(ro.Status.Conditions, func(c v1alpha1.RolloutCondition) bool { return c.Type == v1alpha1.InvalidSpec })
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

// begunReleases returns the releases of steps that ran and were not aborted. After an abort, Argo sends the statuses of the aborted
// attempt once more with the first step of the retry. A step in phase Error is aborted without a status of its own, but the time of the abort is
// sent as well.
func begunReleases(ro *v1alpha1.RolloutStatus) []string {
	if ro.AbortedAt != nil {
		return nil
	}
	var ids []string
	for _, s := range ro.Canary.StepPluginStatuses {
		var status stepStatus
		if s.Name != PluginName || s.Operation != v1alpha1.StepPluginOperationRun ||
			json.Unmarshal(s.Status, &status) != nil || status.Release == "" {
			continue
		}
		ids = append(ids, status.Release)
	}
	return ids
}

// ownerOf returns the Rollout that an owner names.
func ownerOf(owner string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(owner, ownerPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}
