// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// released is a BatchRelease whose release of v2 stands at its partition.
func released(t *testing.T, r *v1beta1.BatchRelease) *model {
	t.Helper()
	d := newModel(4)
	run(t, r, d)
	d.template = "v2"
	run(t, r, d)
	d.calls = nil
	return d
}

func TestFailureThresholdRoundsUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		threshold string
		state     pb.State
		reason    string
		updated   int32
		ready     int32
		want      bool
	}{
		{"no threshold", "", pb.State_STATE_UPGRADING, "", 4, 3, false},
		{"26 % of 4 are 2", "26%", pb.State_STATE_UPGRADING, "", 4, 2, true},
		{"26 % of 4 are not 3", "26%", pb.State_STATE_UPGRADING, "", 4, 1, false},
		{"a count", "1", pb.State_STATE_UPGRADING, "", 4, 3, true},
		{"none ready", "100%", pb.State_STATE_UPGRADING, "", 4, 0, false},
		{"a group is missing", "50%", pb.State_STATE_UPGRADING, "", 3, 3, false},
		{"after the deadline", "26%", pb.State_STATE_FAILED, "ProgressDeadlineExceeded", 4, 2, true},
		{"failed otherwise", "26%", pb.State_STATE_FAILED, "RecordInvalid", 4, 2, false},
		{"waiting for labels", "26%", pb.State_STATE_VERIFYING, "LabelingPods", 4, 4, false},
		{"the driver's verdict", "", pb.State_STATE_READY, "", 4, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := batchRelease(0)
			if c.threshold != "" {
				r.Spec.ReleasePlan.FailureThreshold = ptr.To(intstr.Parse(c.threshold))
			}
			m := &machine{release: r, context: &pb.BatchContext{
				State: c.state, Reason: c.reason, Planned: 4, Updated: c.updated, UpdatedReady: c.ready,
			}}
			if got := m.ready(); got != c.want {
				t.Errorf("ready: %v, want %v", got, c.want)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	r, d := batchRelease(0), newModel(4)
	if got := join(run(t, r, d)); got != "Preparing, Preparing" {
		t.Errorf("without a new template: %s", got)
	}
	if !strings.Contains(r.Status.Message, "begins when the template changes") {
		t.Errorf("message %q", r.Status.Message)
	}
	d.template = "v2"
	if got := join(run(t, r, d)); got != "Preparing, 0 Upgrading, 0 Verifying, 0 Ready" {
		t.Errorf("batch 0: %s", got)
	}
	s := r.Status
	want := v1beta1.BatchReleaseStatus{
		Phase: v1beta1.RolloutPhaseProgressing, StableRevision: "v1", UpdateRevision: "v2", ObservedGeneration: 1,
		ObservedWorkloadReplicas: 4, ObservedReleasePlanHash: HashPlan(&r.Spec.ReleasePlan),
		CanaryStatus: v1beta1.BatchReleaseCanaryStatus{
			CurrentBatchState: v1beta1.ReadyBatchState, BatchReadyTime: ptr.To(metav1.NewTime(noon)), UpdatedReplicas: 1, UpdatedReadyReplicas: 1,
		},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	r.Spec.ReleasePlan.BatchPartition = nil
	r.Spec.ReleasePlan.FinalizingPolicy = v1beta1.WaitResumeFinalizingPolicyType
	if got := join(play(t, r, d)); got != "Finalizing, Finalizing" {
		t.Errorf("after batchPartition is gone: %s", got)
	}
	if got := join(run(t, r, d)); !strings.HasSuffix(got, "Completed") || r.Status.CanaryStatus.UpdatedReadyReplicas != 4 {
		t.Errorf("the end: %s, %+v", got, r.Status)
	}
	if got := strings.Join(d.calls, ", "); got != "Adopt, Initialize v2, UpgradeBatch 25%, PROMOTE" {
		t.Errorf("calls: %s", got)
	}
}

// A promotion that has failed is not requested again: the driver completes it once the cause is resolved.
func TestFailedPromotionIsRequestedOnce(t *testing.T) {
	t.Parallel()
	r := batchRelease(0)
	d := released(t, r)
	r.Spec.ReleasePlan.BatchPartition, r.Spec.ReleasePlan.FinalizingPolicy = nil, v1beta1.WaitResumeFinalizingPolicyType
	play(t, r, d)
	c := d.context()
	c.State, c.Reason, c.Message, c.Intent = pb.State_STATE_FAILED, "ProgressDeadlineExceeded", "group 1", pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	status, call := Next(r, c, noon)
	if call.Request != nil || status.Phase != v1beta1.RolloutPhaseFinalizing || !strings.Contains(status.Message, "ProgressDeadlineExceeded: group 1") {
		t.Errorf("%+v, call %q", status, call.Why)
	}
}

// promoted returns a BatchRelease whose host has not seen yet that the driver is done.
func promoted(t *testing.T) (*v1beta1.BatchRelease, *model) {
	t.Helper()
	r := batchRelease(0)
	d := released(t, r)
	r.Spec.ReleasePlan.BatchPartition = nil
	for play(t, r, d); d.state != pb.State_STATE_COMPLETED; d.tick() {
	}
	return r, d
}

// LWS may recreate a group at the moment of the end: the driver is done, one group is not ready, and then it is.
func TestGroupNotReadyAtTheEnd(t *testing.T) {
	t.Parallel()
	r, d := promoted(t)
	look := func(ready int32, now time.Time) v1beta1.BatchReleaseStatus {
		c := d.context()
		c.UpdatedReady = ready
		status, call := Next(r, c, now)
		if call.Request != nil {
			t.Errorf("with %d groups ready it calls the driver: %s", ready, call.Why)
		}
		return status
	}
	r.Status = look(3, noon)
	if r.Status.Phase != v1beta1.RolloutPhaseCompleted || Over(r) || !strings.HasSuffix(r.Status.Message, "3 of 4 are ready") {
		t.Errorf("with 3 of 4 ready: over %t, %+v", Over(r), r.Status)
	}
	if again := look(3, noon.Add(time.Minute)); cmp.Diff(again, r.Status) != "" {
		t.Errorf("nothing has changed, and the status is %+v, was %+v", again, r.Status)
	}
	r.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
	if r.Status = look(3, noon); !Over(r) {
		t.Errorf("a BatchRelease that is being deleted waits for a group: %+v", r.Status)
	}
}

// Completed or not, what was asked for is done to the end.
func TestNewTemplateInAnImmediatePromotion(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} {
		r := batchRelease(0)
		d := released(t, r)
		r.Spec.ReleasePlan.BatchPartition = nil
		play(t, r, d)
		if deleted {
			r.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
		}
		d.template = "v3"
		d.tick() // The driver starts over.
		if c := d.context(); Over(r) || c.GetState() != pb.State_STATE_HOLDING {
			t.Fatalf("over %v, the driver at %v", Over(r), c)
		}
		r.Spec.ReleasePlan.BatchPartition = ptr.To[int32](0) // Too late.
		run(t, r, d)
		if s := r.Status; s.Phase != v1beta1.RolloutPhaseCompleted || !strings.HasPrefix(s.Message, "rolled back") || !Over(r) || len(s.Conditions) != 0 {
			t.Errorf("deleted %v: %+v, the driver at %v: no batch asked for revision v3", deleted, s, d.context())
		}
	}
}

// A promotion that fails after Immediate names the reason, for which a deletion waits.
func TestFailureOfAnImmediatePromotion(t *testing.T) {
	t.Parallel()
	r := batchRelease(0)
	d := released(t, r)
	r.Spec.ReleasePlan.BatchPartition = nil
	play(t, r, d)
	r.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
	for _, says := range []string{"group 2 is lost", "the driver completes"} {
		c := d.context()
		c.Intent = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
		if says == "group 2 is lost" {
			c.State, c.Reason, c.Message = pb.State_STATE_FAILED, "ProgressDeadlineExceeded", says
		}
		if r.Status, _ = Next(r, c, noon); Over(r) || !strings.Contains(r.Status.Message, says) {
			t.Errorf("over %t, %+v, want it to say %q", Over(r), r.Status, says)
		}
	}
}

func TestPlanChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		change       func(*v1beta1.ReleasePlan)
		batch        int32
		calls        string
	}{
		{"a higher partition", "Kruise is at the named batch at once", func(p *v1beta1.ReleasePlan) { p.BatchPartition = ptr.To[int32](2) }, 2, "UpgradeBatch 100%"},
		{"a lower partition", "batches never decrease", func(p *v1beta1.ReleasePlan) { p.BatchPartition = ptr.To[int32](0) }, 0, ""},
		{"a partition above all", "the last batch", func(p *v1beta1.ReleasePlan) { p.BatchPartition = ptr.To[int32](9) }, 2, "UpgradeBatch 100%"},
		{"another batch", "the batch grows", func(p *v1beta1.ReleasePlan) { p.Batches[1].CanaryReplicas.StrVal = "75%" }, 1, "UpgradeBatch 75%"},
		{"fewer batches", "the last one of those left", func(p *v1beta1.ReleasePlan) { p.Batches = p.Batches[:1] }, 0, ""},
		{"another rolloutID", "its labels begin at the first batch", func(p *v1beta1.ReleasePlan) { p.RolloutID = "x" }, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := batchRelease(1)
			d := released(t, r)
			c.change(&r.Spec.ReleasePlan)
			story := run(t, r, d)
			s := r.Status
			if s.CanaryStatus.CurrentBatch != c.batch || s.CanaryStatus.CurrentBatchState != v1beta1.ReadyBatchState {
				t.Errorf("%s: %s", c.reason, join(story))
			}
			if got := strings.Join(d.calls, ", "); got != c.calls {
				t.Errorf("%s: calls %q, want %q", c.reason, got, c.calls)
			}
			if s.ObservedReleasePlanHash != HashPlan(&r.Spec.ReleasePlan) || s.ObservedRolloutID != r.Spec.ReleasePlan.RolloutID {
				t.Errorf("the plan is not on record: %+v", s)
			}
			if c.name == "another rolloutID" && story[0] != "0 Upgrading" {
				t.Errorf("%s: %s", c.reason, join(story))
			}
		})
	}
}

