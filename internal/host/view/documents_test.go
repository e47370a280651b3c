// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestDocumentsParseBack(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		format Format
		split  func(text string) []string
	}{
		"JSON": {
			reason: "one object per line",
			format: FormatJSON,
			split:  func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") },
		},
		"YAML": {
			reason: "a stream of documents",
			format: FormatYAML,
			split:  func(text string) []string { return strings.Split(text, "---\n")[1:] },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			printer := NewDocuments(&b, tc.format)
			for _, e := range events() {
				printer.Observe(e)
			}
			documents := tc.split(b.String())
			if len(documents) != len(events()) || printer.Err() != nil {
				t.Fatalf("%s: %d documents for %d events, %v", tc.reason, len(documents), len(events()), printer.Err())
			}
			for i, text := range documents {
				e := events()[i]
				var got Document
				require.NoError(t, yaml.Unmarshal([]byte(text), &got), "document %d", i)
				var c pb.BatchContext
				require.NoError(t, protojson.Unmarshal(got.Context, &c), "document %d: context", i)
				assert.True(t, got.Event == string(e.Kind) && got.Message == e.Message && got.Outcome == string(e.Outcome) && got.Time.Equal(e.Time),
					"document %d = %+v, want event %s at %s", i, got, e.Kind, e.Time)
				assert.Empty(t, cmp.Diff(e.Context, &c, protocmp.Transform()), "document %d: context: -want, +got", i)
			}
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestDocumentsKeepFirstError(t *testing.T) {
	t.Parallel()
	printer := NewDocuments(brokenPipe{}, FormatJSON)
	printer.Observe(StatusEvent(upgrading()))
	assert.Error(t, printer.Err(), "Err() = nil after a write that failed")
}

func TestHistory(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	got := History([]*pb.Revision{
		{Name: "f", Images: []string{"server=v4", "log=v1"}, Current: true, ChangedBy: "kubectl-edit"},
		{Name: "e", Number: 5, CreateTime: ago(time.Minute), Images: []string{"server=v3", "log=v1"}, ReleaseId: "r5", Outcome: pb.State_STATE_ROLLING_BACK},
		{Name: "d", Number: 4, CreateTime: ago(time.Hour), Images: []string{"server=v3", "log=v1"}, ReleaseId: "r4", Owner: "jo", Outcome: pb.State_STATE_COMPLETED, Stable: true},
		{Name: "c", Number: 3, CreateTime: ago(25 * time.Hour), Images: []string{"server=v2", "log=v1"}, ReleaseId: "r3\x1b[2J"},
		{Name: "b", Number: 2, CreateTime: ago(26 * time.Hour), Images: []string{"server=v1"}, Problem: "ControllerRevision x can't be trusted"},
		{Name: "a", Number: 1, CreateTime: ago(27 * time.Hour), Images: []string{"server=v1"}, ChangedBy: "helm"},
	}, now)
	want := `
   REVISION  HASH  WHEN     IMAGES             RELEASE  OUTCOME
>  -         f     -        server=v4          -        waits for a release
   5         e     60s ago  -                  r5       rolling back
*  4         d     60m ago  server=v3          r4       promoted
   3         c     25h ago  server=v2, log=v1  r3 [2J   unknown
   2         b     26h ago  -                  -        can't be trusted: edited
   1         a     27h ago  server=v1          -        -
`
	assert.Empty(t, cmp.Diff(strings.TrimPrefix(want, "\n"), got), "history (-want +got)")
	never := History([]*pb.Revision{{Name: "a", Current: true, Stable: true}}, now)
	assert.True(t, strings.Contains(never, "*") && !strings.Contains(never, "waits"),
		"a workload that was never adopted runs its template:\n%s", never)
	assert.Contains(t, History(nil, now), "no history yet", "no history")
}

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
