// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// view is a workload of four groups at rest at revision one, bound and mirrored, and what changes make of it.
func view(changes ...func(*View)) View {
	v := View{
		Target: &v1alpha1.RolloutTarget{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "vllm", UID: types.UID("01234567-89ab"), Generation: 3, Finalizers: []string{Finalizer},
			},
			Spec: v1alpha1.RolloutTargetSpec{WorkloadRef: v1alpha1.WorkloadReference{Name: "vllm"}},
		},
		Workload:  &Workload{},
		Context:   &pb.BatchContext{State: pb.State_STATE_HOLDING, Reason: "Held", StableRevision: "one", UpdateRevision: "one", TemplateRevision: "one"},
		Revisions: map[string]string{"one": "vllm-1", "two": "vllm-2", "three": "vllm-3"},
	}
	at("one one one one")(&v)
	copyWorkload(v, v.Target)
	for _, change := range changes {
		change(&v)
	}
	return v
}

// at says at which revisions the groups are; "two!" is not ready, "-" has no leader.
func at(revisions string) func(*View) {
	return func(v *View) {
		c := v.Context
		c.Groups, c.Total = nil, 0
		for i, r := range strings.Fields(revisions) {
			name, unready := strings.CutSuffix(r, "!")
			name = strings.TrimPrefix(name, "-")
			c.Groups = append(c.Groups, &pb.Group{
				Index: int32(i), Role: pb.GroupRole_GROUP_ROLE_STABLE, Revision: name, Ready: !unready && name != "",
			})
			if name != "" {
				c.Total++
			}
		}
		c.Replicas = int32(len(c.Groups))
	}
}

// available says how many updated groups have been ready for minReadySeconds.
func available(groups int32) func(*View) {
	return func(v *View) { v.Context.UpdatedReady = groups }
}

// template is the workload's, of which the target knows.
func template(revision string) func(*View) {
	return func(v *View) {
		v.Context.TemplateRevision = revision
		v.Target.Spec.Template.Metadata.Annotations[AnnotationRevision] = revision
	}
}

// edited is a template of which the target does not know yet.
func edited(revision string) func(*View) {
	return func(v *View) { v.Context.TemplateRevision = revision }
}

func partition(p int32) func(*View) {
	return func(v *View) { v.Target.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{Partition: &p} }
}

func pausedUpdate(v *View) {
	v.Target.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{Paused: true}
}

// led is a target that a Rollout is at work on.
func led(v *View) { metav1.SetMetaDataAnnotation(&v.Target.ObjectMeta, annotationProgressing, "{}") }

// intends is a release whose end was requested.
func intends(intent pb.FinalizeIntent) func(*View) {
	return func(v *View) { v.Context.Intent = intent }
}

// release is ours, in a state and with so many groups asked for.
func releasing(state pb.State, planned int32) func(*View) {
	return func(v *View) {
		c := v.Context
		c.State, c.Planned, c.ReleaseId, c.Owner = state, planned, "r", owner(v.Target)
		c.StableRevision, c.UpdateRevision = "one", "two"
	}
}

func foreign(v *View)  { v.Context.Owner = "argo-rollouts/default/vllm" }
func rival(v *View)    { v.Rival = "older" }
func deleted(v *View)  { v.Target.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
func missing(v *View)  { v.Workload, v.Context = nil, nil }
func going(v *View)    { v.Workload.Deleting = true }
func unheld(v *View)   { v.Context.State = pb.State_STATE_UNMANAGED }
func followed(v *View) { v.Successor = true }
func unbound(v *View)  { v.Target.Finalizers = nil }
func promote(v *View)  { v.Target.Spec.OnDeletion = v1alpha1.OnDeletionPromote }
func last(v *View)     { v.Context.ReleaseId = releaseID(v.Target, "fedcba98-76", "two") }

// asks is a BatchRelease in progress that asks for a revision.
func asks(revision string) func(*View) {
	return func(v *View) {
		v.Evidence.Control = "fedcba98-76"
		v.Evidence.BatchRelease = &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"uid": "fedcba98-76"}, "status": map[string]any{"updateRevision": revision},
		}}
	}
}

// shows is a Rollout with a canary revision, the state of its step and the reason of its condition Progressing.
func shows(revision, step, progressing string) func(*View) {
	return func(v *View) {
		status := map[string]any{"canaryStatus": map[string]any{"canaryRevision": revision, "currentStepState": step}}
		if progressing != "" {
			status["conditions"] = []any{map[string]any{"type": "Progressing", "reason": progressing}}
		}
		v.Evidence.Rollout = &unstructured.Unstructured{Object: map[string]any{"status": status}}
	}
}