func TestScaling(t *testing.T) {
	t.Parallel()
	r := batchRelease(1)
	d := released(t, r)
	d.replicas = 8
	d.resize()
	story := run(t, r, d)
	s := r.Status
	if s.ObservedWorkloadReplicas != 8 || s.CanaryStatus.UpdatedReadyReplicas != 4 || brief(s) != "1 Ready" || story[0] != "1 Upgrading" {
		t.Errorf("%s: %+v", join(story), s)
	}
}

func TestNewTemplateStartsOver(t *testing.T) {
	t.Parallel()
	r := batchRelease(1)
	d := released(t, r)
	d.template = "v3"
	if story := play(t, r, d); brief(r.Status) != "1 Upgrading" || r.Status.CanaryStatus.BatchReadyTime != nil {
		t.Errorf("while the driver is not at it: %s", join(story))
	}
	d.tick()
	if story := play(t, r, d); r.Status.UpdateRevision != "v3" || r.Status.CanaryStatus.CurrentBatch != 0 {
		t.Errorf("at the new template: %s", join(story))
	}
	run(t, r, d)
	if got := strings.Join(d.calls, ", "); got != "UpgradeBatch 25%, UpgradeBatch 50%" || brief(r.Status) != "1 Ready" {
		t.Errorf("calls %s; %s", got, brief(r.Status))
	}
}

