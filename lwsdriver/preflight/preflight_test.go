// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight/manifests"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var update = flag.Bool("update", false, "write the golden files anew")

// snapshotOf reads an example. Its first line may say, behind a #, what release is to come and what is expected:
// style=canary batches=50%,100% service=vllm min-ready=1m deadline=5m longest-request=1m propagation=10s topology=KEY
// header-routes=true.
func snapshotOf(t *testing.T, path string) *preflight.Inventory {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	set := manifests.NewSet("default")
	require.NoError(t, set.Add(filepath.Base(path), text))
	all, err := set.Inventories("")
	require.True(t, err == nil && len(all) == 1, "%s: %d workloads, %v", path, len(all), err)
	s := all[0]
	first, _, _ := strings.Cut(string(text), "\n")
	if words, ok := strings.CutPrefix(first, "# "); ok {
		expect(t, s, strings.Fields(words))
	}
	return s
}

func expect(t *testing.T, s *preflight.Inventory, words []string) {
	t.Helper()
	p := &pb.ReleasePolicy{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		took, _ := time.ParseDuration(value)
		switch key {
		case "style":
			p.Style = pb.Style(pb.Style_value["STYLE_"+strings.ToUpper(strings.ReplaceAll(value, "-", "_"))])
		case "batches":
			p.Batches = strings.Split(value, ",")
		case "service":
			p.Traffic = &pb.TrafficPolicy{StableService: value, HttpRoutes: []string{value}}
		case "min-ready":
			p.MinReady = durationpb.New(took)
		case "deadline":
			p.ProgressDeadline = durationpb.New(took)
		case "longest-request":
			s.Expect.LongestRequest = took
		case "propagation":
			s.Expect.EndpointPropagation = took
		case "header-routes":
			s.Expect.HeaderRoutes = value == "true"
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	if p.GetStyle() == pb.Style_STYLE_UNSPECIFIED {
		return
	}
	policy, bad := record.ParsePolicy(p)
	require.Empty(t, bad)
	s.Policy = policy
}

// Each rule has an example that breaks it, whose findings are as they were, and one that does not, in which it did look.
func TestRules(t *testing.T) {
	for _, rule := range preflight.Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			dir := filepath.Join("testdata", rule.ID)
			failing := snapshotOf(t, filepath.Join(dir, "fail.yaml"))
			got := describe(found(preflight.Check(failing), rule.ID))
			golden := filepath.Join(dir, "fail.txt")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.True(t, got != "" && got == string(want), "fail.yaml: got\n%s\nwant\n%s", got, want)
			passing := snapshotOf(t, filepath.Join(dir, "pass.yaml"))
			r := preflight.Check(passing)
			if all := found(r, rule.ID); len(all) > 0 {
				t.Errorf("pass.yaml: %s", describe(all))
			}
			assert.False(t, rule.Applies != nil && !rule.Applies(passing), "pass.yaml: the rule does not apply, so that it passes says nothing")
			for _, u := range r.GetUnchecked() {
				assert.False(t, slices.Contains(u.GetRules(), rule.ID), "pass.yaml: the rule did not look: %s: %s", u.GetSubject(), u.GetReason())
			}
		})
	}
}

func found(r *pb.PreflightResponse, rule string) []*pb.Finding {
	return slices.DeleteFunc(slices.Clone(r.GetFindings()), func(f *pb.Finding) bool { return f.GetRule() != rule })
}

func describe(findings []*pb.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s: %s: %s\n  %s\n", f.GetSeverity(), preflight.Text(f.GetObject()), f.GetField(), f.GetMessage())
	}
	return b.String()
}

// Rules are whole and have ids of their own; and there are no examples of others.
func TestRulesAreComplete(t *testing.T) {
	var ids []string
	for _, rule := range preflight.Rules() {
		assert.True(t, regexp.MustCompile(`^([A-Z][a-z]+)+$`).MatchString(rule.ID) && !slices.Contains(ids, rule.ID), "id %q", rule.ID)
		ids = append(ids, rule.ID)
		for what, s := range map[string]string{"title": rule.Title, "why": rule.Why, "fix": rule.Fix} {
			assert.False(t, s == "" || strings.HasSuffix(s, "."), "%s: its %s is %q: want a sentence without its full stop", rule.ID, what, s)
		}
	}
	examples, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, e := range examples {
		if !slices.Contains(ids, e.Name()) {
			t.Errorf("testdata/%s is of no rule", e.Name())
		}
	}
}

