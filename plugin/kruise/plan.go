// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
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
	// annotationProgressing names the Rollout that is in progress on the target.
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
	labelSet         = "disaggregatedset.x-k8s.io/name"
	labelRole        = "disaggregatedset.x-k8s.io/role"
	labelSetRevision = "disaggregatedset.x-k8s.io/revision"
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
	// Rival is an older target of the same workload. Empty means none.
	Rival string
	// Successor is true if there is a younger target, which would take over the workload.
	Successor bool
	// Context is the driver's, with groups. It is nil if the driver does not know the workload (yet).
	Context *pb.BatchContext
	// Revisions maps the workload's template revisions to the controller revisions of leader pods.
	Revisions map[string]string
	// Evidence is what Kruise's own objects show. It is read only when a call depends on it.
	Evidence Evidence
}

// action is a kind of move.
type action int

const (
	// actNone writes the target's status only.
	actNone action = iota
	actAddFinalizer
	actRemoveFinalizer
	// actMirror writes the target's spec and labels.
	actMirror
	// actCall calls the driver.
	actCall
)

// move is an action with its arguments.
type move struct {
	action action
	// why is logged.
	why string
	// call is that of actCall.
	call converge.Move
	// status is the target's new status, with actNone.
	status v1alpha1.RolloutTargetStatus
}

// callMove is the move that makes a call of the driver.
func callMove(m converge.Move) move { return move{action: actCall, why: m.Why, call: m} }

// planMove decides the next move.
func planMove(v View) move {
	t := v.Target
	switch {
	case t.DeletionTimestamp != nil:
		return finalizeDeleted(v)
	case v.Rival != "":
		return notReady(v, "WorkloadTaken", fmt.Sprintf(
			"RolloutTarget %s of %s is older: delete one of the two", v.Rival, objectOf(t)))
	case v.Context == nil:
		return notReady(v, "WorkloadNotFound", fmt.Sprintf(
			"%s does not exist in namespace %s; it is adopted when it is created", objectOf(t), t.Namespace))
	case v.Workload.Deleting:
		return notReady(v, "WorkloadDeleting", objectOf(t)+" is being deleted")
	case !controllerutil.ContainsFinalizer(t, Finalizer):
		return move{action: actAddFinalizer, why: "the workload is disowned before this target is deleted"}
	}
	goal := goalOf(v)
	next := converge.Next(goal, v.Context)
	switch _, adopts := next.Request.(*pb.AdoptRequest); {
	case adopts:
		// Without the hold, LWS would roll out the next template at once.
		return callMove(next)
	case next.Outcome == converge.Foreign:
		return notReady(v, "ReleaseOfAnother", next.Why)
	case v.Context.GetTemplateRevision() == "":
		return notReady(v, "WaitingForLWS", v.Context.GetMessage())
	}
	// Kruise's webhook has to see a new template before a call could release it.
	if !isCopied(v) {
		return move{action: actMirror, why: "the target follows the workload, revision " + v.Context.GetTemplateRevision()}
	}
	if next.Outcome == converge.Call {
		return callMove(next)
	}
	m := move{status: statusOf(v)}
	if next.Outcome == converge.Held && next.Why != "" && goal.Revision == "" {
		setReady(&m.status, t, metav1.ConditionFalse, reasonNotRequested, next.Why)
	}
	return m
}

// ownerOf returns the owner of the target's releases, as the driver records it.
func ownerOf(t *v1alpha1.RolloutTarget) string { return ownerPrefix + t.Namespace + "/" + t.Name }

// isOwnRelease reports whether the last release is one of this target.
func isOwnRelease(v View) bool { return v.Context.GetOwner() == ownerOf(v.Target) }

// finalizeDeleted ends the release, and disowns the workload.
func finalizeDeleted(v View) move {
	t, done := v.Target, move{action: actRemoveFinalizer, why: "the target's release has ended and its workload is disowned"}
	switch {
	case !controllerutil.ContainsFinalizer(t, Finalizer):
		return move{status: t.Status}
	case v.Workload == nil, v.Workload.Deleting, v.Rival != "":
		return done
	case v.Context == nil:
		return notReady(v, "Deleting", fmt.Sprintf("the driver does not know %s yet", objectOf(t)))
	}
	g := converge.Goal{Kind: converge.Disown, Workload: refOf(t), Owner: ownerOf(t), Why: "its RolloutTarget is being deleted"}
	if t.Spec.OnDeletion == v1alpha1.OnDeletionPromote {
		g.Revision = templateOf(t) // of which the user knew
	}
	next := converge.Next(g, v.Context)
	_, disowns := next.Request.(*pb.DisownRequest)
	switch {
	case next.Outcome == converge.Wait:
		return notReady(v, "Deleting", "the release ends before the workload is disowned: "+v.Context.GetMessage())
	case disowns && v.Successor:
		done.why = "another target takes over the workload, under hold"
	case next.Outcome == converge.Held:
		done.why = next.Why
	case next.Outcome == converge.Call:
		return callMove(next)
	}
	return done
}

