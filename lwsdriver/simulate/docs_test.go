// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	canary    = pb.Style_STYLE_CANARY
	blueGreen = pb.Style_STYLE_BLUE_GREEN
	partition = pb.Style_STYLE_PARTITION
)

// strategies are the rows of docs/plan.md: 4 groups of 2 pods with 8 GPUs each, 10 minutes to start a group.
var strategies = []struct {
	name               string
	style              pb.Style
	batches            []string
	unavailable, surge string
	routed, adopted    bool
}{
	{name: "Rolling, 1 unavailable", style: canary, batches: []string{"0"}, unavailable: "1", surge: "0"},
	{name: "Rolling, surge 1", style: canary, batches: []string{"0"}, unavailable: "0", surge: "1"},
	{name: "Recreate", style: canary, batches: []string{"0"}, unavailable: "100%", surge: "0"},
	{name: "Partition 25%, 50%, 100%", style: partition, batches: []string{"25%", "50%", "100%"}, unavailable: "1", surge: "0"},
	{name: "Approval per group", style: partition, batches: []string{"1", "2", "3", "4"}, unavailable: "1", surge: "0"},
	{name: "Canary 25%, 50%, 100%", style: canary, batches: []string{"25%", "50%", "100%"}, unavailable: "1", surge: "0", routed: true},
	{name: "Canary of 1 group", style: canary, batches: []string{"1"}, unavailable: "1", surge: "0", routed: true},
	{name: "Blue-green", style: blueGreen, batches: []string{"100%"}, unavailable: "1", surge: "0", routed: true},
	{name: "Blue-green, adopted", style: blueGreen, batches: []string{"100%"}, unavailable: "1", surge: "0", routed: true, adopted: true},
}

// TestStrategiesDocument checks that the figures in the documentation are the planner's.
func TestStrategiesDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/plan.md")
	require.NoError(t, err)
	for _, s := range strategies {
		var in Input
		plan := func(parallel, rollback bool) *pb.PlanResponse {
			policy := &pb.ReleasePolicy{Style: s.style, Batches: s.batches}
			if s.routed {
				policy.Traffic = routes()
			}
			if s.adopted {
				policy.BlueGreen = &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}
			}
			in = input(t, policy)
			in.Rolling, in.StatefulSetMaxUnavailable, in.Rollback = rolling(s.unavailable, s.surge), parallel, rollback
			r, err := Release(in)
			require.NoError(t, err)
			return r
		}
		r, fast, back := plan(false, false), plan(true, false), "a second update"
		if s.batches[0] != "0" {
			steps := plan(false, true).GetSteps()
			back = fmt.Sprintf("%.0f min", steps[len(steps)-1].GetEstimate().AsDuration().Minutes())
		}
		least, extra, gpus := 1.0, int32(0), "0"
		for _, step := range append(r.GetSteps(), fast.GetSteps()...) {
			least = min(least, step.GetMinCapacity())
			if step.GetExtraGroups() > extra {
				extra, gpus = step.GetExtraGroups(), step.GetExtraResources()["nvidia.com/gpu"]
			}
		}
		row := fmt.Sprintf("| %s | %.0f %% | %d | %s | %.0f min | %.0f min | %s |", s.name, 100*least, extra, gpus,
			r.GetEstimate().AsDuration().Minutes(), fast.GetEstimate().AsDuration().Minutes(), back)
		assert.Contains(t, string(document), row+"\n", "docs/plan.md lacks this row:\n%s", row)
	}
}