func TestRollbackByTemplate(t *testing.T) {
	t.Parallel()
	for style, spared := range map[v1beta1.RollingStyleType]int32{
		v1beta1.PartitionRollingStyle: 2, v1beta1.CanaryRollingStyle: 4, v1beta1.BlueGreenRollingStyle: 4,
	} {
		r := batchRelease(1)
		r.Spec.ReleasePlan.RollingStyle = style
		d := released(t, r)
		d.template = "v1"
		story := run(t, r, d)
		s := r.Status
		if s.Phase != v1beta1.RolloutPhaseCompleted || ptr.Deref(s.CanaryStatus.NoNeedUpdateReplicas, -1) != spared ||
			s.UpdateRevision != "v1" || s.CanaryStatus.UpdatedReplicas != 4 || len(d.calls) != 0 || !strings.Contains(s.Message, "rolled back") {
			t.Errorf("%s: %s, %v, %+v", style, join(story), d.calls, s)
		}
	}
}

func TestNewTemplateInARollback(t *testing.T) {
	t.Parallel()
	r := batchRelease(1)
	d := released(t, r)
	d.template = "v1"
	d.tick()
	if play(t, r, d); r.Status.CanaryStatus.NoNeedUpdateReplicas == nil || d.state != pb.State_STATE_ROLLING_BACK {
		t.Fatalf("%+v, the driver is %s", r.Status, d.state)
	}
	d.template, d.update, d.target, d.state = "v3", "v3", "", pb.State_STATE_HOLDING // The driver starts over.
	run(t, r, d)
	if s := r.Status; brief(s) != "1 Ready" || s.UpdateRevision != "v3" || s.CanaryStatus.NoNeedUpdateReplicas != nil {
		t.Errorf("%+v", s)
	}
}

