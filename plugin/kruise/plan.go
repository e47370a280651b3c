// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Finalizer keeps a RolloutTarget until its workload is disowned.
const Finalizer = "lockstep.dev/kruise"

// AnnotationRevision on the target's template is the revision of the workload's template. Kruise's webhook reacts to a new
// value.
const AnnotationRevision = "lockstep.dev/template-revision"

// What Kruise writes and reads on a workload.
const (
	// annotationProgressing exists while a Rollout is in progress on the target.
	annotationProgressing = "rollouts.kruise.io/in-progressing"
	// annotationControl refers to the BatchRelease in progress on the target.
	annotationControl = "batchrelease.rollouts.kruise.io/control-info"
	// labelWorkloadType lets Kruise's webhook and controllers handle the target as a StatefulSet.
	labelWorkloadType = "rollouts.kruise.io/workload-type"
	// labelRolloutID is copied from the workload, where users set it together with the template.
	labelRolloutID = "rollouts.kruise.io/rollout-id"
)

// kruiseHold is the partition with which Kruise's webhook holds a workload.
const kruiseHold = 32767

// Labels of pods.
const (
	labelName        = "leaderworkerset.sigs.k8s.io/name"
	labelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"
	labelRevision    = "leaderworkerset.sigs.k8s.io/template-revision-hash"
)

// ownerPrefix begins the owner of releases of targets.
const ownerPrefix = "kruise-rollouts/"

// Workload has what is not in the driver's BatchContext.
type Workload struct {
	// Deleting is true once the workload is marked for deletion.
	Deleting bool
	// RolloutID is the workload's label.
	RolloutID string
}

// View is everything that a decision needs.
type View struct {
	// Target is the observed RolloutTarget.
	Target *v1alpha1.RolloutTarget
	// Workload is nil if it does not exist.
	Workload *Workload
	// Rival is an older target of the same workload. Empty: none.
	Rival string
	// Successor is true if there is a younger target, which would take over the workload.
	Successor bool
	// Context is the driver's, with groups. It is nil if and only if Workload is.
	Context *pb.BatchContext
	// Revisions maps the workload's template revisions to the controller revisions of leader pods.
	Revisions map[string]string
}

// action is a kind of move.
type action int

const (
	// actNone writes the target's status only.
	actNone action = iota
	actAddFinalizer
	actRemoveFinalizer
	actAdopt
	// actMirror writes the target's spec and labels.
	actMirror
	// actScale writes the workload's replicas.
	actScale
	actInitialize
	actUpgrade
	actPromote
	actRollback
	actDisown
)

// move is an action with its arguments.
type move struct {
	action action
	// why is logged.
	why string
	// groups is the target of actUpgrade, or the replicas of actScale.
	groups int32
	// release is the id of actInitialize.
	release string
	// status is the target's new status, with actNone.
	status v1alpha1.RolloutTargetStatus
}

// plan decides the next move.
func plan(v View) move {
	t := v.Target
	switch {
	case t.DeletionTimestamp != nil:
		return finalizeDeleted(v)
	case v.Rival != "":
		return notReady(v, "WorkloadTaken", fmt.Sprintf(
			"RolloutTarget %s of LeaderWorkerSet %s is older: delete one of the two", v.Rival, t.Spec.WorkloadRef.Name))
	case v.Workload == nil:
		return notReady(v, "WorkloadNotFound", fmt.Sprintf(
			"LeaderWorkerSet %s does not exist in namespace %s; it is adopted when it is created", t.Spec.WorkloadRef.Name, t.Namespace))
	case v.Workload.Deleting:
		return notReady(v, "WorkloadDeleting", fmt.Sprintf("LeaderWorkerSet %s is being deleted", t.Spec.WorkloadRef.Name))
	case !hasFinalizer(t):
		return move{action: actAddFinalizer, why: "the workload is disowned before this target is deleted"}
	case v.Context.GetState() == pb.State_STATE_UNMANAGED:
		return move{action: actAdopt, why: "adopting the workload"}
	case plugin.InFlight(v.Context) && !ours(v):
		return notReady(v, "ReleaseOfAnother", fmt.Sprintf("release %s of %q holds LeaderWorkerSet %s: finalize it, or wait for its end",
			v.Context.GetReleaseId(), v.Context.GetOwner(), t.Spec.WorkloadRef.Name))
	case v.Context.GetTemplateRevision() == "":
		return notReady(v, "WaitingForLWS", v.Context.GetMessage())
	}
	if m := syncTarget(v); m.action != actNone {
		return m
	}
	if m := followPartition(v); m.action != actNone {
		return m
	}
	return move{status: statusOf(v)}
}

