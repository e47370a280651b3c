// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
