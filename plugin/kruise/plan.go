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

// Finalizer keeps a RolloutTarget until its workload is given back.
const Finalizer = "lockstep.dev/kruise"

// AnnotationRevision is, on the target's template, the revision that LeaderWorkerSet gave the workload's template. A new
// value is what Kruise's webhook notices.
const AnnotationRevision = "lockstep.dev/template-revision"

// What Kruise writes and reads on a workload.
const (
	// annotationProgressing is there while a Rollout is at work on the target.
	annotationProgressing = "rollouts.kruise.io/in-progressing"
	// annotationControl refers to the BatchRelease that is.
	annotationControl = "batchrelease.rollouts.kruise.io/control-info"
	// labelWorkloadType has Kruise's webhook and controllers take the target for a StatefulSet.
	labelWorkloadType = "rollouts.kruise.io/workload-type"
	// labelRolloutID is copied from the workload, where people set it together with the template.
	labelRolloutID = "rollouts.kruise.io/rollout-id"
)

// kruiseHold is the partition by which Kruise's webhook holds a workload.
const kruiseHold = 32767

// Labels of pods.
const (
	labelName        = "leaderworkerset.sigs.k8s.io/name"
	labelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"
	labelRevision    = "leaderworkerset.sigs.k8s.io/template-revision-hash"
)

// ownerPrefix begins the owner of releases that targets ask for.
const ownerPrefix = "kruise-rollouts/"

// Workload is what is read of the LeaderWorkerSet itself; the rest is in the driver's BatchContext.
type Workload struct {
	// Deleting is true once it is marked for deletion.
	Deleting bool
	// RolloutID is its label.
	RolloutID string
}

// View is everything that a decision needs.
type View struct {
	// Target is the RolloutTarget as it is.
	Target *v1alpha1.RolloutTarget
	// Workload is nil while there is none.
	Workload *Workload
	// Rival is an older target of the same workload. Empty: none.
	Rival string
	// Successor is true if another target is there that would take over the workload.
	Successor bool
	// Context is the driver's, with groups. Nil exactly if Workload is.
	Context *pb.BatchContext
	// Revisions tells the controller revision of leader pods by the workload's template revision.
	Revisions map[string]string
}

// action is one thing to do.
type action int

const (
	// actNone: all is as it should be, and the status says so.
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
	actDisown
)

// move is what to do next. Its status holds while there is nothing to do.
type move struct {
	action action
	// why is logged.
	why string
	// groups is the target of actUpgrade, or the replicas of actScale.
	groups int32
	// release is the id of actInitialize.
	release string
	// status is what the target's becomes with actNone.
	status v1alpha1.RolloutTargetStatus
}