func hasFinalizer(t *v1alpha1.RolloutTarget) bool {
	for _, f := range t.Finalizers {
		if f == Finalizer {
			return true
		}
	}
	return false
}

// owner returns the owner of the target's releases, as the driver records it.
func owner(t *v1alpha1.RolloutTarget) string { return ownerPrefix + t.Namespace + "/" + t.Name }

// ours reports whether this target began the last release.
func ours(v View) bool { return v.Context.GetOwner() == owner(v.Target) }

// finalizeDeleted is plan for a target that is being deleted: its release is rolled back, unless onDeletion is Promote, and the
// workload is disowned, unless its template waits.
func finalizeDeleted(v View) move {
	c := v.Context
	done := move{action: actRemoveFinalizer, why: "the target's release has ended and its workload is disowned"}
	if !hasFinalizer(v.Target) {
		return move{status: v.Target.Status}
	}
	switch {
	case v.Workload == nil, v.Workload.Deleting, v.Rival != "", c.GetState() == pb.State_STATE_UNMANAGED:
		return done
	case plugin.InFlight(c) && !ours(v):
		return done
	case plugin.Ending(c):
		return notReady(v, "Deleting", "the release ends before the workload is disowned: "+c.GetMessage())
	case plugin.InFlight(c) && v.Target.Spec.OnDeletion == v1alpha1.OnDeletionPromote:
		return move{action: actPromote, why: "the target is being deleted, and its onDeletion is Promote: completing its release"}
	case plugin.InFlight(c):
		return move{action: actRollback, why: "the target is being deleted: rolling back its release"}
	case v.Successor:
		done.why = "another target takes over the workload, under hold"
		return done
	case plugin.Waits(c):
		done.why = fmt.Sprintf("the workload stays under hold: its template (revision %s) waits, and LeaderWorkerSet would roll it out at once. "+
			"Release it, or restore the template of revision %s, and then: lockstep disown %s", c.GetTemplateRevision(), plugin.Serving(c), v.Target.Spec.WorkloadRef.Name)
		return done
	default:
		return move{action: actDisown, why: "the target is being deleted: disowning the workload"}
	}
}

// syncTarget copies the workload to the target's spec, and the target's replicas to the workload if the target was scaled.
func syncTarget(v View) move {
	spec, replicas := v.Target.Spec, v.Context.GetReplicas()
	last := v.Target.Status.WorkloadReplicas
	if spec.Replicas != nil && last != nil && *spec.Replicas != *last && replicas == *last {
		return move{action: actScale, groups: *spec.Replicas, why: fmt.Sprintf("the target was scaled to %d groups", *spec.Replicas)}
	}
	if mirrored(v) {
		return move{}
	}
	return move{action: actMirror, why: "the target follows the workload, revision " + v.Context.GetTemplateRevision()}
}

// mirrored reports whether mirror would change nothing.
func mirrored(v View) bool {
	t, want := v.Target, v.Target.DeepCopy()
	mirror(v, want)
	return maps.Equal(t.Labels, want.Labels) && ptr.Equal(t.Spec.Replicas, want.Spec.Replicas) && templateOf(t) == templateOf(want) &&
		metav1.FormatLabelSelector(t.Spec.Selector) == metav1.FormatLabelSelector(want.Spec.Selector) && t.Spec.UpdateStrategy != nil
}

