// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/explore"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// world is a state of a small world: one LeaderWorkerSet with templates a, b and c, one RolloutTarget, one Rollout of two steps, Kruise's
// manager v0.6.2 with its webhook, this controller and a driver. It is comparable, so that each state is visited once.
type world struct {
	explore.Driver

	// The target. Partition -1 is none.
	target, finalizer, deleting bool
	uid                         int8
	shown                       string
	partition, mirrored         int32
	progressing                 bool
	control                     int8 // the uid of the BatchRelease in its control info

	// Kruise.
	rollout, disabled, going             bool
	phase, revision, step, condition     string // step: the state of the current one
	index                                int8
	batchRelease, batchReleases, webhook int8 // uids; webhook 0 is up
	batchRevision                        string

	disturbances int8

	// asked is the template for which Kruise has asked for a batch, complete that of which all steps are complete.
	asked, complete string
}

func controllerRevision(template string) string { return "m-" + template }

func (w *world) view() View {
	t := &v1alpha1.RolloutTarget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: types.UID(fmt.Sprintf("%08d", w.uid)), Generation: 1}}
	t.Spec.WorkloadRef.Name = "m"
	if w.finalizer {
		t.Finalizers = []string{Finalizer}
	}
	if w.deleting {
		t.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	v := View{Target: t, Workload: &Workload{}, Context: w.Context(), Revisions: map[string]string{}}
	for _, template := range []string{"a", "b", "c"} {
		v.Revisions[template] = controllerRevision(template)
	}
	if w.shown != "" {
		copyWorkload(v, t)
		t.Spec.Template.Metadata.Annotations[AnnotationRevision] = w.shown
		t.Spec.Replicas = ptr.To(w.mirrored)
		t.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{Partition: ptr.To(w.partition)}
		if w.partition < 0 {
			t.Spec.UpdateStrategy.RollingUpdate = nil
		}
	}
	if w.progressing {
		metav1.SetMetaDataAnnotation(&t.ObjectMeta, annotationProgressing, "{}")
	}
	if !v.needsEvidence() {
		return v
	}
	if w.rollout && !w.going {
		status := map[string]any{"phase": w.phase, "canaryStatus": map[string]any{"canaryRevision": w.revision, "currentStepState": w.step}}
		if w.condition != "" {
			status["conditions"] = []any{map[string]any{"type": "Progressing", "reason": w.condition}}
		}
		v.Evidence.Rollout = &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"disabled": w.disabled}, "status": status}}
	}
	if v.Evidence.Rollout != nil && w.batchRelease != 0 {
		v.Evidence.Control = types.UID(fmt.Sprintf("%08d", w.control))
		v.Evidence.BatchRelease = &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"uid": fmt.Sprintf("%08d", w.batchRelease)}, "status": map[string]any{"updateRevision": w.batchRevision},
		}}
	}
	return v
}

// show writes the target's template, as Kruise's webhook admits it.
func (w *world) show(template string) {
	if w.shown != "" && template != w.shown && w.rollout && !w.going && w.phase != "Disabled" && w.webhook == 0 {
		w.partition, w.progressing = kruiseHold, true
	}
	w.shown, w.mirrored = template, w.Replicas
}

// reconcile is one move of this controller.
func (w *world) reconcile(broken *string) {
	if !w.target {
		return
	}
	v := w.view()
	m := planMove(v)
	switch m.action {
	case actNone:
	case actAddFinalizer:
		w.finalizer = true
	case actRemoveFinalizer:
		*w = w.without()
	case actMirror:
		copyWorkload(v, v.Target)
		w.show(templateOf(v.Target))
	case actCall:
		w.call(m.call.Request, broken)
	}
}

// without is the world after the target has gone.
func (w *world) without() world {
	after := *w
	after.target, after.finalizer, after.deleting, after.shown, after.partition, after.progressing, after.control = false, false, false, "", -1, false, 0
	after.asked, after.complete = "", ""
	return after
}

// call answers a request of the driver. It fails the test if nothing asked for it.
func (w *world) call(request proto.Message, broken *string) {
	by := map[string]string{"Initialize": w.asked, "UpgradeBatch": w.asked, "PROMOTE": w.complete}
	_, err := w.Call(request, func(what, revision string) {
		if revision != w.Serving && revision != by[what] {
			*broken = fmt.Sprintf("%s of template %s, and nothing asked for it", what, revision)
		}
	})
	if err != nil {
		*broken = err.Error()
	}
}

// releaseTarget has Kruise release the target: the partition goes, and with it the BatchRelease.
func (w *world) releaseTarget() {
	w.partition, w.progressing, w.control, w.batchRelease, w.batchRevision = -1, false, 0, 0, ""
}

