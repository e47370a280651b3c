// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

func with(args []string, more ...string) []string {
	return append(append([]string(nil), args...), more...)
}

// fileWithTraffic is a policy file that flags override.
const fileWithTraffic = `
batches: ["1", "4"]
traffic:
  stable_service: from-file
  canary_service: canary-from-file
  http_routes: [from-file]
  drain: {period: 10s}
`

// releaseOf parses a command line of lockstep release.
func releaseOf(t *testing.T, file string, args ...string) (host.Release, error) {
	t.Helper()
	f := newReleaseFlags()
	cmd := &cobra.Command{Use: "release"}
	cmd.SetOut(io.Discard)
	f.add(cmd)
	if file != "" {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--policy", path)
	}
	require.NoError(t, cmd.ParseFlags(args))
	return f.release()
}

func TestTrafficFlags(t *testing.T) {
	t.Parallel()
	two := []string{"--batches", "50%,100%"}
	cases := map[string]struct {
		reason  string
		file    string
		args    []string
		want    string
		weights []int32
	}{
		"None": {reason: "without traffic shares follow group counts", args: two},
		"One":  {reason: "a Service and a route", args: with(two, "--service", "vllm", "--http-route", "vllm"), want: `stable_service: "vllm" http_routes: "vllm"`},
		"All": {
			reason:  "each flag sets its field",
			args:    with(two, "--service", "s", "--http-route", "h1", "--http-route", "h2,h3", "--weights", "0,100"),
			want:    `stable_service: "s" http_routes: "h1" http_routes: "h2" http_routes: "h3"`,
			weights: []int32{0, 100},
		},
		"File": {
			reason: "weights are not part of the policy", file: fileWithTraffic, args: []string{"--weights", "10%, 60%"},
			want:    `stable_service: "from-file" canary_service: "canary-from-file" http_routes: "from-file" drain: {period: {seconds: 10}}`,
			weights: []int32{10, 60},
		},
		"Overridden": {
			reason: "a flag overrides its field only", file: fileWithTraffic, args: []string{"--http-route", "a", "--http-route", "b"},
			want: `stable_service: "from-file" canary_service: "canary-from-file" http_routes: "a" http_routes: "b" drain: {period: {seconds: 10}}`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := releaseOf(t, tc.file, tc.args...)
			require.NoError(t, err)
			var want *pb.TrafficPolicy
			if tc.want != "" {
				want = &pb.TrafficPolicy{}
				require.NoError(t, prototext.Unmarshal([]byte(tc.want), want))
			}
			assert.Empty(t, cmp.Diff(want, got.Policy.GetTraffic(), protocmp.Transform()), "%s: traffic: -want, +got", tc.reason)
			assert.Empty(t, cmp.Diff(tc.weights, got.Weights), "%s: weights: -want, +got", tc.reason)
		})
	}
}

// A flag overrides its field of the file, also by a zero.
func TestFlagsOverrideFile(t *testing.T) {
	t.Parallel()
	const file = "batches: [100%]\nstyle: blue-green\nmin_ready: 5m\nprogress_deadline: 1h\n"
	for want, args := range map[string][]string{"5m0s 1h0m0s": nil, "0s 1m0s": {"--min-ready=0", "--progress-deadline=1m"}} {
		release, err := releaseOf(t, file, args...)
		require.NoError(t, err)
		p := release.Policy
		assert.Equal(t, want, fmt.Sprint(p.GetMinReady().AsDuration(), p.GetProgressDeadline().AsDuration()), args)
	}
}

func TestTrafficFlagErrors(t *testing.T) {
	t.Parallel()
	routed := []string{"--batches", "25%,50%,100%", "--service", "vllm", "--http-route", "vllm"}
	cases := map[string]struct {
		reason string
		args   []string
		want   string
	}{
		"TooFewWeights":      {"one for each batch", with(routed, "--weights", "10,50"), "want one for each of the 3 batches (25%,50%,100%), got 2"},
		"TooManyWeights":     {"one for each batch", with(routed, "--weights", "1,2,3,4"), "got 4"},
		"NegativeWeight":     {"it is a percentage", with(routed, "--weights", "-1,2,3"), `"-1" is not a whole percentage`},
		"LargeWeight":        {"it is a percentage", with(routed, "--weights", "1,2,101"), `"101" is not a whole percentage`},
		"FractionalWeight":   {"fractions are not supported", with(routed, "--weights", "0.5,2,3"), `"0.5" is not a whole percentage`},
		"NoWeight":           {"an empty weight", with(routed, "--weights", "1,,3"), `"" is not a whole percentage`},
		"WeightsAlone":       {"requests are not split", []string{"--batches", "1", "--weights", "50"}, "give --service and a route"},
		"RouteAlone":         {"the Service is missing", []string{"--batches", "1", "--http-route", "h"}, "--http-route: no Service"},
		"HeaderAlone":        {"requests are not split", []string{"--batches", "1", "--canary-header", "a=b"}, "give --service and a route"},
		"HeaderWithoutValue": {"the value is missing", with(routed, "--canary-header", "a"), `"a": want a name and a value`},
		"CookieWithoutName":  {"the name is missing", with(routed, "--canary-cookie", "=a"), `"=a": want a name`},
		"CookieWithoutValue": {"an empty value", with(routed, "--canary-cookie", "a="), `"a=": want a name`},
		"GateTwice":          {"measurements are counted by name", []string{"--gate", "vllm-errors", "--gate", "vllm-errors"}, "two gates have the name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := releaseOf(t, "", tc.args...)
			assert.True(t, exit.Code(err) == exit.Usage && strings.Contains(err.Error(), tc.want),
				"%s: %v, want a usage error with %q", tc.reason, err, tc.want)
		})
	}
}