// isCopied reports whether mirror would change nothing.
func isCopied(v View) bool {
	t, want := v.Target, v.Target.DeepCopy()
	copyWorkload(v, want)
	return equality.Semantic.DeepEqual(t, want)
}

// copyWorkload copies the workload to the target.
func copyWorkload(v View, t *v1alpha1.RolloutTarget) {
	metav1.SetMetaDataLabel(&t.ObjectMeta, labelWorkloadType, "statefulset")
	if id := v.Workload.RolloutID; id != "" {
		metav1.SetMetaDataLabel(&t.ObjectMeta, labelRolloutID, id)
	} else {
		delete(t.Labels, labelRolloutID)
	}
	t.Spec.Replicas = ptr.To(v.Context.GetReplicas())
	t.Spec.Selector = leaderSelector(t, entryRole(v.Context))
	shown := v.Context.GetTemplateRevision()
	switch serving := plugin.Serving(v.Context); {
	case t.Spec.Template == nil && serving != "":
		// Kruise's webhook ignores the first template. A template that waits must be a change of the one that the groups run.
		shown = serving
	case v.templateDue() && !v.Evidence.listens():
		shown = templateOf(t) // Kruise notices a template only when it is set
	}
	t.Spec.Template = &v1alpha1.Template{Metadata: v1alpha1.TemplateMetadata{Annotations: map[string]string{AnnotationRevision: shown}}}
	t.Spec.UpdateStrategy = cmp.Or(t.Spec.UpdateStrategy, &v1alpha1.UpdateStrategy{Type: "RollingUpdate"})
}

// leaderSelector returns a selector of the workload's leader pods, of a DisaggregatedSet those of its entry role.
func leaderSelector(t *v1alpha1.RolloutTarget, entry string) *metav1.LabelSelector {
	match := map[string]string{labelName: t.Spec.WorkloadRef.Name, labelWorkerIndex: "0"}
	if isSet(t) {
		match = map[string]string{labelSet: t.Spec.WorkloadRef.Name, labelRole: entry, labelWorkerIndex: "0"}
	}
	return &metav1.LabelSelector{MatchLabels: match}
}

// templateOf returns the workload's revision that the target's template stands for.
func templateOf(t *v1alpha1.RolloutTarget) string {
	if t.Spec.Template == nil {
		return ""
	}
	return t.Spec.Template.Metadata.Annotations[AnnotationRevision]
}

// allowedGroups returns the groups at the template's revision that the partition allows, and whether the partition is gone.
func allowedGroups(v View) (groups int32, gone bool) {
	switch partition := partitionOf(v.Target); {
	case partition == nil:
		return v.Context.GetReplicas(), true
	case *partition >= kruiseHold:
		return 0, false
	default:
		return max(v.Context.GetReplicas()-*partition, 0), false
	}
}

func partitionOf(t *v1alpha1.RolloutTarget) *int32 {
	if t.Spec.UpdateStrategy == nil || t.Spec.UpdateStrategy.RollingUpdate == nil {
		return nil
	}
	return t.Spec.UpdateStrategy.RollingUpdate.Partition
}

func isPaused(t *v1alpha1.RolloutTarget) bool {
	return t.Spec.UpdateStrategy != nil && t.Spec.UpdateStrategy.RollingUpdate != nil && t.Spec.UpdateStrategy.RollingUpdate.Paused
}