// Sources that were not read are reported with the rules that did not run; rules that don't apply are left out.
func TestUnchecked(t *testing.T) {
	s := snapshotOf(t, "testdata/ReadinessProbeMissing/pass.yaml")
	s.Unseen[preflight.LongestRequests] = "not set"
	var got []string
	for _, u := range preflight.Check(s).GetUnchecked() {
		got = append(got, fmt.Sprintf("%s: %s %v", u.GetSubject(), u.GetReason(), u.GetRules()))
	}
	want := []string{
		"PodDisruptionBudgets: there are none in the files [BudgetBlocksEviction BudgetCountsPods]",
		"Services: there are none in the files [ServiceSelectsWorkers ServiceExcludesAdded]",
		"autoscalers: there are none in the files [AutoscalerToZero]",
		"the longest request: not set [GracePeriodBelowLongestRequest]",
		"the workload's status: the manifest has none [WorkloadApiTooOld]",
	}
	if !slices.Equal(got, want) { // no quotas, nodes and claims: nothing comes on top, nothing is mounted
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The most severe come first. Notes, and findings that are reported elsewhere, are not warnings.
func TestWarnings(t *testing.T) {
	s := snapshotOf(t, "testdata/AllUnavailable/fail.yaml")
	s.Workload.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"}
	s.Workload.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].ReadinessProbe = nil
	s.Workload.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Lifecycle = nil
	findings := preflight.Check(s).GetFindings()
	var rules, warned []string
	for _, f := range findings {
		rules = append(rules, f.GetRule())
	}
	for _, w := range preflight.Warnings(findings, &pb.Warning{Code: "PreStopMissing"}) {
		warned = append(warned, w.GetCode())
		assert.Contains(t, w.GetMessage(), ". ", "%s does not say what to do", w.GetCode())
	}
	assert.Equal(t, "[AllUnavailable ReadinessProbeMissing PreStopMissing GitOpsTracked] [AllUnavailable ReadinessProbeMissing]", fmt.Sprint(rules, warned))
}

// Each role of a DisaggregatedSet is judged, with its name and its fields in the set. What a release needs is that of all roles.
func TestRolesAreJudged(t *testing.T) {
	s := snapshotOf(t, "testdata/RolesNotPaired/fail.yaml")
	s.Quotas = []*corev1.ResourceQuota{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpus"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("100")}},
		Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("100")},
			Used: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("96")},
		},
	}}
	delete(s.Unseen, preflight.Quotas)
	r := preflight.Check(s)
	assert.Equal(t, "DisaggregatedSet", r.GetWorkload().GetKind(), "the workload is a")
	text := strings.ReplaceAll(describe(r.GetFindings()), "\n  ", ": ")
	for _, want := range []string{
		"SEVERITY_WARNING: DisaggregatedSet default/llm: spec.roles[0].spec.leaderWorkerTemplate.workerTemplate.spec.containers[0].readinessProbe: role prefill: no container",
		"spec.roles[1].spec.leaderWorkerTemplate.workerTemplate.spec.containers[0].readinessProbe: role decode: no container",
		"12 groups (24 pods) more do not fit",
	} {
		assert.Contains(t, text, want, "%q is missing in\n%s", want, text)
	}
	assert.NotContains(t, text, "maxUnavailable", "the groups of a role are not rolled")
}

// Requests enter by the role whose leaders the Service selects, by whatever labels, and else by the first one.
func TestEntryRole(t *testing.T) {
	const role = "disaggregatedset.x-k8s.io/role"
	for _, tt := range []struct {
		name     string
		selector map[string]string
		replicas int32
		want     int
	}{
		{"the role", map[string]string{role: "decode"}, 2, 1},
		{"a label of the template", map[string]string{"part": "answers"}, 2, 1},
		{"the first role", map[string]string{role: "prefill"}, 2, 0},
		{"a role without groups", map[string]string{role: "decode"}, 0, 1},
		{"no role", map[string]string{role: "embed"}, 2, 0},
		{"both roles", map[string]string{"disaggregatedset.x-k8s.io/name": "llm"}, 2, 0},
		{"workers only", map[string]string{role: "decode", "leaderworkerset.sigs.k8s.io/worker-index": "1"}, 2, 0},
		{"no selector", nil, 2, 0},
	} {
		s := snapshotOf(t, "testdata/RolesNotPaired/fail.yaml")
		decode := s.Roles[1].Workload
		decode.Spec.Replicas, decode.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels["part"] = ptr.To(tt.replicas), "answers"
		for _, o := range s.Services {
			if o.Name == "llm" {
				o.Spec.Selector = tt.selector
			}
		}
		if got := s.EntryRole(); got != tt.want {
			t.Errorf("%s: the entry role is %s", tt.name, s.Roles[got].Name)
		}
	}
}

// A Service of the first role is no way past a release whose requests enter by the second one.
func TestRolesNotPairedFollowsEntryRole(t *testing.T) {
	s := snapshotOf(t, "testdata/RolesNotPaired/fail.yaml")
	s.Policy.Traffic.StableService = "llm-decode"
	text := describe(preflight.Check(s).GetFindings())
	assert.True(t, strings.Contains(text, "role prefill: it selects 8 pods by other labels than their revision") && !strings.Contains(text, "role decode: it selects"),
		"the findings are\n%s", text)
	s.Policy.Traffic.Pool = &traffic.Pool{Stable: "llm", Canary: "llm-canary"}
	if own := describe(preflight.Check(s).GetFindings()); !strings.Contains(text, "InferencePool") || strings.Contains(own, "InferencePool") {
		t.Errorf("the release's own pool is judged, or no other one:\n%s\n%s", text, own)
	}
}

// docs/reference-preflight.md has the rules: `make generate` writes it.
func TestRulesReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Rules of preflight\n\nReference of every rule of [`lockstep preflight`](plan.md#preflight), generated from the rules themselves.\n")
	severities := map[pb.Severity]string{pb.Severity_SEVERITY_INFO: "Note", pb.Severity_SEVERITY_WARNING: "Warning", pb.Severity_SEVERITY_ERROR: "Error"}
	for _, rule := range preflight.Rules() {
		fmt.Fprintf(&b, "\n## %s\n\n*%s:* %s. %s.", rule.ID, severities[rule.Severity], rule.Title, rule.Why)
		if rule.Needs != "" {
			fmt.Fprintf(&b, " Reads %s.", rule.Needs)
		}
		if rule.Details != "" {
			fmt.Fprintf(&b, "\n\n%s.", rule.Details)
		}
		fmt.Fprintf(&b, "\n\n**Fix:** %s.\n", rule.Fix)
	}
	const path = "../../docs/reference-preflight.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(b.String(), string(got)), "docs/reference-preflight.md is stale, run make generate (-rules +file)")
}
