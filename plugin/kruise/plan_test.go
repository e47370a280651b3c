// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
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

// led is a target that a Rollout is at work on.
func led(v *View) { metav1.SetMetaDataAnnotation(&v.Target.ObjectMeta, annotationProgressing, "{}") }

// release is ours, in a state and with so many groups asked for.
func releasing(state pb.State, planned int32) func(*View) {
	return func(v *View) {
		c := v.Context
		c.State, c.Planned, c.ReleaseId, c.Owner = state, planned, "r", ownerOf(v.Target)
		c.StableRevision, c.UpdateRevision = "one", "two"
	}
}

func unheld(v *View)  { v.Context.State = pb.State_STATE_UNMANAGED }
func unbound(v *View) { v.Target.Finalizers = nil }

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

// TestPlan runs testdata/plan.txt: each line is a View in the words of define. Below is the move, the target's condition, whether it is reconciled again without an event, and what it counts.
func TestPlan(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/plan.txt", func(t *testing.T, d *datadriven.TestData) string {
		v := view()
		words.Set(t, d.CmdArgs, func(f *flag.FlagSet) { define(f, &v) })
		m := planMove(v)
		told := describe(m)
		if m.action != actNone {
			if _, begins := m.call.Request.(*pb.InitializeRequest); begins && !plugin.Waits(v.Context) {
				assert.False(t, v.needsEvidence(), "%s: a refused field of the Rollout would keep a release of nothing from beginning", d.Pos)
			}
			return fmt.Sprintf("%s: %s\n", told, m.why)
		}
		for _, c := range m.status.Conditions {
			told += strings.TrimSuffix(fmt.Sprintf(", %s: %s", c.Reason, c.Message), ": ")
		}
		switch reason := m.status.Conditions[0].Reason; {
		case reason == reasonNotRequested:
			assert.True(t, v.needsEvidence(), "%s: no watch reports what it waits for", d.Pos)
		case v.needsEvidence():
			told += ", again"
		}
		if s := m.status; s.ObservedGeneration > 0 {
			told += fmt.Sprintf("\n  observed %d: %d groups, %d ready, %d updated and %d of these ready, %s to %s",
				s.ObservedGeneration, s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas, s.CurrentRevision, s.UpdateRevision)
		}
		return told + "\n"
	})
}

