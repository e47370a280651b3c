// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestPolicy(t *testing.T) {
	t.Parallel()
	metadata := &v1beta1.PatchPodTemplateMetadata{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
	leader := &pb.PodMetadata{Labels: metadata.Labels, Annotations: metadata.Annotations}
	for _, c := range []struct {
		name string
		plan func(*v1beta1.ReleasePlan)
		want *pb.ReleasePolicy
	}{
		{"no style", func(*v1beta1.ReleasePlan) {}, &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION}},
		{
			"the flag that says canary", func(p *v1beta1.ReleasePlan) { p.EnableExtraWorkloadForCanary = true },
			&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY},
		},
		{"the flag is old", func(p *v1beta1.ReleasePlan) {
			p.EnableExtraWorkloadForCanary, p.RollingStyle = true, v1beta1.PartitionRollingStyle
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION}},
		{"canary with metadata", func(p *v1beta1.ReleasePlan) {
			p.RollingStyle, p.PatchPodTemplateMetadata = v1beta1.CanaryRollingStyle, metadata
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, CanaryLeaderMetadata: leader}},
		{"blue-green with metadata", func(p *v1beta1.ReleasePlan) {
			p.RollingStyle, p.PatchPodTemplateMetadata = v1beta1.BlueGreenRollingStyle, metadata
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, CanaryLeaderMetadata: leader}},
		{"threshold and id", func(p *v1beta1.ReleasePlan) {
			p.FailureThreshold, p.RolloutID = ptr.To(intstr.Parse("20%")), "one"
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, FailureThreshold: "20%", RolloutId: "one"}},
		{"counts beside percentages", func(p *v1beta1.ReleasePlan) {
			p.Batches = []v1beta1.ReleaseBatch{{CanaryReplicas: intstr.Parse("1")}, {CanaryReplicas: intstr.Parse("30%")}, {CanaryReplicas: intstr.Parse("100%")}}
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"1", "3", "9"}}},
		{"a count that is more than the percentage after it", func(p *v1beta1.ReleasePlan) {
			p.Batches = []v1beta1.ReleaseBatch{{CanaryReplicas: intstr.Parse("6")}, {CanaryReplicas: intstr.Parse("50%")}, {CanaryReplicas: intstr.Parse("100%")}}
		}, &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"6", "6", "9"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := batchRelease(0)
			c.plan(&r.Spec.ReleasePlan)
			got, err := Policy(&r.Spec.ReleasePlan, 9)
			require.NoError(t, err)
			if c.want.Batches == nil {
				c.want.Batches = []string{"25%", "50%", "100%"}
			}
			assert.Empty(t, cmp.Diff(c.want, got, protocmp.Transform()))
		})
	}
}