// The policy file in the documentation is valid.
func TestDocumentedPolicy(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/cli.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(text), "```yaml\n")
	block, _, closed := strings.Cut(block, "```\n")
	release, err := releaseOf(t, block)
	require.True(t, err == nil && found && closed, "docs/cli.md has no policy file: %v", err)
	_, violations := traffic.ParsePolicy(release.Policy.GetTraffic())
	assert.Empty(t, violations, "the policy in docs/cli.md is refused: %v", violations)
}

func TestPolicyFileSpelling(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"blue-green", "BlueGreen", "STYLE_BLUE_GREEN"} {
		got, err := releaseOf(t, "style: "+style+"\nbatches: [1]\nmin_ready: 1m30s\nprogress_deadline:\nblueGreen: {promotion: adopt, scale_down_delay: 1.5s}\n")
		if err != nil {
			t.Errorf("style %s: %v", style, err)
			continue
		}
		p := got.Policy
		assert.True(t, p.GetStyle() == pb.Style_STYLE_BLUE_GREEN && p.GetMinReady().AsDuration() == 90*time.Second && p.GetBlueGreen().GetPromotion() == pb.BluePromotion_BLUE_PROMOTION_ADOPT && p.GetBlueGreen().GetScaleDownDelay().AsDuration() == 1500*time.Millisecond,
			"style %s: got %v", style, p)
	}
}

// Gates stand in the file of the policy, and are the host's.
func TestPolicyFileGates(t *testing.T) {
	t.Parallel()
	got, err := releaseOf(t, "batches: [\"1\"]\ngates:\n- template: vllm-ttft\n- name: mine\n  query: up\n  min: 1\n")
	assert.True(t, err == nil && len(got.Gates) == 2 && got.Gates[0].Name == "vllm-ttft" && got.Gates[1].Query == "up",
		"gates %v, %v", got.Gates, err)
	assert.True(t, got.OnGateFailure == "rollback" && len(got.Policy.GetBatches()) == 1,
		"on a failed gate %s, policy %v", got.OnGateFailure, got.Policy)
}

func TestPolicyFileErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"Style":    {"batches: [\"1\"]\nstyle: canry\n", `line 2: style: "canry" is not allowed; want one of canary, blue-green, partition`},
		"Duration": {"\nmin_ready: soon\n", `line 2: min_ready: "soon" is not a duration`},
		"Field":    {"traffic:\n  stable_svc: x\n", `line 2: unknown field "traffic.stable_svc"; want one of stableService, `},
		"Typo":     {"batchs: []\n", `line 1: unknown field "batchs"; want one of style, `},
		"Gate":     {"batches: [\"1\"]\ngates:\n- template: vllm-ttft\n  limit: 2\n", `line 4: unknown field "limit"`},
		"Twice":    {"batches: [\"1\"]\nbatches: [\"2\"]\n", "line 2: batches is set twice, first in line 1"},
		"Gates":    {"gates: []\nbatches: [\"1\"]\ngates: []\n", "line 3: gates is set twice"},
		"List":     {"style: canary\nbatches: 25%\n", "line 2: batches: want a list: [25%]"},
		"Second":   {"batches: [\"1\"]\n---\nbatches: [\"2\"]\n", "a second document"},
		"Nested":   {"blue_green:\n  promotion: swap\n", `line 2: blue_green.promotion: "swap" is not allowed; want one of in-place, adopt`},
		"Syntax":   {"batches: [1\nstyle: x\n", "line "},
	} {
		_, err := releaseOf(t, tc.file)
		assert.True(t, exit.Code(err) == exit.Usage && strings.Contains(err.Error(), tc.want),
			"%s: %v, want a usage error with %q", name, err, tc.want)
	}
}

// A policy file is read or refused as one that is wrong.
func FuzzPolicyFile(f *testing.F) {
	f.Add("style: blue-green\nbatches: [25%, 100%]\nprogress_deadline: 1h30m\nblue_green: {promotion: adopt}\n")
	f.Add("batches: [1]\ngates:\n- {template: error-rate}\n")
	f.Add("a: &a {style: canary}\n<<: *a\n")
	f.Add("--- {}\n--- {}\n")
	path := filepath.Join(f.TempDir(), "policy.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		policy, err := (&policyFlags{file: path}).readFile()
		if err != nil {
			if exit.Code(err) != exit.Usage {
				t.Errorf("code %d of %v", exit.Code(err), err)
			}
			return
		}
		_, _ = record.ParsePolicy(policy)
	})
}
