// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// parsed parses the gates of a policy file.
func parsed(t *testing.T, text string) ([]Gate, error) {
	t.Helper()
	var file struct {
		Gates yaml.Node `yaml:"gates"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &file))
	gates, err := Parse(&file.Gates)
	if err == nil {
		err = Check(gates)
	}
	return gates, err
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	about := Subject{Namespace: "ml", Name: "vllm", CanaryWorkload: "vllm-new", UpdateRevision: "new", StableRevision: "old"}
	documented, err := os.ReadFile("../../docs/gates.md")
	require.NoError(t, err)
	for _, listed := range Templates() {
		g, err := Template(listed.Name)
		require.NoError(t, err)
		row := fmt.Sprintf("\n| `%s` | %s | %s |\n", g.Name, g.Limits(), g.About)
		assert.Contains(t, string(documented), row, "docs/gates.md lacks %q", row)
		err = g.validate()
		assert.True(t, err == nil && g.About != "", "template %s: %v, about %q", g.Name, err, g.About)
		query, err := g.PromQL(about)
		assert.True(t, err == nil && strings.Contains(query, `leaderworkerset_sigs_k8s_io_template_revision_hash="new"`) && !strings.Contains(query, "{{"),
			"the query of %s is not about the canary: %v\n%s", g.Name, err, query)
	}
	assert.GreaterOrEqual(t, len(Templates()), 8, "templates")
}

// A query selects the pods of one workload at one revision: LWS hashes the template, so that of another workload may be equal.
func TestMatchers(t *testing.T) {
	t.Parallel()
	const name, revision = "leaderworkerset_sigs_k8s_io_name", "leaderworkerset_sigs_k8s_io_template_revision_hash"
	for reason, tc := range map[string]struct {
		about          Subject
		canary, stable string
	}{
		"added groups": {
			Subject{Name: "vllm", CanaryWorkload: "vllm-new"}, name + `="vllm-new",` + revision, name + `="vllm",` + revision,
		},
		"in place": {Subject{Name: "vllm"}, name + `="vllm",` + revision, name + `="vllm",` + revision},
		"a set": {
			Subject{Kind: "DisaggregatedSet", Name: "llm", CanaryWorkload: "llm-new"},
			`disaggregatedset_x_k8s_io_name="llm",disaggregatedset_x_k8s_io_revision`,
			`disaggregatedset_x_k8s_io_name="llm",disaggregatedset_x_k8s_io_revision`,
		},
	} {
		tc.about.Namespace, tc.about.UpdateRevision, tc.about.StableRevision = "ml", "new", "old"
		want := `namespace="ml",` + tc.canary + `="new" namespace="ml",` + tc.stable + `="old"`
		got, err := (Gate{Query: "{{.Canary}} {{.Stable}}"}).PromQL(tc.about)
		assert.True(t, err == nil && got == want, "%s: %v\ngot  %s\nwant %s", reason, err, got, want)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	gates, err := parsed(t, `
gates:
  - template: vllm-ttft
    max: 1.5
    failure_limit: 0
  - name: queue
    query: sum(vllm:num_requests_waiting{ {{.Canary}} }) + 0 * {{len .Name}}
    min: 0
    max: 100
    count: 3
    interval: 10s
    delay: 0s
`)
	require.NoError(t, err)
	ttft, queue := gates[0], gates[1]
	assert.True(t, ttft.Name == "vllm-ttft" && *ttft.Max == 1.5 && ttft.FailureLimit == 0 && ttft.Count == 5 && ttft.Query == Templates()[0].Query,
		"a template with other limits: %+v", ttft)
	again, err := Template("vllm-ttft")
	assert.True(t, err == nil && *again.Max == 1.2, "the template itself is changed: %+v, %v", again, err)
	assert.True(t, time.Duration(*ttft.Delay) == 2*time.Minute && time.Duration(*queue.Delay) == 0 && queue.Interval == model.Duration(10*time.Second),
		"delays %s and %s, interval %s", ttft.Delay, queue.Delay, queue.Interval)
	assert.Equal(t, "at least 0 and at most 100", queue.Limits(), "limits")
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ text, want string }{
		"NoList":       {"gates: vllm-ttft", "line 1: gates: want a list"},
		"NoGate":       {"gates:\n- vllm-ttft", "line 2: gates: want a gate"},
		"NoTemplate":   {"gates:\n- template: vllm", `there is no template "vllm"; want one of vllm-ttft`},
		"UnknownField": {"gates:\n- template: vllm-ttft\n  maximum: 1", `line 3: unknown field "maximum"; want one of template, name`},
		"NoQuery":      {"gates:\n- name: a\n  max: 1", "needs a template, or a name and a query"},
		"NoName":       {"gates:\n- query: up\n  max: 1", `name ""`},
		"NoLimit":      {"gates:\n- name: a\n  query: up", "gate a has no limit: set max or min"},
		"Empty":        {"gates:\n- name: a\n  query: up\n  min: 2\n  max: 1", "no value is at least 2 and at most 1"},
		"NoNumber":     {"gates:\n- name: a\n  query: up\n  max: x", "line 4"},
		"Limit":        {"gates:\n- name: a\n  query: up\n  max: 1\n  count: 3\n  failure_limit: 3", "failure_limit 3: want 0 to 2"},
		"NaN":          {"gates:\n- name: a\n  query: up\n  max: .nan", "limit NaN: want a number"},
		"Infinite":     {"gates:\n- name: a\n  query: up\n  max: .inf", "limit +Inf: want a number"},
		"Zero":         {"gates:\n- name: a\n  query: up\n  max: 1\n  interval: 0s", "line 5: interval: want more than 0"},
		"ZeroCount":    {"gates:\n- name: a\n  query: up\n  max: 1\n  count: 0", "line 5: count: want more than 0"},
		"BadBranch":    {"gates:\n- name: a\n  query: up {{if .UpdateRevision}}{{.Bad}}{{end}}\n  max: 1", "Bad"},
		"Count":        {"gates:\n- name: a\n  query: up\n  max: 1\n  count: -1", "count -1"},
		"Interval":     {"gates:\n- name: a\n  query: up\n  max: 1\n  interval: 10ms", "interval 10ms: want 1s or more"},
		"Duration":     {"gates:\n- name: a\n  query: up\n  max: 1\n  interval: soon", "soon"},
		"BadTemplate":  {"gates:\n- name: a\n  query: up{ {{.Canary }\n  max: 1", "gate a: parse query"},
		"BadVariable":  {"gates:\n- name: a\n  query: up{ {{.Revision}} }\n  max: 1", "Revision"},
		"Twice":        {"gates:\n- template: vllm-ttft\n- template: vllm-ttft", `two gates have the name "vllm-ttft"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parsed(t, tc.text)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}