// mirror copies the workload to the target.
func mirror(v View, t *v1alpha1.RolloutTarget) {
	metav1.SetMetaDataLabel(&t.ObjectMeta, labelWorkloadType, "statefulset")
	if id := v.Workload.RolloutID; id != "" {
		metav1.SetMetaDataLabel(&t.ObjectMeta, labelRolloutID, id)
	} else {
		delete(t.Labels, labelRolloutID)
	}
	t.Spec.Replicas = ptr.To(v.Context.GetReplicas())
	t.Spec.Selector = leaders(t.Spec.WorkloadRef.Name)
	t.Spec.Template = &v1alpha1.Template{Metadata: v1alpha1.TemplateMetadata{
		Annotations: map[string]string{AnnotationRevision: v.Context.GetTemplateRevision()},
	}}
	if t.Spec.UpdateStrategy == nil {
		t.Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Type: "RollingUpdate"}
	}
}

// leaders returns a selector of the workload's leader pods.
func leaders(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{labelName: name, labelWorkerIndex: "0"}}
}

// templateOf returns the workload's revision that the target's template stands for.
func templateOf(t *v1alpha1.RolloutTarget) string {
	if t.Spec.Template == nil {
		return ""
	}
	return t.Spec.Template.Metadata.Annotations[AnnotationRevision]
}

// wanted returns the target of groups at the template's revision, and whether the partition is gone, so that the release is to be
// promoted.
func wanted(v View) (groups int32, promote bool) {
	t := v.Target
	replicas := v.Context.GetReplicas()
	partition := partitionOf(t)
	progressing := t.Annotations[annotationProgressing] != "" || t.Annotations[annotationControl] != ""
	switch {
	case partition == nil, *partition == 0 && !progressing:
		return replicas, true
	case *partition >= kruiseHold:
		return 0, false
	default:
		return max(replicas-*partition, 0), false
	}
}

func partitionOf(t *v1alpha1.RolloutTarget) *int32 {
	if t.Spec.UpdateStrategy == nil || t.Spec.UpdateStrategy.RollingUpdate == nil {
		return nil
	}
	return t.Spec.UpdateStrategy.RollingUpdate.Partition
}

func paused(t *v1alpha1.RolloutTarget) bool {
	return t.Spec.UpdateStrategy != nil && t.Spec.UpdateStrategy.RollingUpdate != nil && t.Spec.UpdateStrategy.RollingUpdate.Paused
}

// followPartition moves the release to what the partition wants. The target already has the workload's current template.
func followPartition(v View) move {
	c := v.Context
	inFlight, template := plugin.InFlight(c), c.GetTemplateRevision()
	groups, promote := wanted(v)
	switch {
	case paused(v.Target), groups == 0 && !promote:
		return move{}
	case !inFlight && (!plugin.Waits(c) || c.GetTotal() == 0):
		return move{} // Nothing to release, or no group yet.
	case !inFlight:
		return begin(v)
	case plugin.Ending(c), template != c.GetUpdateRevision():
		return move{} // The driver ends the release, or moves to the new template.
	case promote:
		return move{action: actPromote, why: "the partition was removed: completing the release"}
	case c.GetPlanned() < groups:
		return move{action: actUpgrade, groups: groups, why: fmt.Sprintf("the partition allows %d updated groups", groups)}
	default:
		return move{}
	}
}

// begin begins a release, unless it has been rolled back by hand.
func begin(v View) move {
	id := releaseID(v.Target)
	if v.Context.GetReleaseId() == id {
		return move{}
	}
	return move{action: actInitialize, release: id, why: "releasing revision " + v.Context.GetTemplateRevision()}
}

// releaseID returns an id that changes with the target's spec, so that a release that was rolled back by hand does not begin again
// until the spec changes.
func releaseID(t *v1alpha1.RolloutTarget) string {
	uid := strings.ReplaceAll(string(t.UID), "-", "")
	return fmt.Sprintf("kruise-%s-%d", uid[:min(8, len(uid))], t.Generation)
}
