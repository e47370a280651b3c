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

// TestHandoverOrder runs the end of a release whose canary becomes the workload: requests return to the stable Service once
// its endpoints are all of the canary's leaders and no others.
func TestHandoverOrder(t *testing.T) {
	blue, green := []string{"vllm-0", "vllm-1"}, []string{"vllm-abc123-0", "vllm-abc123-1"}
	both := []string{"vllm-abc123-0", "vllm-abc123-1", "vllm-1"}
	const stable, canary, http, grpc = "patch Service vllm", "Service vllm-canary", "patch HTTPRoute llm", "patch GRPCRoute llm"
	handedOver := Desired{Prepared: true, HandedOver: true}
	for name, pinned := range map[string]bool{"pinned by the isolation": false, "pinned by the user": true} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster(t)
			c.world.Stable = c.world.Stable.DeepCopy()
			if delete(c.world.Stable.Spec.Selector, lws.SetNameLabelKey); pinned {
				c.world.Stable.Spec.Selector[lws.SetNameLabelKey] = "vllm"
			}
			want := c.world.Stable.DeepCopy().Spec.Selector
			if pinned {
				want[lws.SetNameLabelKey] = "vllm-abc123"
			}
			prepare, lift := []string{stable, "create " + canary}, []string{"delete " + canary, stable}
			if pinned {
				prepare, lift = prepare[1:], lift[:1]
			}
			c.through([]stage{
				{"prepare", "as usual", func() { c.world.StableReady = blue }, Desired{Prepared: true}, prepare, ""},
				{"up", "as usual", func() { c.world.CanaryReady = green }, Desired{Weight: 100}, []string{http, grpc}, ReasonRouteNotObserved},
				{"hand over", "the Service, and no share before its endpoints follow", c.acceptAll, handedOver, []string{stable}, ReasonEndpointsNotFollowing},
				{"some", "not before all new endpoints exist", func() { c.world.StableReady = green[:1] }, handedOver, nil, ReasonEndpointsNotFollowing},
				{"too many", "not before all old endpoints are removed", func() { c.world.StableReady = both }, handedOver, nil, ReasonEndpointsNotFollowing},
				{"return", "then the shares", func() { c.world.StableReady = green }, handedOver, []string{http, grpc}, ReasonRouteNotObserved},
				{"returned", "the gateways have accepted it", c.acceptAll, handedOver, nil, ""},
				{"clean up", "the canary Service, then what the isolation added", nil, Desired{HandedOver: true}, lift, ""},
			})
			if diff := cmp.Diff(want, c.world.Stable.Spec.Selector); diff != "" {
				t.Errorf("the stable Service's selector is wrong:\n%s", diff)
			}
			if note := c.world.Stable.Annotations[IsolationAnnotation]; note != "" {
				t.Errorf("the annotation is left: %s", note)
			}
			if _, err := Next(c.setup, Desired{HandedOver: true, Weight: 10}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL {
				t.Errorf("handed over, with a share: %v", err)
			}
		})
	}
}

// TestHandoverReverted: if the canary is lost during a handover, the Service is pinned to the stable leaders again.
func TestHandoverReverted(t *testing.T) {
	for name, pinned := range map[string]bool{"pinned by the isolation": false, "pinned by the user": true} {
		c := newFakeCluster(t)
		c.world.Stable = c.world.Stable.DeepCopy()
		if delete(c.world.Stable.Spec.Selector, lws.SetNameLabelKey); pinned {
			c.world.Stable.Spec.Selector[lws.SetNameLabelKey] = "vllm"
		}
		user := c.world.Stable
		for _, d := range []Desired{{Prepared: true}, {Prepared: true, HandedOver: true}, {Prepared: true}, {}} {
			for range 5 {
				write, err := Next(c.setup, d, c.world)
				if err != nil {
					t.Fatal(err)
				}
				if write == nil {
					break
				}
				c.apply(write)
			}
			if v := Look(c.setup, d, c.world); d.Prepared && !v.Pinned {
				t.Errorf("%s: %+v is %+v", name, d, v)
			}
		}
		if diff := cmp.Diff(user.Spec.Selector, c.world.Stable.Spec.Selector); diff != "" {
			t.Errorf("%s: the Service's selector is not restored:\n%s", name, diff)
		}
	}
}