// An invalid plan does not block the end.
func TestDeletion(t *testing.T) {
	t.Parallel()
	r := batchRelease(0)
	d := released(t, r)
	r.Spec.ReleasePlan.RollingStyle, r.Spec.ReleasePlan.Batches = "", nil
	r.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
	if play(t, r, d); r.Status.Phase != v1beta1.RolloutPhaseFinalizing {
		t.Errorf("it is %s before the driver is done", r.Status.Phase)
	}
	if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhaseCompleted || strings.Join(d.calls, ", ") != "ROLLBACK" {
		t.Errorf("%s, %v", r.Status.Phase, d.calls)
	}
}

func TestWithoutPartitionFromTheStart(t *testing.T) {
	t.Parallel()
	r, d := batchRelease(-1), newModel(4)
	run(t, r, d)
	d.template = "v2"
	if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhasePreparing || strings.Join(d.calls, ", ") != "Adopt" || blocked(r.Status) != "NotRequested" {
		t.Errorf("without a batch: %+v, calls %v", r.Status, d.calls)
	}
	r.Spec.ReleasePlan.BatchPartition = ptr.To[int32](0)
	if run(t, r, d); brief(r.Status) != "0 Ready" {
		t.Errorf("with a batch: %+v, calls %v", r.Status, d.calls)
	}
}

func TestOthersEndIt(t *testing.T) {
	t.Parallel()
	for state, end := range map[pb.State]string{pb.State_STATE_PROMOTING: "promoted", pb.State_STATE_ROLLING_BACK: "rolled back"} {
		r := batchRelease(0)
		d := released(t, r)
		d.state = state
		if play(t, r, d); r.Status.Phase != v1beta1.RolloutPhaseFinalizing {
			t.Errorf("%s: %s", state, r.Status.Phase)
		}
		if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhaseCompleted || len(d.calls) != 0 || !strings.HasPrefix(r.Status.Message, end) {
			t.Errorf("%s: %+v, %v", state, r.Status, d.calls)
		}
		// The template is still the new one: no group has nothing to be updated to.
		if s := r.Status; s.CanaryStatus.NoNeedUpdateReplicas != nil || s.UpdateRevision != "v2" {
			t.Errorf("%s: %+v", state, s)
		}
	}
}

func TestWorkloadGone(t *testing.T) {
	t.Parallel()
	r, d := batchRelease(0), newModel(4)
	d.exists = false
	if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhasePreparing || !strings.Contains(r.Status.Message, "adopted when it is created") {
		t.Errorf("before there was one: %+v", r.Status)
	}
	d.exists, d.template = true, "v2"
	run(t, r, d)
	if brief(r.Status) != "0 Ready" {
		t.Fatalf("it is %s", brief(r.Status))
	}
	d.exists = false
	if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhaseCompleted || r.Status.Message != "the workload is gone" {
		t.Errorf("in mid-release: %+v", r.Status)
	}
}

func TestWorkloadMadeAgain(t *testing.T) {
	t.Parallel()
	r := batchRelease(0)
	released(t, r)
	d := newModel(3)
	if run(t, r, d); r.Status.Phase != v1beta1.RolloutPhasePreparing || strings.Join(d.calls, ", ") != "Adopt" || r.Status.UpdateRevision != "" {
		t.Errorf("%+v: %v", r.Status, d.calls)
	}
}