func TestBadPlans(t *testing.T) {
	t.Parallel()
	batches := func(all ...string) func(*v1beta1.ReleasePlan) {
		return func(p *v1beta1.ReleasePlan) {
			p.Batches = nil
			for _, b := range all {
				p.Batches = append(p.Batches, v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(b)})
			}
		}
	}
	for _, c := range []struct {
		says string
		plan func(*v1beta1.ReleasePlan)
	}{
		{"batches: is empty", batches()},
		{"batches[1]: 25% is less", batches("50%", "25%")},
		{"batches[1]: 1 is less", batches("2", "1")},
		{"batches[0]: \"half\" is neither", batches("half")},
		{"batches[0]: \"\" is neither", batches("")},
		{"batches[0]: \"-5%\" is neither", batches("-5%")},
		{"batches[1]: 101% is more", batches("1%", "101%")},
		{"batches[0]: -1 is negative", batches("-1")},
		{"rollingStyle \"Recreate\" is unknown", func(p *v1beta1.ReleasePlan) { p.RollingStyle = "Recreate" }},
		{"finalizingPolicy \"Never\" is unknown", func(p *v1beta1.ReleasePlan) { p.FinalizingPolicy = "Never" }},
		{"batchPartition -1 is negative", func(p *v1beta1.ReleasePlan) { p.BatchPartition = ptr.To[int32](-1) }},
		{"failureThreshold: \"few\"", func(p *v1beta1.ReleasePlan) { p.FailureThreshold = ptr.To(intstr.Parse("few")) }},
		{"patchPodTemplateMetadata: groups that are replaced in place", func(p *v1beta1.ReleasePlan) {
			p.RollingStyle, p.PatchPodTemplateMetadata = v1beta1.PartitionRollingStyle, &v1beta1.PatchPodTemplateMetadata{}
		}},
		{"rolloutID \"a b\"", func(p *v1beta1.ReleasePlan) { p.RolloutID = "a b" }},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			r, d := batchRelease(0), newModel(4)
			d.template, d.state = "v2", pb.State_STATE_HOLDING
			c.plan(&r.Spec.ReleasePlan)
			run(t, r, d)
			s := r.Status
			assert.True(t, len(d.calls) == 0 && len(s.Conditions) == 1 && s.Conditions[0].Reason == "InvalidPlan" && strings.HasPrefix(s.Message, "spec.releasePlan."+c.says),
				"before the release: %v, %+v", d.calls, s)
			if r = batchRelease(0); c.plan != nil {
				d = released(t, r)
				c.plan(&r.Spec.ReleasePlan)
				run(t, r, d)
				if s := r.Status; len(d.calls) != 0 || s.Phase != v1beta1.RolloutPhaseProgressing || len(s.Conditions) != 1 {
					t.Errorf("in mid-release: %v, %+v", d.calls, s)
				}
			}
			good := batchRelease(1).Spec.ReleasePlan
			r.Spec.ReleasePlan = good
			run(t, r, d)
			assert.True(t, brief(r.Status) == "1 Ready" && len(r.Status.Conditions) == 0, "mended: %+v", r.Status)
		})
	}
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
			assert.Equal(t, c.want, m.ready(), "ready")
		})
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
		assert.Equal(t, want, Supports(&v1beta1.BatchRelease{Spec: v1beta1.BatchReleaseSpec{WorkloadRef: ref}}), ref)
	}
}

func TestEvent(t *testing.T) {
	t.Parallel()
	status := func(phase v1beta1.RolloutPhase, batch int32, state v1beta1.BatchReleaseBatchStateType, blockedBy string) v1beta1.BatchReleaseStatus {
		s := v1beta1.BatchReleaseStatus{Phase: phase, Message: "why"}
		s.CanaryStatus.CurrentBatch, s.CanaryStatus.CurrentBatchState = batch, state
		if blockedBy != "" {
			s.Conditions = []v1beta1.RolloutCondition{{Type: v1beta1.RolloutConditionProgressing, Status: corev1.ConditionFalse, Reason: blockedBy}}
		}
		return s
	}
	progressing := v1beta1.RolloutPhaseProgressing
	verifying := status(progressing, 0, v1beta1.VerifyingBatchState, "")
	blocked := status(progressing, 0, v1beta1.VerifyingBatchState, "Forbidden")
	for _, c := range []struct {
		name     string
		was, now v1beta1.BatchReleaseStatus
		want     string
	}{
		{"the first batch begins", status(v1beta1.RolloutPhasePreparing, 0, "", ""), status(progressing, 0, v1beta1.UpgradingBatchState, ""), "Normal BatchUpgrading batch 1 is upgrading: why"},
		{"a batch is verified", status(progressing, 0, v1beta1.UpgradingBatchState, ""), verifying, ""},
		{"a batch is ready", verifying, status(progressing, 0, v1beta1.ReadyBatchState, ""), "Normal BatchReady batch 1 is ready: why"},
		{"the next batch begins", status(progressing, 0, v1beta1.ReadyBatchState, ""), status(progressing, 1, v1beta1.UpgradingBatchState, ""), "Normal BatchUpgrading batch 2 is upgrading: why"},
		{"nothing changes", verifying, verifying, ""},
		{"it is blocked", verifying, blocked, "Warning Forbidden why"},
		{"it is still blocked", blocked, blocked, ""},
		{"it is blocked by something else", blocked, status(progressing, 0, v1beta1.VerifyingBatchState, "NameTaken"), "Warning NameTaken why"},
		{"it ends", verifying, status(v1beta1.RolloutPhaseCompleted, 0, v1beta1.VerifyingBatchState, ""), "Normal Completed why"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kind, reason, note := Event(c.was, c.now)
			got := kind + " " + reason + " " + note
			assert.False(t, got != c.want && (c.want != "" || kind != ""), "got %q, want %q", got, c.want)
		})
	}
}