// plan decides what to do next.
func plan(v View) move {
	t := v.Target
	switch {
	case t.DeletionTimestamp != nil:
		return leave(v)
	case v.Rival != "":
		return notReady(v, "WorkloadTaken", fmt.Sprintf(
			"RolloutTarget %s was there first for LeaderWorkerSet %s: delete one of the two", v.Rival, t.Spec.WorkloadRef.Name))
	case v.Workload == nil:
		return notReady(v, "WorkloadNotFound", fmt.Sprintf(
			"there is no LeaderWorkerSet %s in namespace %s; it is taken up when it appears", t.Spec.WorkloadRef.Name, t.Namespace))
	case v.Workload.Deleting:
		return notReady(v, "WorkloadDeleting", fmt.Sprintf("LeaderWorkerSet %s is being deleted", t.Spec.WorkloadRef.Name))
	case !hasFinalizer(t):
		return move{action: actAddFinalizer, why: "the workload is to be given back when this target goes"}
	case v.Context.GetState() == pb.State_STATE_UNMANAGED:
		return move{action: actAdopt, why: "holding the workload from now on"}
	case plugin.InFlight(v.Context) && !ours(v):
		return notReady(v, "ReleaseOfAnother", fmt.Sprintf("release %s of %q holds LeaderWorkerSet %s: finalize it, or wait until it is over",
			v.Context.GetReleaseId(), v.Context.GetOwner(), t.Spec.WorkloadRef.Name))
	case v.Context.GetTemplateRevision() == "":
		return notReady(v, "WaitingForLWS", v.Context.GetMessage())
	}
	if m := replicate(v); m.action != actNone {
		return m
	}
	if m := pursue(v); m.action != actNone {
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

// owner is how the driver knows the target.
func owner(t *v1alpha1.RolloutTarget) string { return ownerPrefix + t.Namespace + "/" + t.Name }

// ours reports whether the release in the context is one that this target asked for.
func ours(v View) bool { return v.Context.GetOwner() == owner(v.Target) }

// leave is plan for a target that is being deleted: what it has begun is completed, as when Kruise lets go of a
// StatefulSet, and the workload is given back.
func leave(v View) move {
	c := v.Context
	done := move{action: actRemoveFinalizer, why: "nothing of this target is left"}
	if !hasFinalizer(v.Target) {
		return move{status: v.Target.Status}
	}
	switch {
	case v.Workload == nil, v.Workload.Deleting, v.Rival != "", c.GetState() == pb.State_STATE_UNMANAGED:
		return done
	case plugin.InFlight(c) && !ours(v):
		return done
	case plugin.InFlight(c) && ending(c):
		return notReady(v, "Deleting", "the release is completed before the workload is given back: "+c.GetMessage())
	case plugin.InFlight(c):
		return move{action: actPromote, why: "the target is being deleted: completing its release"}
	case v.Successor:
		done.why = "another target takes the workload over, under hold"
		return done
	default:
		return move{action: actDisown, why: "the target is being deleted: giving the workload back"}
	}
}

// ending reports whether the release in flight is on its way to an end already.
func ending(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_ROLLING_BACK
}

// replicate keeps the target's spec as the workload is, and the workload's replicas as somebody wants them who scales the
// target.
func replicate(v View) move {
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

// mirrored reports whether the target is as mirror would make it.
func mirrored(v View) bool {
	t, want := v.Target, v.Target.DeepCopy()
	mirror(v, want)
	return maps.Equal(t.Labels, want.Labels) && ptr.Equal(t.Spec.Replicas, want.Spec.Replicas) && templateOf(t) == templateOf(want) &&
		metav1.FormatLabelSelector(t.Spec.Selector) == metav1.FormatLabelSelector(want.Spec.Selector) && t.Spec.UpdateStrategy != nil
}

// mirror fills in the target.
func mirror(v View, t *v1alpha1.RolloutTarget) {
	metav1.SetMetaDataLabel(&t.ObjectMeta, labelWorkloadType, "statefulset")
	if id := v.Workload.RolloutID; id != "" {
		metav1.SetMetaDataLabel(&t.ObjectMeta, labelRolloutID, id)
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

// leaders selects the leader pods of a workload.
func leaders(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{labelName: name, labelWorkerIndex: "0"}}
}

// templateOf is the workload's revision that the target's template stands for.
func templateOf(t *v1alpha1.RolloutTarget) string {
	if t.Spec.Template == nil {
		return ""
	}
	return t.Spec.Template.Metadata.Annotations[AnnotationRevision]
}

// wanted is how many groups are to be at the template's revision. release reports whether the others follow and the
// release is over then.
func wanted(v View) (groups int32, release bool) {
	t := v.Target
	replicas := v.Context.GetReplicas()
	partition := partitionOf(t)
	led := t.Annotations[annotationProgressing] != "" || t.Annotations[annotationControl] != ""
	switch {
	case partition == nil, *partition == 0 && !led:
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

// pursue brings the release to where the partition wants it. The target shows the workload's present template by now.
func pursue(v View) move {
	c := v.Context
	flying, template := plugin.InFlight(c), c.GetTemplateRevision()
	groups, over := wanted(v)
	switch {
	case paused(v.Target), groups == 0 && !over:
		return move{}
	case !flying && (template == plugin.Serving(c) || c.GetTotal() == 0):
		return move{} // Nothing to release, or nothing to release it from yet.
	case !flying:
		return begin(v)
	case ending(c), template != c.GetUpdateRevision():
		return move{} // The driver is on its way, to an end or to the new template.
	case over:
		return move{action: actPromote, why: "the partition is gone: completing the release"}
	case c.GetPlanned() < groups:
		return move{action: actUpgrade, groups: groups, why: fmt.Sprintf("the partition leaves %d groups to be updated", groups)}
	default:
		return move{}
	}
}

// begin begins a release, unless it is the one that somebody has rolled back by hand.
func begin(v View) move {
	id := releaseID(v.Target)
	if v.Context.GetReleaseId() == id {
		return move{}
	}
	return move{action: actInitialize, release: id, why: "releasing revision " + v.Context.GetTemplateRevision()}
}

// releaseID is new with every change of the target's spec, so that what was rolled back by hand stays so until somebody asks
// for more.
func releaseID(t *v1alpha1.RolloutTarget) string {
	uid := strings.ReplaceAll(string(t.UID), "-", "")
	return fmt.Sprintf("kruise-%s-%d", uid[:min(8, len(uid))], t.Generation)
}
