// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// inPlace makes the two sides groups of one workload, of which those named are updated.
func (c *fakeCluster) inPlace(updated ...string) *fakeCluster {
	c.setup = NewSetupInPlace(workload("vllm"), "old", "new", c.setup.Policy, updated)
	return c
}

// TestOrderInPlace walks through a release that replaces groups: the way down begins with the Service.
func TestOrderInPlace(t *testing.T) {
	c := newFakeCluster(t).inPlace("vllm-2", "vllm-3")
	c.world.StableReady = []string{"vllm-0", "vllm-1", "vllm-2", "vllm-3"}
	user := c.world.Stable
	const stable, canary, http, grpc = "patch Service vllm", "Service vllm-canary", "patch HTTPRoute llm", "patch GRPCRoute llm"
	half := []string{"vllm-0", "vllm-1"}
	all := []string{"vllm-0", "vllm-1", "vllm-2", "vllm-3"}
	open := Desired{Prepared: true, Unfenced: true}
	c.through([]stage{
		{"prepare", "the fence first; endpoints of updated leaders are still there", nil, Desired{Prepared: true}, []string{stable, "create " + canary}, ReasonFenceNotInForce},
		{"up", "as for a canary", func() { c.world.StableReady, c.world.CanaryReady = half, []string{"vllm-2", "vllm-3"} }, Desired{Weight: 50}, []string{http, grpc}, ReasonRouteNotObserved},
		{"open", "the fence goes, and no share before the endpoints follow", c.acceptAll, open, []string{stable}, ReasonServiceNotOpen},
		{"still half open", "nor before all of them do", func() { c.world.StableReady = all[:3] }, open, nil, ReasonServiceNotOpen},
		{"down", "now the shares", func() { c.world.StableReady = all }, open, []string{http, grpc}, ReasonRouteNotObserved},
		{"opened", "the gateways have taken it", c.acceptAll, open, nil, ""},
		{"split again", "the fence, then the shares", nil, Desired{Weight: 10}, []string{stable, http, grpc}, ReasonFenceNotInForce},
		{"given up", "nothing desired goes the same way", func() { c.world.StableReady = half; c.acceptAll() }, Desired{}, []string{stable}, ReasonServiceNotOpen},
		{"clean up", "to its end", func() { c.world.StableReady = all }, Desired{}, []string{http, grpc, "delete " + canary}, ReasonRouteNotObserved},
	})
	if diff := cmp.Diff(user.Spec, c.world.Stable.Spec); diff != "" {
		t.Errorf("the stable Service is not as the user had it:\n%s", diff)
	}
}

// TestSelectorsInPlace: both Services select leaders of the one workload, each those of one revision.
func TestSelectorsInPlace(t *testing.T) {
	c := newFakeCluster(t).inPlace()
	for range 2 {
		write, err := Next(c.setup, Desired{Prepared: true}, c.world)
		if err != nil {
			t.Fatal(err)
		}
		c.apply(write)
	}
	stable, canary := c.world.Stable.Spec.Selector, c.world.Canary.Spec.Selector
	if stable[lws.RevisionKey] != "old" || canary[lws.RevisionKey] != "new" || canary[lws.SetNameLabelKey] != "vllm" || canary[lws.WorkerIndexLabelKey] != "0" {
		t.Errorf("stable %v, canary %v", stable, canary)
	}
	c.setup = NewSetupInPlace(workload("vllm"), "new", "newer", c.setup.Policy, nil)
	want, changed, err := Fence(c.world.Stable, c.setup)
	if err != nil || !changed || want.Spec.Selector[lws.RevisionKey] != "new" {
		t.Errorf("the fence does not follow the stable revision: %v, %v", want.Spec.Selector, err)
	}
	lifted, _, err := Lift(want)
	if _, left := lifted.Spec.Selector[lws.RevisionKey]; err != nil || left {
		t.Errorf("the fence is not lifted: %v, %v", lifted.Spec.Selector, err)
	}
}

// TestOpenInPlace: what can't be opened is said.
func TestOpenInPlace(t *testing.T) {
	c := newFakeCluster(t).inPlace()
	if _, err := Next(c.setup, Desired{Unfenced: true, Weight: 10}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL {
		t.Errorf("open, with a share: %v", err)
	}
	c.world.Stable, c.world.StableReady = nil, nil
	v := Look(c.setup, Desired{Unfenced: true, Prepared: true}, c.world)
	if _, err := Next(c.setup, Desired{Unfenced: true, Prepared: true}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND {
		t.Errorf("without the stable Service: %v", err)
	}
	if v.Stage != Blocked {
		t.Errorf("without the stable Service: %+v", v)
	}
	if v := Look(c.setup, Desired{}, c.world); v.Stage < Written {
		t.Errorf("nothing is left to do: %+v", v)
	}
}