// define defines what makes of a View another one, in the order of the words.
func define(f *flag.FlagSet, v *View) {
	change := func(word, usage string, change func(*View)) {
		f.BoolFunc(word, usage, func(string) error { change(v); return nil })
	}
	text := func(word, usage string, change func(string) func(*View)) {
		f.Func(word, usage, func(s string) error { change(s)(v); return nil })
	}
	number := func(word, usage string, change func(int32) func(*View)) {
		f.Func(word, usage, func(s string) error {
			var n int32
			err := words.Number(&n)(s)
			change(n)(v)
			return err
		})
	}
	text("at", "revisions of the groups", func(s string) func(*View) { return at(strings.ReplaceAll(s, ",", " ")) })
	text("template", "of the workload, of which the target knows", template)
	text("edited", "template of which the target does not know yet", edited)
	text("asks", "revision that a BatchRelease asks for", asks)
	text("batches", "of the BatchRelease", func(s string) func(*View) {
		return func(v *View) {
			var batches []any
			for _, b := range strings.Split(s, ",") {
				batches = append(batches, map[string]any{"canaryReplicas": intstr.Parse(b)})
			}
			v.Evidence.BatchRelease.Object["spec"] = map[string]any{"releasePlan": map[string]any{"batches": batches}}
		}
	})
	number("batch", "current one of the BatchRelease, from 0", func(n int32) func(*View) {
		return func(v *View) {
			v.Evidence.BatchRelease.Object["status"].(map[string]any)["canaryStatus"] = map[string]any{"currentBatch": int64(n)}
		}
	})
	text("phase", "of the Rollout", phase)
	text("shows", "canary revision, state of the step and progress of a Rollout", func(s string) func(*View) {
		part := strings.Split(s, "/")
		return shows(part[0], part[1], part[2])
	})
	text("release", "state of the target's release", func(s string) func(*View) {
		return releasing(pb.State(pb.State_value["STATE_"+s]), 0)
	})
	text("intent", "of the release", func(s string) func(*View) {
		return func(v *View) { v.Context.Intent = pb.FinalizeIntent(pb.FinalizeIntent_value["FINALIZE_INTENT_"+s]) }
	})
	text("id", "of the release", func(s string) func(*View) { return func(v *View) { v.Context.ReleaseId = s } })
	text("rollout-id", "of the workload", func(s string) func(*View) { return func(v *View) { v.Workload.RolloutID = s } })
	text("labelled", "rollout id of the target", func(s string) func(*View) { return func(v *View) { v.Target.Labels[labelRolloutID] = s } })
	number("partition", "of the target", partition)
	number("planned", "groups that are requested", func(n int32) func(*View) { return func(v *View) { v.Context.Planned = n } })
	number("available", "updated groups that have been ready for minReadySeconds", func(n int32) func(*View) {
		return func(v *View) { v.Context.UpdatedReady = n }
	})
	number("scaled", "replicas of the target", func(n int32) func(*View) { return func(v *View) { v.Target.Spec.Replicas = &n } })
	number("generation", "of the Rollout", func(n int32) func(*View) { return func(v *View) { v.Evidence.Rollout.SetGeneration(int64(n)) } })
	number("units", "of a DisaggregatedSet, with the last group beside them", units)
	change("paused", "the target is", func(v *View) { v.Target.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{Paused: true} })
	change("led", "a Rollout is at work on the target", led)
	change("no-template", "the target has none", func(v *View) { v.Target.Spec.Template = nil })
	change("no-stable", "no revision serves", func(v *View) { v.Context.StableRevision = "" })
	change("foreign", "the release is of another host", func(v *View) { v.Context.Owner = "argo-rollouts/default/vllm" })
	change("last", "the release is the one that the BatchRelease asks for", func(v *View) { v.Context.ReleaseId = releaseID(v.Target, "fedcba98-76", "two") })
	change("ended", "a target before this one has left a BatchRelease", func(v *View) {
		v.Evidence.BatchRelease = &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "vllm"}, "status": map[string]any{"phase": "Completed"},
		}}
	})
	change("rival", "another target is older", func(v *View) { v.Rival = "older" })
	change("followed", "another target is younger", func(v *View) { v.Successor = true })
	change("deleted", "the target is", func(v *View) { v.Target.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
	change("promote", "the release of a target that is deleted", func(v *View) { v.Target.Spec.OnDeletion = v1alpha1.OnDeletionPromote })
	change("unbound", "the target has no finalizer", unbound)
	change("missing", "the workload is", func(v *View) { v.Workload, v.Context = nil, nil })
	change("unknown", "the driver does not know the workload", func(v *View) { v.Context = nil })
	change("going", "the workload is being deleted", func(v *View) { v.Workload.Deleting = true })
	change("unheld", "the workload is not adopted", unheld)
}

// units makes the workload a DisaggregatedSet of so many groups, and the last group one of its update.
func units(replicas int32) func(*View) {
	return func(v *View) {
		v.Target.Spec.WorkloadRef.Kind = plugin.KindDisaggregatedSet
		v.Context.Groups[len(v.Context.Groups)-1].Role, v.Context.Replicas = pb.GroupRole_GROUP_ROLE_CANARY, replicas
		v.Context.Roles = []*pb.Role{{Name: "prefill"}, {Name: "decode"}}
		copyWorkload(*v, v.Target)
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
		assert.Equal(t, want, policyOf(view().Target, plan).GetFailureThreshold(), threshold)
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
			got := policyOf(view().Target, planOf(test.plan, test.rolloutID))
			want := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: test.batches}
			if len(test.rolloutID) < 64 {
				want.RolloutId = test.rolloutID
			}
			assert.Equal(t, want.String(), got.String(), "%s: %v, want %v", test.why, got, want)
		})
	}
	target := view().Target
	target.Spec.MinReadySeconds, target.Spec.ProgressDeadlineSeconds = 90, ptr.To(int32(5400))
	want := &pb.ReleasePolicy{
		Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"},
		MinReady: durationpb.New(90 * time.Second), ProgressDeadline: durationpb.New(90 * time.Minute),
	}
	assert.Empty(t, cmp.Diff(want, policyOf(target, &v1beta1.ReleasePlan{}), protocmp.Transform()), "of a target without a plan, -want +got")
	set := view().Target
	set.Spec.WorkloadRef.Kind = plugin.KindDisaggregatedSet
	want = &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%", "100%"}}
	assert.Empty(t, cmp.Diff(want, policyOf(set, planOf("50% 100%", "7")), protocmp.Transform()), "of a DisaggregatedSet, -want +got")
}
