// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// unready is the annotation patch that makes pods unready until heal.
var unready = map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}

// A share follows the ready groups: it falls while too few are ready, in blue-green back to the workload's own groups, and
// rises by itself. An abort is not held up by it.
//
// Proves (test, canary): Safety rule 2: a share follows the ready groups.
// Proves: Safety rule 2, in each style.
func TestShareFollowsCapacity(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, tc := range []struct {
		style
		weight  int32
		batches []string
		// first is the first updated group, and left the share that one of the updated groups keeps.
		first int
		left  int32
		// reason is why the weight is not verified meanwhile.
		reason string
	}{
		{canaryStyle, 100, []string{"100%"}, 0, 0, "CapacityBelowShare"},
		{blueGreenStyle, 100, []string{"100%"}, 0, 0, "GroupsNotReady"},
		{partitionStyle, 75, []string{"75%", "100%"}, 1, 50, "CapacityBelowShare"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model(tc.name, 4, 2))
			w.expose()
			w.edit(image("v2"))
			w.initialize("r1", w.withTraffic(tc.policy(policy(tc.batches...))))
			set := w.name
			if c := w.upgrade("r1", 0).GetContext(); !tc.inPlace() {
				set = c.GetCanaryWorkload()
			}
			w.setWeight(tc.weight)
			var lost []int
			for i := tc.first + 1; i < 4; i++ {
				lost = append(lost, i)
			}
			w.patchPods(set, unready, lost...)
			w.await("the share falls", func(c *pb.BatchContext) bool { return c.GetTrafficWeight() == tc.left })
			if c := w.context(); c.GetRequestedWeight() != tc.weight || c.GetStableReady() != int32(tc.first)+4*notIn(tc.style) {
				t.Errorf("one group is left: %s", show(c))
			} else if tc.reason == "CapacityBelowShare" && !strings.Contains(c.GetMessage(), fmt.Sprintf("so %d %% of the requests instead of %d %%", tc.left, tc.weight)) {
				t.Errorf("message %q", c.GetMessage())
			}
			if v := w.verifyWeight(tc.weight); v.GetVerified() || v.GetReason() != tc.reason || v.GetWeight() != tc.left {
				t.Errorf("VerifyWeight(%d) with one group: %v", tc.weight, v)
			}
			w.patchPods(set, heal, lost...)
			w.await("the share is in force again", func(c *pb.BatchContext) bool {
				return c.GetTrafficWeight() == tc.weight && c.GetState() == pb.State_STATE_READY
			})
			v := w.verifyWeight(tc.weight)
			assert.True(t, v.GetVerified(), "VerifyWeight(%d) with all groups: %v", tc.weight, v)
			w.patchPods(set, unready, lost...)
			w.await("the share falls again", func(c *pb.BatchContext) bool { return c.GetTrafficWeight() == tc.left })
			w.finalize("r1", rollback)
			w.mustBeIdle()
		})
	}
}

// notIn returns 1 if the workload's own groups are not updated in a style, and 0 otherwise.
func notIn(s style) int32 {
	if s.inPlace() {
		return 0
	}
	return 1
}

// setWeight requests a share and returns once it is verified.
func (w *workload) setWeight(weight int32) {
	w.t.Helper()
	r, err := w.driver.SetWeight(w.t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight, Wait: long})
	require.True(w.t, err == nil && r.GetVerified(), "SetWeight(%d): %v, %v", weight, r, err)
}

// verifyWeight calls VerifyWeight.
func (w *workload) verifyWeight(weight int32) (r *pb.VerifyWeightResponse) {
	w.t.Helper()
	w.eventually("VerifyWeight", func(ctx context.Context) (err error) {
		r, err = w.driver.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight})
		return err
	})
	return r
}