// ended is a BatchRelease that a target before this one has left.
func ended(v *View) {
	v.Evidence.BatchRelease = &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": "Completed"}}}
}

func phase(name string) func(*View) {
	return func(v *View) { v.Evidence.Rollout.Object["status"].(map[string]any)["phase"] = name }
}

// describe returns a move as one would say it.
func describe(m move) string {
	switch m.action {
	case actNone:
		return "none"
	case actAddFinalizer:
		return "add finalizer"
	case actRemoveFinalizer:
		return "remove finalizer"
	case actMirror:
		return "mirror"
	default:
	}
	switch r := m.call.Request.(type) {
	case *pb.AdoptRequest:
		return "Adopt"
	case *pb.DisownRequest:
		return "Disown"
	case *pb.InitializeRequest:
		return "Initialize"
	case *pb.UpgradeBatchRequest:
		return "UpgradeBatch " + r.GetGroups()
	case *pb.FinalizeRequest:
		return strings.TrimPrefix(r.GetIntent().String(), "FINALIZE_INTENT_")
	default:
		return fmt.Sprintf("%T", r)
	}
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		name, why string
		v         View
		want      string
		reason    string // of the condition, with none
	}{
		{"at rest", "nothing is to be done", view(), "none", "Held"},
		{"no workload", "it is said, and nothing is touched", view(missing, unbound), "none", "WorkloadNotFound"},
		{"workload goes", "there is nothing to release", view(going), "none", "WorkloadDeleting"},
		{"second target", "one workload has one master", view(rival), "none", "WorkloadTaken"},
		{"new target", "the workload must be given back some day", view(unbound, unheld), "add finalizer", ""},
		{"not held", "no template may roll by itself", view(unheld), "Adopt", ""},
		{"another's release", "it is not ours to steer", view(releasing(pb.State_STATE_READY, 1), foreign), "none", "ReleaseOfAnother"},
		{"another's release is over", "the workload is free", view(releasing(pb.State_STATE_ROLLED_BACK, 0), foreign), "none", "Held"},
		{"no revision yet", "LWS has not got to the template", view(edited("")), "none", "WaitingForLWS"},
		{"edited", "Kruise's webhook must see it before anything moves", view(edited("two"), shows("vllm-1", "Completed", "Completed"), phase("Healthy")), "mirror", ""},
		{"edited, no Rollout", "Kruise would not notice it later", view(edited("two")), "none", "NotRequested"},
		{"edited, disabled", "Kruise ignores it", view(edited("two"), shows("vllm-1", "Completed", "Completed"), phase("Disabled")), "none", "NotRequested"},
		{"edited, a BatchRelease is left over", "Kruise would take it for the next one", view(edited("two"), shows("vllm-1", "Completed", "Completed"), phase("Healthy"), ended), "none", "NotRequested"},
		{"edited back to what serves", "nothing waits", view(template("two"), edited("one")), "mirror", ""},
		{"edited in mid-release", "the same", view(edited("three"), partition(3), led, shows("vllm-2", "StepPaused", "InRolling"), phase("Progressing"), releasing(pb.State_STATE_READY, 1)), "mirror", ""},
		{"workload scaled", "the target follows", view(at("one one one one one")), "mirror", ""},
		{"target scaled", "the workload is the truth", view(func(v *View) { v.Target.Spec.Replicas = ptr.To(int32(6)) }), "mirror", ""},
		{"rollout id", "it goes with the template", view(func(v *View) { v.Workload.RolloutID = "7" }), "mirror", ""},
		{"rollout id removed", "the next release would get it", view(func(v *View) { v.Target.Labels[labelRolloutID] = "6" }), "mirror", ""},
		{"held by Kruise", "no batch yet", view(template("two"), partition(32767), led), "none", "Held"},
		{"first batch", "a release is begun", view(template("two"), partition(3), led, asks("vllm-2")), "Initialize", ""},
		{"first batch, begun", "its target is set", view(template("two"), partition(3), led, asks("vllm-2"), releasing(pb.State_STATE_HOLDING, 0)), "UpgradeBatch 1", ""},
		{"batch under way", "asking again changes nothing", view(template("two"), partition(3), led, releasing(pb.State_STATE_UPGRADING, 1)), "none", "Held"},
		{"next batch", "the target grows", view(template("two"), partition(1), led, asks("vllm-2"), releasing(pb.State_STATE_READY, 1)), "UpgradeBatch 3", ""},
		{"partition raised", "updated groups stay, as with a StatefulSet", view(template("two"), partition(3), led, releasing(pb.State_STATE_READY, 2)), "none", "Held"},
		{"all updated", "Kruise may still roll back", view(template("two"), partition(0), led, releasing(pb.State_STATE_READY, 4)), "none", "Held"},
		{"all steps complete", "the release is completed", view(template("two"), shows("vllm-2", "Completed", "Finalising"), releasing(pb.State_STATE_READY, 4)), "PROMOTE", ""},
		{"all steps complete, and more", "Kruise has ended", view(template("two"), shows("vllm-2", "Completed", "Completed"), releasing(pb.State_STATE_READY, 2)), "PROMOTE", ""},
		{"partition removed, no Rollout", "deleting a Rollout is no promotion", view(template("two"), releasing(pb.State_STATE_READY, 4)), "none", "NotRequested"},
		{"partition removed in mid-step", "so is disabling it", view(template("two"), shows("vllm-2", "StepPaused", "InRolling"), releasing(pb.State_STATE_READY, 1)), "none", "NotRequested"},
		{"partition removed, steps of another revision", "they asked for that one", view(template("two"), shows("vllm-3", "Completed", "Completed"), releasing(pb.State_STATE_READY, 1)), "none", "NotRequested"},
		{"partition removed, first observed", "Kruise shows a new Rollout as if its steps were complete", view(template("two"), shows("vllm-2", "Completed", ""), releasing(pb.State_STATE_READY, 1)), "none", "NotRequested"},
		{"partition removed, older status", "the status is of an older Rollout", view(template("two"), shows("vllm-2", "Completed", "Completed"), func(v *View) {
			v.Evidence.Rollout.SetGeneration(7)
		}, releasing(pb.State_STATE_READY, 1)), "none", "NotRequested"},
		{"partition 0, nothing in progress", "a partition is no step", view(template("two"), partition(0)), "none", "NotRequested"},
		{"no Kruise", "nothing asked for the template", view(template("two")), "none", "NotRequested"},
		{"steps were complete, not begun", "nothing listened, and no step ran", view(template("two"), shows("vllm-2", "Completed", "Completed")), "none", "NotRequested"},
		{"first batch, of another revision", "the BatchRelease is of an older template", view(template("three"), partition(3), led, asks("vllm-2")), "none", "NotRequested"},
		{"first batch, no BatchRelease", "the partition may be anybody's", view(template("two"), partition(3), led), "none", "NotRequested"},
		{"applied again over a waiting template", "Kruise must see a change of the template that serves", view(edited("two"), func(v *View) { v.Target.Spec.Template = nil }), "mirror", ""},
		{"paused", "nothing moves", view(template("two"), pausedUpdate), "none", "Held"},
		{"promoting", "the driver is at work", view(template("two"), releasing(pb.State_STATE_PROMOTING, 4)), "none", "Held"},
		{"template returns", "the driver rolls back by itself", view(template("one"), partition(32767), led, releasing(pb.State_STATE_ROLLING_BACK, 1)), "none", "Held"},
		{"template returns, let go", "what rolls back is not promoted", view(template("one"), releasing(pb.State_STATE_ROLLING_BACK, 1)), "none", "Held"},
		{"newer template", "the driver has not got to it", view(template("three"), partition(3), led, releasing(pb.State_STATE_PREPARING, 1)), "none", "Held"},
		{
			"rolled back by hand", "a person's word stands until the spec changes",
			view(template("two"), partition(3), led, asks("vllm-2"), releasing(pb.State_STATE_ROLLED_BACK, 0), last), "none", "Held",
		},
		{
			"rolled back by hand, scaled, next step", "it is not asked for anew",
			view(template("two"), partition(1), led, asks("vllm-2"), releasing(pb.State_STATE_ROLLED_BACK, 0), last, func(v *View) { v.Target.Generation++ }), "none", "Held",
		},
		{"rolled back by hand, Kruise starts over", "it is requested again", view(template("two"), partition(2), led, asks("vllm-2"), releasing(pb.State_STATE_ROLLED_BACK, 0), func(v *View) {
			v.Context.ReleaseId = "kruise-01234567-0older00-two"
		}), "Initialize", ""},
		{"rolled back by hand, begun for an older template", "the word was about this one", view(template("two"), partition(2), led, asks("vllm-2"), releasing(pb.State_STATE_ROLLED_BACK, 0), func(v *View) {
			v.Context.ReleaseId = "kruise-01234567-0older00-one"
		}), "none", "Held"},
		{"completed", "the new revision serves", view(template("two"), releasing(pb.State_STATE_COMPLETED, 4), at("two two two two")), "none", "Held"},
		{"no groups yet", "there is nothing to release from", view(at("-"), func(v *View) {
			v.Context.StableRevision, v.Target.Spec.Replicas = "", ptr.To(int32(1))
		}), "none", "WaitingForRevision"},

		{"deleted at rest", "the workload is given back", view(deleted), "Disown", ""},
		{"deleted, a template waits", "without the hold it would be rolled out", view(deleted, template("two")), "remove finalizer", ""},
		{"deleted, rolled back", "so would the template that was rolled back", view(deleted, template("two"), releasing(pb.State_STATE_ROLLED_BACK, 0)), "remove finalizer", ""},
		{"deleted in mid-release", "the safe end is the default", view(deleted, template("two"), partition(3), releasing(pb.State_STATE_READY, 1)), "ROLLBACK", ""},
		{"deleted in mid-release, Promote", "the target says so", view(deleted, promote, template("two"), partition(3), releasing(pb.State_STATE_READY, 1)), "PROMOTE", ""},
		{"deleted in mid-release, Promote, a newer template", "no batch has seen it", view(deleted, promote, template("two"), edited("three"), partition(3), releasing(pb.State_STATE_READY, 1)), "ROLLBACK", ""},
		{"deleted, failed", "a release that fails is not completed", view(deleted, template("two"), releasing(pb.State_STATE_FAILED, 1)), "ROLLBACK", ""},
		{"deleted, rolling back, Promote", "what rolls back is not promoted", view(deleted, promote, template("two"), releasing(pb.State_STATE_ROLLING_BACK, 1)), "none", "Deleting"},
		{"deleted, promoting", "it ends first", view(deleted, template("two"), releasing(pb.State_STATE_PROMOTING, 4)), "none", "Deleting"},
		{"promotion failed", "it was requested once", view(template("two"), releasing(pb.State_STATE_FAILED, 4), intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), "none", "Held"},
		{"deleted, rollback failed", "it is not promoted", view(deleted, template("two"), releasing(pb.State_STATE_FAILED, 1), intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), "none", "Deleting"},
		{"deleted, given back", "nothing holds the target", view(deleted, unheld), "remove finalizer", ""},
		{"deleted, workload gone", "there is nothing to give back", view(deleted, missing), "remove finalizer", ""},
		{"deleted, another's release", "it is not ours to end", view(deleted, releasing(pb.State_STATE_READY, 1), foreign), "remove finalizer", ""},
		{"deleted in mid-release, another target", "it would find a release that is not its own", view(deleted, followed, template("two"), releasing(pb.State_STATE_READY, 1)), "ROLLBACK", ""},
		{"deleted, another target", "it takes the workload over as it is", view(deleted, followed), "remove finalizer", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := plan(test.v)
			if got := describe(m); got != test.want {
				t.Fatalf("%s: %s (%s), want %s", test.why, got, m.why, test.want)
			}
			if m.action != actNone {
				return
			}
			if c := m.status.Conditions; len(c) != 1 || c[0].Reason != test.reason {
				t.Errorf("%s: conditions %v, want reason %s", test.why, c, test.reason)
			}
		})
	}
}

