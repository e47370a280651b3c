// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// planned is the release of docs/plan.md: 4 groups of 2 pods with 8 GPUs each.
func planned(t *testing.T) *pb.PlanResponse {
	t.Helper()
	policy, bad := record.ParsePolicy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"},
		Traffic: &pb.TrafficPolicy{StableService: "vllm-leader", HttpRoutes: []string{"vllm"}},
	})
	require.Empty(t, bad)
	template := lws.LeaderWorkerTemplate{Size: ptr.To[int32](2), WorkerTemplate: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "server", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
		}}},
	}}}
	r, err := simulate.Release(simulate.Input{
		Replicas: 4, Rolling: lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)}, Old: template, New: template,
		Policy: policy, Startup: 10 * time.Minute,
	})
	require.NoError(t, err)
	r.StartupGroups = 4
	return r
}

func mustDocument(t *testing.T, block string) {
	t.Helper()
	document, err := os.ReadFile("../../../docs/plan.md")
	require.NoError(t, err)
	assert.Contains(t, string(document), "```text\n"+block+"```\n", "docs/plan.md lacks this block:\n%s", block)
}

// The documentation shows the output of the command.
func TestPlanIsDocumented(t *testing.T) {
	mustDocument(t, Plan("default/vllm", planned(t)))
}

func TestPlanNotes(t *testing.T) {
	r := planned(t)
	r.Startup, r.Estimate = nil, nil
	for _, s := range r.GetSteps() {
		s.Estimate = nil
	}
	r.Blockers = []*pb.Warning{{Code: "QuotaExceeded", Message: "no\nroom\x1b"}}
	r.Warnings = []*pb.Warning{{Code: "FewReplicas", Message: "one\ngroup"}}
	text := Plain(Plan("default/vllm", r))
	for _, want := range []string{"Start-up  unknown\n", "\nblocked: no room [QuotaExceeded]\nwarning: one group [FewReplicas]\n"} {
		assert.Contains(t, text, want, "the plan lacks %q:\n%s", want, text)
	}
	assert.False(t, strings.Contains(text, "Time ") || strings.Contains(text, "10m"),
		"the plan has a time, though the start-up time is unknown:\n%s", text)
}