// goalOf returns what Kruise wants of the workload. The partition alone is no evidence: it is absent on a target that is new or has no
// Rollout, and after a Rollout was deleted or disabled.
func goalOf(v View) converge.Goal {
	t, c := v.Target, v.Context
	inFlight, template := plugin.InFlight(c), c.GetTemplateRevision()
	g := converge.Goal{Kind: converge.Hold, Workload: refOf(t), Owner: ownerOf(t)}
	if inFlight {
		g.Release = c.GetReleaseId()
	}
	groups, gone := allowedGroups(v)
	rolledBack := c.GetState() == pb.State_STATE_ROLLED_BACK && hasMoved(v)
	switch {
	case rolledBack && !plugin.Waits(c):
		// The workload has its old template again. A release of nothing lets Kruise ask once more for the one that was rolled back.
		g.Release, g.Policy, g.Why = releaseID(t, "", template), policyOf(t, &v1beta1.ReleasePlan{}), "the old template is restored"
		return g
	case isPaused(t), groups == 0, inFlight && !isOwnRelease(v), plugin.Ending(c),
		!inFlight && (!plugin.Waits(c) || c.GetTotal() == 0), inFlight && !gone && c.GetPlanned() >= groups:
		return g // nothing is requested, or nothing is left of it
	case gone && inFlight && v.Evidence.completed(v.Revisions[template]):
		g.Kind, g.Revision, g.Why = converge.Promote, template, "all steps of the Rollout are complete: completing the release"
	case gone && inFlight:
		g.Why = fmt.Sprintf("the partition was removed, but no Rollout has completed its steps for revision %s: to complete the release, "+
			"lockstep promote %s --ignore-owner; to roll it back, lockstep abort %[2]s --ignore-owner", template, plugin.InCommands(refOf(t)))
	case gone:
		g.Why = waitsFor(v)
	default:
		batch := v.Evidence.batchOf(v.Revisions[template])
		if batch == nil {
			g.Why = fmt.Sprintf("the partition allows %d updated groups, but no BatchRelease of a Rollout asks for revision %s", groups, template)
			return g
		}
		groups, target := batchTarget(batch, groups, c.GetReplicas())
		if groups == 0 || inFlight && c.GetPlanned() >= groups {
			if inFlight {
				g.Revision = template // the evidence lacks nothing
			}
			g.Why = fmt.Sprintf("the partition allows more updated groups than the %d that batch %d of the BatchRelease asks for", groups, batch.Status.CanaryStatus.CurrentBatch+1)
			return g
		}
		switch {
		case inFlight:
		case rolledBack && c.GetUpdateRevision() == template: // whatever Kruise asked for meanwhile
			g.Release = c.GetReleaseId()
		default:
			g.Release, g.Policy = releaseID(t, batch.UID, template), policyOf(t, &batch.Spec.ReleasePlan)
		}
		g.Kind, g.Revision, g.Why = converge.Upgrade, template, fmt.Sprintf("the partition allows %d updated groups", groups)
		g.Target = &pb.UpgradeBatchRequest{Target: &pb.UpgradeBatchRequest_Groups{Groups: target}}
	}
	return g
}

// hasMoved reports whether the last release is one of this target whose template changed in mid-release: its id has the one before.
func hasMoved(v View) bool {
	return isOwnRelease(v) && !strings.HasSuffix(v.Context.GetReleaseId(), "-"+v.Context.GetUpdateRevision())
}

// waitsFor returns what a template waits for that no Rollout is in progress with.
func waitsFor(v View) string {
	template, name := v.Context.GetTemplateRevision(), plugin.InCommands(refOf(v.Target))
	switch {
	case v.Evidence.leftOver():
		return fmt.Sprintf("revision %s waits: BatchRelease %s has ended and is still there, so that Kruise begins no other: "+
			"kubectl -n %[3]s delete batchrelease %[2]s", template, v.Evidence.BatchRelease.GetName(), v.Target.Namespace)
	case v.templateDue():
		return fmt.Sprintf("revision %s waits: a Rollout of this target that is not disabled begins its release, or lockstep release %s", template, name)
	default:
		return fmt.Sprintf("revision %s waits, and the Rollout is not in progress with it: change the template again, or lockstep release %s", template, name)
	}
}

// needsEvidence reports whether the next move depends on evidence. That which only notes the restored template has a policy, and does not.
func (v View) needsEvidence() bool {
	g := goalOf(v)
	return g.Kind == converge.Hold && g.Why != "" && g.Policy == nil || v.templateDue()
}

// templateDue reports whether the target is to show a template that waits.
func (v View) templateDue() bool {
	shown := templateOf(v.Target)
	return shown != "" && shown != v.Context.GetTemplateRevision() && plugin.Waits(v.Context)
}

// releaseID returns the id of a release: it is that of a BatchRelease and a template, so that a release that was rolled back does not
// begin again until Kruise starts over.
func releaseID(t *v1alpha1.RolloutTarget, batchRelease types.UID, template string) string {
	return fmt.Sprintf("kruise-%s-%s-%s", converge.ShortUID(string(t.UID)), converge.ShortUID(string(batchRelease)), template)
}