func TestStatusCountsGroups(t *testing.T) {
	type counts struct {
		Observed                               int64
		Replicas, Ready, Updated, UpdatedReady int32
		Current, Update                        string
	}
	for _, test := range []struct {
		name, why string
		v         View
		want      counts
	}{
		{"at rest", "all are at the template", view(), counts{3, 4, 4, 4, 4, "vllm-1", "vllm-1"}},
		{
			"held", "none is updated", view(template("two"), partition(32767), led), counts{3, 4, 4, 0, 0, "vllm-1", "vllm-2"},
		},
		{
			"batch", "a group counts whole", view(template("two"), partition(2), led, releasing(pb.State_STATE_UPGRADING, 2), at("one one two! two"), available(1)),
			counts{3, 4, 3, 2, 1, "vllm-1", "vllm-2"},
		},
		{
			"ready for a moment", "it counts after minReadySeconds",
			view(template("two"), partition(2), led, releasing(pb.State_STATE_VERIFYING, 2), at("one one two two"), available(1)),
			counts{3, 4, 4, 2, 1, "vllm-1", "vllm-2"},
		},
		{
			"group restarts", "it does not exist", view(template("two"), partition(2), led, releasing(pb.State_STATE_UPGRADING, 2), at("one one - two"), available(1)),
			counts{3, 3, 3, 1, 1, "vllm-1", "vllm-2"},
		},
		{
			"completed", "the template serves", view(template("two"), releasing(pb.State_STATE_COMPLETED, 4), at("two two two two")),
			counts{3, 4, 4, 4, 4, "vllm-2", "vllm-2"},
		},
		{
			"back before Kruise has looked", "it must be seen as a rollback",
			view(template("one"), partition(32767), led, releasing(pb.State_STATE_ROLLED_BACK, 1)), counts{3, 4, 4, 3, 3, "vllm-1", "vllm-1"},
		},
		{
			"back, and Kruise has seen it", "the count is the truth",
			view(template("one"), partition(32767), releasing(pb.State_STATE_ROLLED_BACK, 1)), counts{3, 4, 4, 4, 4, "vllm-1", "vllm-1"},
		},
		{
			"units of a DisaggregatedSet", "those beside the stable ones count in their place",
			view(template("two"), partition(3), led, releasing(pb.State_STATE_READY, 1), at("one one one one two"), available(1), func(v *View) {
				v.Target.Spec.WorkloadRef.Kind = plugin.KindDisaggregatedSet
				v.Context.Groups[4].Role, v.Context.Replicas = pb.GroupRole_GROUP_ROLE_CANARY, 4
				v.Context.Roles = []*pb.Role{{Name: "prefill"}, {Name: "decode"}}
				copyWorkload(*v, v.Target)
			}), counts{3, 4, 4, 1, 1, "vllm-1", "vllm-2"},
		},
		{
			"no controller revision", "Kruise waits", view(template("four"), partition(32767), led), counts{},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := plan(test.v)
			s := m.status
			got := counts{
				s.ObservedGeneration, s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas, s.CurrentRevision, s.UpdateRevision,
			}
			if diff := cmp.Diff(test.want, got); m.action != actNone || diff != "" {
				t.Errorf("%s: action %d (%s), -want +got:\n%s", test.why, m.action, m.why, diff)
			}
		})
	}
}

