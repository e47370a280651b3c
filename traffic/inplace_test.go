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

// inPlace makes the release one in place, with the given updated leaders.
func (c *fakeCluster) inPlace(updated ...string) *fakeCluster {
	c.setup = NewSetupInPlace(workload("vllm"), "old", "new", c.setup.Policy, updated)
	return c
}

// TestOrderInPlace runs a release that updates groups in place: on the way down the Service is first.
func TestOrderInPlace(t *testing.T) {
	c := newFakeCluster(t).inPlace("vllm-2", "vllm-3")
	c.world.StableReady = []string{"vllm-0", "vllm-1", "vllm-2", "vllm-3"}
	user := c.world.Stable
	const stable, canary, http, grpc = "patch Service vllm", "Service vllm-canary", "patch HTTPRoute llm", "patch GRPCRoute llm"
	stableHalf := []string{"vllm-0", "vllm-1"}
	all := []string{"vllm-0", "vllm-1", "vllm-2", "vllm-3"}
	splitEnded := Desired{Prepared: true, SplitEnded: true}
	c.through([]stage{
		{"prepare", "the isolation first; updated leaders are still endpoints", nil, Desired{Prepared: true}, []string{stable, "create " + canary}, ReasonIsolationNotInForce},
		{"up", "as for a canary", func() { c.world.StableReady, c.world.CanaryReady = stableHalf, []string{"vllm-2", "vllm-3"} }, Desired{Weight: 50}, []string{http, grpc}, ReasonRouteNotObserved},
		{"endSplit", "the isolation is removed, and no share removed before the endpoints follow", c.acceptAll, splitEnded, []string{stable}, ReasonEndpointsNotFollowing},
		{"some endpoints", "not before all of them follow", func() { c.world.StableReady = all[:3] }, splitEnded, nil, ReasonEndpointsNotFollowing},
		{"down", "then the shares", func() { c.world.StableReady = all }, splitEnded, []string{http, grpc}, ReasonRouteNotObserved},
		{"splitEnded", "the gateways have accepted it", c.acceptAll, splitEnded, nil, ""},
		{"split again", "the isolation, then the shares", nil, Desired{Weight: 10}, []string{stable, http, grpc}, ReasonIsolationNotInForce},
		{"nothing desired", "the isolation is removed first here too", func() { c.world.StableReady = stableHalf; c.acceptAll() }, Desired{}, []string{stable}, ReasonEndpointsNotFollowing},
		{"clean up", "then shares and canary Service", func() { c.world.StableReady = all }, Desired{}, []string{http, grpc, "delete " + canary}, ReasonRouteNotObserved},
	})
	if diff := cmp.Diff(user.Spec, c.world.Stable.Spec); diff != "" {
		t.Errorf("the stable Service differs from the user's:\n%s", diff)
	}
}

// TestSelectorsInPlace: both Services select leaders of one workload, each those of one revision.
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
	want, changed, err := isolated(c.world.Stable, c.setup)
	if err != nil || !changed || want.Spec.Selector[lws.RevisionKey] != "new" {
		t.Errorf("the isolation does not follow the stable revision: %v, %v", want.Spec.Selector, err)
	}
	after, _, err := lifted(want)
	if _, left := after.Spec.Selector[lws.RevisionKey]; err != nil || left {
		t.Errorf("the isolation is not removed: %v, %v", after.Spec.Selector, err)
	}
}

// TestEndSplitInPlaceErrors: it is reported why the isolation can't be removed.
func TestEndSplitInPlaceErrors(t *testing.T) {
	c := newFakeCluster(t).inPlace()
	if _, err := Next(c.setup, Desired{SplitEnded: true, Weight: 10}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL {
		t.Errorf("splitEnded, with a share: %v", err)
	}
	c.world.Stable, c.world.StableReady = nil, nil
	v := Look(c.setup, Desired{SplitEnded: true, Prepared: true}, c.world)
	if _, err := Next(c.setup, Desired{SplitEnded: true, Prepared: true}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND {
		t.Errorf("without the stable Service: %v", err)
	}
	if v.Stage != Blocked {
		t.Errorf("without the stable Service: %+v", v)
	}
	if v := Look(c.setup, Desired{}, c.world); v.Stage < Written {
		t.Errorf("nothing is left to do: %+v", v)
	}
}