func TestReleaseOfAnother(t *testing.T) {
	t.Parallel()
	r, d := batchRelease(0), newModel(4)
	run(t, r, d)
	d.template, d.id, d.owner, d.state = "v2", "other", "another-host", pb.State_STATE_UPGRADING
	d.update = "v2"
	d.calls = nil
	run(t, r, d)
	if len(d.calls) != 0 || len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Reason != "ReleaseOfAnother" {
		t.Errorf("%v, %+v", d.calls, r.Status)
	}
	d.state, d.stable, d.template = pb.State_STATE_COMPLETED, "v1", "v3"
	if run(t, r, d); brief(r.Status) != "0 Ready" || len(r.Status.Conditions) != 0 {
		t.Errorf("once that is over: %+v", r.Status)
	}
}

// The driver labels no pods of a DisaggregatedSet, and a release would wait for them.
func TestRolloutIDOfASet(t *testing.T) {
	t.Parallel()
	r := batchRelease(1)
	r.Spec.WorkloadRef = v1beta1.ObjectRef{APIVersion: "disaggregatedset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "vllm"}
	r.Spec.ReleasePlan.RolloutID = "7"
	s, call := Next(r, &pb.BatchContext{State: pb.State_STATE_HOLDING, Replicas: 4, TemplateRevision: "two", StableRevision: "one"}, time.Now())
	if call.Request != nil || len(s.Conditions) != 1 || s.Conditions[0].Reason != "InvalidPlan" || !strings.Contains(s.Message, "rolloutID") {
		t.Errorf("call %v, status %+v", call.Request, s)
	}
}

func TestFailureIsSaidAndPasses(t *testing.T) {
	t.Parallel()
	r := batchRelease(1)
	d := released(t, r)
	d.state = pb.State_STATE_FAILED
	play(t, r, d)
	if s := r.Status; brief(s) != "1 Verifying" || len(s.Conditions) != 1 || s.Conditions[0].Message != "message" || s.Message != "message" {
		t.Errorf("%+v", s)
	}
	if run(t, r, d); brief(r.Status) != "1 Ready" || len(r.Status.Conditions) != 0 || r.Status.Message != "" {
		t.Errorf("%+v", r.Status)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	r, d := batchRelease(0), newModel(4)
	run(t, r, d)
	d.template = "v2"
	d.fail = drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN, "the name is taken")
	play(t, r, d)
	if s := r.Status; len(s.Conditions) != 1 || s.Conditions[0].Reason != "NameTaken" || s.Message != "the name is taken" {
		t.Errorf("%+v", s)
	}
	if story := play(t, r, d); len(story) != 0 {
		t.Errorf("refused the same way again, it writes %v", story)
	}
	d.fail = nil
	if run(t, r, d); brief(r.Status) != "0 Ready" || len(r.Status.Conditions) != 0 {
		t.Errorf("%+v", r.Status)
	}
	r.Spec.ReleasePlan.BatchPartition = ptr.To[int32](1)
	d.fail = drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN, "no right to scale")
	if play(t, r, d); brief(r.Status) != "1 Upgrading" || r.Status.Message != "no right to scale" {
		t.Errorf("in mid-release: %+v", r.Status)
	}
	if story := play(t, r, d); len(story) != 0 {
		t.Errorf("refused the same way again in mid-release, it writes %v", story)
	}
	if s := Refused(r, errors.New("x"), noon.Add(time.Hour)); s.Message != "x" {
		t.Errorf("an error of no driver: %+v", s)
	}
}

func TestSupports(t *testing.T) {
	t.Parallel()
	for ref, want := range map[v1beta1.ObjectRef]bool{
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "a"}:   true,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet"}:              false,
		{APIVersion: "disaggregatedset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "a"}: true,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "a"}:  false,
		{APIVersion: "lockstep.dev/v1alpha1", Kind: "RolloutTarget", Name: "a"}:           false,
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}:                            false,
		{APIVersion: "a/b/c", Kind: "LeaderWorkerSet", Name: "a"}:                         false,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "leaderworkersets", Name: "ab"}: false,
	} {
		if got := Supports(&v1beta1.BatchRelease{Spec: v1beta1.BatchReleaseSpec{WorkloadRef: ref}}); got != want {
			t.Errorf("%+v: %v", ref, got)
		}
	}
}
