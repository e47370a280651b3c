// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// schedule runs a host, a cluster and users in any order, each for any number of steps.
type schedule struct {
	*rapid.T
	release *v1beta1.BatchRelease
	driver  *model
	// completed is whether the phase has been Completed, and over the status since it is for good.
	completed bool
	over      *v1beta1.BatchReleaseStatus
}

func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := &schedule{T: t, release: batchRelease(0), driver: newModel(4)}
		s.release.Spec.ReleasePlan.RollingStyle = rapid.SampledFrom([]v1beta1.RollingStyleType{
			"", v1beta1.PartitionRollingStyle, v1beta1.CanaryRollingStyle, v1beta1.BlueGreenRollingStyle,
		}).Draw(t, "style")
		t.Repeat(map[string]func(*rapid.T){
			"host":     s.step,
			"tick":     func(*rapid.T) { s.driver.tick() },
			"template": s.template,
			"plan":     s.plan,
			"scale":    s.scale,
			"trouble":  s.trouble,
			"end":      s.end,
			"":         s.check,
		})
		s.mustArrive()
	})
}

// step is one decision of the host, which may be interrupted between status and call.
func (s *schedule) step(t *rapid.T) {
	status, call := Next(s.release, s.driver.context(), noon)
	s.release.Status = status
	s.judge(call)
	if rapid.IntRange(0, 4).Draw(t, "interrupted") == 0 {
		return
	}
	if _, err := s.driver.Call(t.Context(), call.Request); err != nil {
		s.release.Status = refused(s.release, err)
	}
}

// judge checks what must hold of every call.
func (s *schedule) judge(call converge.Move) {
	plan, deleted := &s.release.Spec.ReleasePlan, s.release.DeletionTimestamp != nil
	switch r := call.Request.(type) {
	case *pb.UpgradeBatchRequest:
		want := plannedGroups(v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(r.GetGroups())}, s.driver.replicas)
		last := min(ptr.Deref(plan.BatchPartition, -1), int32(len(plan.Batches))-1)
		if deleted || last < 0 || want > plannedGroups(plan.Batches[last], s.driver.replicas) {
			s.Fatalf("%d groups are asked for, beyond batchPartition %d", want, last)
		}
		if brief(s.release.Status) != itoa(s.release.Status.CanaryStatus.CurrentBatch)+" Upgrading" {
			s.Fatalf("groups are asked for while the status says %s", brief(s.release.Status))
		}
	case *pb.FinalizeRequest:
		promote := r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
		phase := s.release.Status.Phase
		if phase != v1beta1.RolloutPhaseFinalizing && phase != v1beta1.RolloutPhaseCompleted ||
			promote && phase != v1beta1.RolloutPhaseCompleted && plan.BatchPartition != nil || !promote && !deleted && phase != v1beta1.RolloutPhaseCompleted {
			s.Fatalf("%v, batchPartition %v, deleted %v, phase %s", r.GetIntent(), plan.BatchPartition, deleted, s.release.Status.Phase)
		}
		if promote && (r.GetUpdateRevision() == "" || s.release.Status.UpdateRevision != "" && r.GetUpdateRevision() != s.release.Status.UpdateRevision) {
			s.Fatalf("it promotes revision %q, and the batches were those of %q", r.GetUpdateRevision(), s.release.Status.UpdateRevision)
		}
	case *pb.InitializeRequest:
		if deleted || plan.BatchPartition == nil || r.GetTemplateRevision() == "" {
			s.Fatalf("release %s of template %q begins, deleted %v, batchPartition %v", r.GetReleaseId(), r.GetTemplateRevision(), deleted, plan.BatchPartition)
		}
	case *pb.AdoptRequest:
		if deleted {
			s.Fatalf("%T for a BatchRelease that goes", r)
		}
	}
}

// check is called after everything that happens.
func (s *schedule) check(t *rapid.T) {
	status := s.release.Status
	ready := status.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState
	if ready != (status.CanaryStatus.BatchReadyTime != nil) {
		t.Fatalf("batch state %q with batchReadyTime %v", status.CanaryStatus.CurrentBatchState, status.CanaryStatus.BatchReadyTime)
	}
	if status.Phase == v1beta1.RolloutPhaseProgressing && int(status.CanaryStatus.CurrentBatch) >= 4 {
		t.Fatalf("batch %d", status.CanaryStatus.CurrentBatch)
	}
	if s.completed && status.Phase != v1beta1.RolloutPhaseCompleted {
		t.Fatalf("it was completed, and is %s", status.Phase)
	}
	s.completed = status.Phase == v1beta1.RolloutPhaseCompleted
	if s.over != nil {
		now := status.DeepCopy()
		now.ObservedGeneration = s.over.ObservedGeneration
		if diff := cmp.Diff(s.over, now); diff != "" {
			t.Fatalf("it was over, and is not any more: %s", diff)
		}
	}
	if s.over == nil && Over(s.release) {
		s.over = status.DeepCopy()
	}
}

