// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// world is a state of a small world: one LeaderWorkerSet with templates a, b and c, one RolloutTarget, one Rollout of two steps, Kruise's
// manager v0.6.2 with its webhook, this controller and a driver. It is comparable, so that each state is visited once.
type world struct {
	// The workload and its record.
	template, serving      string
	adopted                bool
	release                string
	update, stableRevision string
	state                  pb.State
	intent                 pb.FinalizeIntent
	planned, replicas      int32

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

func (w *world) context() *pb.BatchContext {
	c := &pb.BatchContext{
		State: pb.State_STATE_UNMANAGED, TemplateRevision: w.template, StableRevision: w.serving, UpdateRevision: w.serving,
		Replicas: w.replicas, Total: w.replicas, Planned: w.planned, Message: "m", Reason: "R",
	}
	if !w.adopted {
		return c
	}
	c.State = pb.State_STATE_HOLDING
	if w.release != "" {
		c.State, c.ReleaseId, c.Owner, c.Intent = w.state, w.release, "kruise-rollouts/ns/m", w.intent
		c.UpdateRevision, c.StableRevision = w.update, w.stableRevision
	}
	return c
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
	v := View{Target: t, Workload: &Workload{}, Context: w.context(), Revisions: map[string]string{}}
	for _, template := range []string{"a", "b", "c"} {
		v.Revisions[template] = controllerRevision(template)
	}
	if w.shown != "" {
		mirror(v, t)
		t.Spec.Template.Metadata.Annotations[AnnotationRevision] = w.shown
		t.Spec.Replicas = ptr.To(w.mirrored)
		t.Status.WorkloadReplicas = ptr.To(w.mirrored)
		t.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{Partition: ptr.To(w.partition)}
		if w.partition < 0 {
			t.Spec.UpdateStrategy.RollingUpdate = nil
		}
	}
	if w.progressing {
		metav1.SetMetaDataAnnotation(&t.ObjectMeta, annotationProgressing, "{}")
	}
	if !v.depends() {
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
	w.shown, w.mirrored = template, w.replicas
}

// reconcile is one move of this controller.
func (w *world) reconcile(broken *string) {
	if !w.target {
		return
	}
	v := w.view()
	m := plan(v)
	switch m.action {
	case actNone, actScale:
	case actAddFinalizer:
		w.finalizer = true
	case actRemoveFinalizer:
		*w = w.without()
	case actMirror:
		mirror(v, v.Target)
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
func (w *world) call(request any, broken *string) {
	justify := func(what, revision, by string) {
		if revision != w.serving && revision != by {
			*broken = fmt.Sprintf("%s of template %s, and nothing asked for it", what, revision)
		}
	}
	switch r := request.(type) {
	case *pb.AdoptRequest:
		w.adopted = true
	case *pb.DisownRequest:
		if w.template != w.serving {
			*broken = "a template that waits is disowned"
		}
		w.adopted, w.release = false, ""
	case *pb.InitializeRequest:
		if r.GetTemplateRevision() != w.template {
			*broken = "a release is begun without its template"
		}
		justify("Initialize", w.template, w.asked)
		w.release, w.update, w.stableRevision = r.GetReleaseId(), w.template, w.serving
		w.state, w.intent, w.planned = pb.State_STATE_HOLDING, 0, 0
	case *pb.UpgradeBatchRequest:
		justify("UpgradeBatch", r.GetUpdateRevision(), w.asked)
		_, _ = fmt.Sscan(r.GetGroups(), &w.planned)
		w.state = pb.State_STATE_UPGRADING
	case *pb.FinalizeRequest:
		if w.intent = r.GetIntent(); w.intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
			w.state = pb.State_STATE_ROLLING_BACK
			return
		}
		justify("PROMOTE", r.GetUpdateRevision(), w.complete)
		w.state = pb.State_STATE_PROMOTING
	default:
		*broken = fmt.Sprintf("unexpected %T", r)
	}
}

// drive is one action of the driver and the cluster.
func (w *world) drive() {
	inFlight := plugin.InFlight(w.context())
	switch {
	case w.release == "":
	case inFlight && w.template != w.update && w.state != pb.State_STATE_ROLLING_BACK:
		w.update, w.intent, w.state, w.planned = w.template, 0, pb.State_STATE_HOLDING, 0
		if w.template == w.stableRevision {
			w.state = pb.State_STATE_ROLLING_BACK
		}
	case w.state == pb.State_STATE_UPGRADING:
		w.state = pb.State_STATE_READY
	case w.state == pb.State_STATE_PROMOTING:
		w.state, w.serving, w.planned = pb.State_STATE_COMPLETED, w.update, 0
	case w.state == pb.State_STATE_ROLLING_BACK:
		w.state, w.planned = pb.State_STATE_ROLLED_BACK, 0
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
	case w.phase == "Healthy" && w.progressing, w.phase == "Progressing" && w.condition == "InRolling" && w.revision != controllerRevision(w.shown) && w.shown != w.serving:
		w.phase, w.condition, w.revision, w.step, w.index = "Progressing", "InRolling", controllerRevision(w.shown), "Upgrade", 0
		w.asked, w.complete = "", ""
		w.batchReleases++
		w.batchRelease, w.batchRevision = w.batchReleases, controllerRevision(w.shown)
	case w.phase == "Healthy" && w.revision == "":
		w.revision, w.step = controllerRevision(w.shown), "Completed" // a first deployment, it believes
	case w.phase != "Progressing":
	case w.condition == "InRolling" && w.shown == w.serving:
		w.condition, w.revision = "Cancelling", controllerRevision(w.shown)
	case w.condition == "InRolling" && w.step == "Upgrade":
		w.control, w.partition, w.asked, w.step = w.batchRelease, w.replicas-1-int32(w.index), w.shown, "StepPaused"
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
	take("the driver works", 0, (*world).drive)
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
		take("template "+template, 1, func(w *world) { w.template = template })
	}
	take("an autoscaler adds a group", 1, func(w *world) { w.replicas++ })
	take("another client rolls back", 1, func(w *world) {
		if plugin.InFlight(w.context()) {
			if w.state, w.intent = pb.State_STATE_ROLLING_BACK, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK; w.asked == w.update {
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
	first := world{template: "a", serving: "a", replicas: 2, partition: -1, disturbances: 3}
	type visit struct {
		from   int
		action string
	}
	states, visits, known := []world{first}, []visit{{from: -1}}, map[world]bool{first: true}
	broken, released, held := "", 0, 0
	path := func(i int) string {
		text := ""
		for ; visits[i].from >= 0; i = visits[i].from {
			text = "  " + visits[i].action + "\n" + text
		}
		return text
	}
	for i := 0; i < len(states); i++ {
		for action, after := range states[i].next(&broken) {
			if broken != "" {
				t.Fatalf("%s:\n%s  %s\n%+v", broken, path(i), action, states[i])
			}
			if !known[after] {
				known[after] = true
				states, visits = append(states, after), append(visits, visit{i, action})
			}
		}
		if i%50 != 0 {
			continue
		}
		end := states[i]
		for range 60 {
			was := end
			end.target, end.rollout, end.disabled, end.webhook = true, true, false, 0
			end.drive()
			end.reconcile(&broken)
			end.manage()
			end = cmpWorld(end.next(&broken)["approve"], end)
			if was == end {
				break
			}
		}
		switch {
		case broken != "":
			t.Fatalf("%s, on the way from:\n%s%+v", broken, path(i), states[i])
		case end.serving == end.template:
			released++
		case statusReason(end) == "NotRequested", end.state == pb.State_STATE_ROLLED_BACK:
			held++
		default:
			t.Fatalf("nothing waits for anybody, and template %s is not released from:\n%s%+v\nthe end: %+v", end.template, path(i), states[i], end)
		}
	}
	t.Logf("%d states, at most %d disturbances; of those in between %d end released and %d wait for a user", len(states), first.disturbances, released, held)
	if len(states) < 1000 || released == 0 || held == 0 {
		t.Errorf("only %d states, %d released, %d held", len(states), released, held)
	}
}

func cmpWorld(w, otherwise world) world {
	if w == (world{}) {
		return otherwise
	}
	return w
}

func statusReason(w world) string {
	m := plan(w.view())
	if m.action != actNone || len(m.status.Conditions) == 0 {
		return ""
	}
	return m.status.Conditions[0].Reason
}
