// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestPlanShowsWeights(t *testing.T) {
	t.Parallel()
	r := &pb.PlanResponse{Steps: []*pb.PlanStep{{TrafficWeight: 25}, {TrafficWeight: 100}, {TrafficWeight: 100}}}
	for _, f := range [][2]int32{{0, 0}, {0, 25}, {1, 25}, {1, 100}, {2, 100}, {2, 100}} {
		r.Frames = append(r.Frames, &pb.PlanFrame{Step: f[0], TrafficWeight: f[1]})
	}
	setWeights(r, []int32{10, 60})
	var steps, frames []int32
	for _, s := range r.GetSteps() {
		steps = append(steps, s.GetTrafficWeight())
	}
	for _, f := range r.GetFrames() {
		frames = append(frames, f.GetTrafficWeight())
	}
	if diff := cmp.Diff([]int32{10, 60, 100}, steps); diff != "" {
		t.Errorf("steps: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]int32{0, 10, 10, 60, 100, 100}, frames); diff != "" {
		t.Errorf("frames: -want, +got:\n%s", diff)
	}
}