// manage is one reconciliation of Kruise's manager.
func (w *world) manage() {
	switch {
	case !w.rollout:
	case w.going:
		w.releaseTarget()
		w.rollout, w.going, w.phase, w.revision, w.step, w.condition, w.index = false, false, "", "", "", "", 0
	case !w.target || w.shown == "":
		w.phase, w.revision, w.step, w.condition, w.batchRelease = "Initial", "", "", "", 0
	case w.disabled && w.phase == "Progressing":
		w.releaseTarget()
		w.phase = "Disabled"
	case w.disabled:
		w.phase = "Disabled"
	case w.phase == "" || w.phase == "Initial":
		w.phase = "Healthy"
	case w.phase == "Disabled":
		w.phase = "Healthy"
	case w.phase == "Healthy" && w.progressing, w.phase == "Progressing" && w.condition == "InRolling" && w.revision != controllerRevision(w.shown) && w.shown != w.Serving:
		w.phase, w.condition, w.revision, w.step, w.index = "Progressing", "InRolling", controllerRevision(w.shown), "Upgrade", 0
		w.asked, w.complete = "", ""
		w.batchReleases++
		w.batchRelease, w.batchRevision = w.batchReleases, controllerRevision(w.shown)
	case w.phase == "Healthy" && w.revision == "":
		w.revision, w.step = controllerRevision(w.shown), "Completed" // a first deployment, it believes
	case w.phase != "Progressing":
	case w.condition == "InRolling" && w.shown == w.Serving:
		w.condition, w.revision = "Cancelling", controllerRevision(w.shown)
	case w.condition == "InRolling" && w.step == "Upgrade":
		w.control, w.partition, w.asked, w.step = w.batchRelease, w.Replicas-1-int32(w.index), w.shown, "StepPaused"
	case w.condition == "InRolling" && w.step == "Completed":
		w.condition, w.complete = "Finalising", w.shown
	case w.condition == "Finalising", w.condition == "Cancelling":
		w.releaseTarget()
		w.phase, w.condition = "Healthy", "Completed"
	}
}

func (w world) next(broken *string) map[string]world {
	out := map[string]world{}
	take := func(name string, cost int8, act func(*world)) {
		after := w
		if after.disturbances -= cost; after.disturbances < 0 {
			return
		}
		if act(&after); after != w {
			out[name] = after
		}
	}
	take("the driver works", 0, func(w *world) { w.Work() })
	take("the controller reconciles", 0, func(w *world) { w.reconcile(broken) })
	take("Kruise reconciles", 0, (*world).manage)
	take("approve", 0, func(w *world) {
		if w.phase == "Progressing" && w.step == "StepPaused" {
			if w.step = "Upgrade"; w.index == 1 {
				w.step = "Completed"
			}
			w.index = 1
		}
	})
	for _, template := range []string{"a", "b", "c"} {
		take("template "+template, 1, func(w *world) { w.Template = template })
	}
	take("an autoscaler adds a group", 1, func(w *world) { w.Replicas++ })
	take("another client rolls back", 1, func(w *world) {
		if w.InFlight() {
			if w.State, w.Intent = pb.State_STATE_ROLLING_BACK, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK; w.asked == w.Update {
				w.asked, w.complete = "", ""
			}
		}
	})
	take("the target is deleted", 1, func(w *world) {
		if w.deleting = w.target; w.target && !w.finalizer {
			*w = w.without()
		}
	})
	take("the target is applied", 0, func(w *world) {
		if !w.target {
			w.target, w.uid = true, w.uid+1
		}
	})
	take("the Rollout is deleted", 1, func(w *world) { w.going = w.rollout })
	take("the Rollout is applied", 0, func(w *world) { w.rollout = true })
	take("the Rollout is disabled", 1, func(w *world) { w.disabled = true })
	take("the Rollout is enabled", 0, func(w *world) { w.disabled = false })
	take("the webhook is away", 1, func(w *world) { w.webhook = 1 })
	take("the webhook is back", 0, func(w *world) { w.webhook = 0 })
	return out
}

// TestEveryStateOfKruise visits every state of a small world that is reachable with so many disturbances. In each, no call begins,
// continues or promotes a release of a template that nothing asks for; and from states in between, what was started ends or waits for a
// user.
func TestEveryStateOfKruise(t *testing.T) {
	t.Parallel()
	broken := ""
	explore.World[world]{
		Next: func(w world) map[string]world { return w.next(&broken) },
		End: func(w world) (end world, released, waits bool) {
			for range 60 {
				was := w
				w.target, w.rollout, w.disabled, w.webhook = true, true, false, 0
				w.Work()
				w.reconcile(&broken)
				w.manage()
				w = cmp.Or(w.next(&broken)["approve"], w)
				if was == w {
					break
				}
			}
			return w, w.Serving == w.Template, statusReason(w) == "NotRequested" || w.State == pb.State_STATE_ROLLED_BACK
		},
		Broken: &broken,
	}.Visit(t, world{Driver: explore.Driver{Template: "a", Serving: "a", Replicas: 2}, partition: -1, disturbances: 3})
}

func statusReason(w world) string {
	m := planMove(w.view())
	if m.action != actNone || len(m.status.Conditions) == 0 {
		return ""
	}
	return m.status.Conditions[0].Reason
}