// planOf reads a plan from words.
func planOf(batches, rolloutID string) *v1beta1.ReleasePlan {
	p := &v1beta1.ReleasePlan{RolloutID: rolloutID}
	for _, b := range strings.Fields(batches) {
		p.Batches = append(p.Batches, v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(b)})
	}
	return p
}

func TestFailureThresholdOfKruise(t *testing.T) {
	for threshold, want := range map[string]string{"25%": "25%", "2": "2", "200%": "", "many": "", "-1": "", "+5%": ""} {
		plan := planOf("50% 100%", "")
		plan.FailureThreshold = ptr.To(intstr.Parse(threshold))
		if got := policy(view().Target, plan).GetFailureThreshold(); got != want {
			t.Errorf("%s: %q, want %q", threshold, got, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	for _, test := range []struct {
		name, why string
		plan      string
		batches   []string
		rolloutID string
	}{
		{"percentages", "as Kruise has them", "25% 50% 100%", []string{"25%", "50%", "100%"}, "7"},
		{"counts", "as Kruise has them", "1 2 4", []string{"1", "2", "4"}, "7"},
		{"mixed", "the driver does not mix them, so they become counts", "1 50%", []string{"1", "2"}, "7"},
		{"decreasing", "the driver refuses them", "2 1", []string{"100%"}, "7"},
		{"too many", "the driver refuses them", "50% 200%", []string{"100%"}, "7"},
		{"no number", "the driver refuses them", "half", []string{"100%"}, "7"},
		{"no batches", "Kruise steers all the same", "", []string{"100%"}, "7"},
		{"unusable id", "a label has 63 characters", "1", []string{"1"}, strings.Repeat("x", 64)},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := policy(view().Target, planOf(test.plan, test.rolloutID))
			want := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: test.batches}
			if len(test.rolloutID) < 64 {
				want.RolloutId = test.rolloutID
			}
			if got.String() != want.String() {
				t.Errorf("%s: %v, want %v", test.why, got, want)
			}
		})
	}
	target := view().Target
	target.Spec.MinReadySeconds, target.Spec.ProgressDeadlineSeconds = 90, ptr.To(int32(5400))
	want := &pb.ReleasePolicy{
		Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"},
		MinReady: durationpb.New(90 * time.Second), ProgressDeadline: durationpb.New(90 * time.Minute),
	}
	if diff := cmp.Diff(want, policy(target, &v1beta1.ReleasePlan{}), protocmp.Transform()); diff != "" {
		t.Errorf("of a target without a plan, -want +got:\n%s", diff)
	}
	set := view().Target
	set.Spec.WorkloadRef.Kind = plugin.KindDisaggregatedSet
	want = &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%", "100%"}}
	if diff := cmp.Diff(want, policy(set, planOf("50% 100%", "7")), protocmp.Transform()); diff != "" {
		t.Errorf("of a DisaggregatedSet, -want +got:\n%s", diff)
	}
}