func (s *schedule) template(t *rapid.T) {
	s.driver.template = rapid.SampledFrom([]string{"v1", "v2", "v3"}).Draw(t, "template")
}

func (s *schedule) plan(t *rapid.T) {
	plan := &s.release.Spec.ReleasePlan
	plans := [][]string{{"25%", "50%", "100%"}, {"1", "2", "3", "4"}, {"1", "50%"}, {"100%"}, {"0%", "75%"}}
	plan.Batches = batchRelease(0, rapid.SampledFrom(plans).Draw(t, "batches")...).Spec.ReleasePlan.Batches
	plan.RolloutID = rapid.SampledFrom([]string{"", "x"}).Draw(t, "rolloutID")
	if plan.BatchPartition != nil {
		plan.BatchPartition = ptr.To(rapid.Int32Range(0, 5).Draw(t, "partition"))
	}
	s.release.Generation++
}

func (s *schedule) scale(t *rapid.T) {
	s.driver.replicas = rapid.Int32Range(1, 9).Draw(t, "replicas")
	s.driver.resize()
}

// trouble is a driver that refuses everything for a while, or a release that fails.
func (s *schedule) trouble(t *rapid.T) {
	switch rapid.IntRange(0, 2).Draw(t, "trouble") {
	case 0:
		s.driver.fail = drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN, "forbidden")
	case 1:
		s.driver.fail = nil
	default:
		if s.driver.state == pb.State_STATE_READY {
			s.driver.state = pb.State_STATE_FAILED
		}
	}
}

// end is a decision for the end, which comes rarely.
func (s *schedule) end(t *rapid.T) {
	plan := &s.release.Spec.ReleasePlan
	switch rapid.IntRange(0, 12).Draw(t, "end") {
	case 0:
		if plan.BatchPartition == nil {
			return
		}
		plan.BatchPartition = nil
		plan.FinalizingPolicy = rapid.SampledFrom([]v1beta1.FinalizingPolicyType{
			v1beta1.WaitResumeFinalizingPolicyType, v1beta1.ImmediateFinalizingPolicyType,
		}).Draw(t, "policy")
		s.release.Generation++
	case 1:
		s.release.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
	case 2:
		if s.driver.flying() && s.driver.state != pb.State_STATE_PREPARING {
			s.driver.state = pb.State_STATE_ROLLING_BACK
		}
	}
}

// mustArrive lets everybody finish, and checks that it is where it should be.
func (s *schedule) mustArrive() {
	s.driver.fail = nil
	for range 30 {
		before, was := s.driver.context(), s.release.Status.DeepCopy()
		play(s, s.release, s.driver)
		s.check(s.T)
		s.driver.settle()
		if proto.Equal(before, s.driver.context()) && cmp.Diff(*was, s.release.Status) == "" {
			break
		}
	}
	plan, status, d := &s.release.Spec.ReleasePlan, s.release.Status, s.driver
	last := min(ptr.Deref(plan.BatchPartition, 0), int32(len(plan.Batches))-1)
	switch status.Phase {
	case v1beta1.RolloutPhaseCompleted:
		if d.flying() {
			s.Fatalf("completed, and the driver is %s", d.state)
		}
	case v1beta1.RolloutPhasePreparing:
		if s.release.DeletionTimestamp != nil || d.flying() || plan.BatchPartition != nil && d.template != plugin.Serving(d.context()) {
			s.Fatalf("it waits in Preparing, deleted %v, %+v, the driver at %v", s.release.DeletionTimestamp, plan, d.context())
		}
	case v1beta1.RolloutPhaseFinalizing:
		if blockedReason(status) != "NotRequested" || plan.BatchPartition != nil || d.template == status.UpdateRevision {
			s.Fatalf("it rests at %s: %+v, the driver at %v", brief(status), status, d.context())
		}
	default:
		if brief(status) != itoa(last)+" Ready" || s.release.DeletionTimestamp != nil || plan.BatchPartition == nil ||
			d.planned() < plannedGroups(plan.Batches[last], d.replicas) {
			s.Fatalf("it rests at %s: %+v, the driver at %v", brief(status), status, d.context())
		}
	}
}
