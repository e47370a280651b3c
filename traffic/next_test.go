// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestOrder walks through a release: each stage with the writes it takes.
func TestOrder(t *testing.T) {
	c := newFakeCluster(t)
	user := c.world.Stable
	const stable, canary, http, grpc = "patch Service vllm", "Service vllm-canary", "patch HTTPRoute llm", "patch GRPCRoute llm"
	header := HeaderRoute{Name: "beta", Matches: []HeaderMatch{{Name: "x-canary", Value: "yes"}}}
	for _, stage := range []struct {
		name, reason string
		before       func()
		desired      Desired
		want         []string
		lacks        string
	}{
		{"prepare", "fence first, then the canary Service, and no route yet", nil, Desired{Prepared: true}, []string{stable, "create " + canary}, ""},
		{"too early", "no share for a canary that can't serve", nil, Desired{Weight: 10}, nil, ReasonNoCanaryEndpoints},
		{"up", "every route, once there are endpoints", func() { c.world.CanaryReady = []string{"vllm-abc123-0"} }, Desired{Weight: 10}, []string{http, grpc}, ReasonRouteNotObserved},
		{"again", "nothing to write", nil, Desired{Weight: 10}, nil, ReasonRouteNotObserved},
		{"verified", "the gateways have taken it", c.acceptAll, Desired{Weight: 10}, nil, ""},
		{"not up", "the canary has lost its endpoints, so neither share nor header routes come, and what is there stays", func() { c.world.CanaryReady = nil }, Desired{Weight: 50, HeaderRoutes: []HeaderRoute{header}}, nil, ReasonNoCanaryEndpoints},
		{"down", "a share goes back whatever the state of the canary", nil, Desired{Prepared: true}, []string{http, grpc}, ReasonRouteNotObserved},
		{"service deleted by hand", "it comes back", func() { c.world.Canary = nil }, Desired{Prepared: true}, []string{"create " + canary}, ReasonRouteNotObserved},
		{"clean up", "the canary Service, then the fence", c.acceptAll, Desired{}, []string{"delete " + canary, stable}, ""},
	} {
		if stage.before != nil {
			stage.before()
		}
		if diff := cmp.Diff(stage.want, c.settle(stage.desired)); diff != "" {
			t.Errorf("%s: %s: writes (-want +got):\n%s", stage.name, stage.reason, diff)
		}
		v := Look(c.setup, stage.desired, c.world)
		if v.Reason != stage.lacks || v.Verified != (stage.lacks == "") || v.Drift || v.Err != nil {
			t.Errorf("%s: view is %+v, want reason %q", stage.name, v, stage.lacks)
		}
	}
	if diff := cmp.Diff(user.Spec, c.world.Stable.Spec); diff != "" {
		t.Errorf("the stable Service is not as the user had it:\n%s", diff)
	}
}

func (c *fakeCluster) acceptAll() {
	for _, r := range c.world.routes(c.setup) {
		c.accept(r)
	}
}

// TestSafety drives releases at random through whatever can happen to their objects, and checks every instant.
func TestSafety(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newFakeCluster(t)
		user := c.world
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			rapid.SampledFrom([]func(){
				func() { c.world.CanaryReady = nil },
				func() { c.ready() },
				func() { c.ready() },
				func() { c.world.Canary, c.world.CanaryReady = nil, nil },
				func() { c.reapplyRoutes(user) },
				func() { c.replaceService(user) },
				c.acceptAll,
			}).Draw(rt, "event")()
			d := drawDesired(rt)
			d.Prepared, d.Fenced = rapid.Bool().Draw(rt, "prepared"), rapid.Bool().Draw(rt, "fenced")
			c.walk(rt, d)
			if v := Look(c.setup, d, c.world); v.Verified && v.Weight != d.Weight {
				rt.Fatalf("verified at %d, wanted %d", v.Weight, d.Weight)
			}
		}
		c.walk(rt, Desired{})
		if diff := cmp.Diff(user.Stable.Spec, c.world.Stable.Spec); diff != "" {
			rt.Fatalf("the stable Service is not as the user had it:\n%s", diff)
		}
		if _, noted := c.world.Stable.Annotations[FenceAnnotation]; noted || c.world.Canary != nil {
			rt.Fatal("something of the release is left")
		}
		for key, o := range user.Routes {
			if diff := diffJSON(o.Object["spec"], c.world.Routes[key].Object["spec"]); diff != "" {
				rt.Fatalf("%s is not as the user had it:\n%s", key, diff)
			}
		}
	})
}

// walk makes the writes one by one and checks what each does.
func (c *fakeCluster) walk(rt *rapid.T, d Desired) {
	for range 12 {
		before := c.world
		write, err := Next(c.setup, d, before)
		if err != nil {
			rt.Fatal(err)
		}
		if write == nil {
			return
		}
		c.apply(write)
		for _, r := range c.world.routes(c.setup) {
			grew := RouteWeight(r, c.setup) > RouteWeight(Route{r.Key, before.Routes[r.Key]}, c.setup)
			if grew && (len(before.CanaryReady) == 0 || before.Canary == nil || !Fenced(before.Stable, c.setup)) {
				rt.Fatalf("%s: a share grew without a fence or an endpoint", write)
			}
			if c.world.Canary == nil && before.Canary != nil && RouteUses(r, c.setup) {
				rt.Fatalf("%s: %s still leads there", write, r.Key)
			}
		}
		if before.Canary == nil && c.world.Canary != nil && !Fenced(before.Stable, c.setup) {
			rt.Fatalf("%s: before the fence", write)
		}
		if c.world.Canary != nil && Fenced(before.Stable, c.setup) && !Fenced(c.world.Stable, c.setup) {
			rt.Fatalf("%s: while the canary Service is there", write)
		}
	}
	rt.Fatal("12 writes and no end")
}

func (c *fakeCluster) ready() {
	if c.world.Canary != nil {
		c.world.CanaryReady = []string{"vllm-abc123-0"}
	}
}

// reapplyRoutes is what a tool does that applies the user's manifest.
func (c *fakeCluster) reapplyRoutes(user World) {
	for _, r := range c.world.routes(c.setup) {
		spec, _ := user.Routes[r.Key].Object["spec"].(map[string]any)
		rules, _ := spec["rules"].([]any)
		next := r.with(c.t, rules)
		next.Object.SetGeneration(r.Object.GetGeneration() + 1)
		next.Object.SetResourceVersion(c.version())
		c.world.Routes[r.Key] = next.Object
	}
}

// replaceService is what kubectl replace does: the fence and its note are gone.
func (c *fakeCluster) replaceService(user World) {
	c.world.Stable = user.Stable.DeepCopy()
	c.world.Stable.ResourceVersion = c.version()
}

// TestLacking: what keeps a release that has nothing to write from being verified.
func TestLacking(t *testing.T) {
	prepared, half := Desired{Prepared: true}, Desired{Weight: 50}
	header := Desired{HeaderRoutes: []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: "x", Value: "y"}}}}}
	for _, tt := range []struct {
		name, reason string
		desired      Desired
		change       func(*fakeCluster)
		want         string
	}{
		{"nothing", "all is well", half, func(*fakeCluster) {}, ""},
		{"no canary endpoints", "a share for nobody", half, func(c *fakeCluster) { c.world.CanaryReady = nil }, ReasonNoCanaryEndpoints},
		{"no canary endpoints for headers", "", header, func(c *fakeCluster) { c.world.CanaryReady = nil }, ReasonNoCanaryEndpoints},
		{"no canary endpoints, no share", "none are needed", prepared, func(c *fakeCluster) { c.world.CanaryReady = nil }, ""},
		{"no stable endpoints", "stable has a share", half, func(c *fakeCluster) { c.world.StableReady = nil }, ReasonNoStableEndpoints},
		{"no stable endpoints, no share", "none are needed", Desired{Weight: 100}, func(c *fakeCluster) { c.world.StableReady = nil }, ""},
		{"route gone", "it carried a share", half, func(c *fakeCluster) { delete(c.world.Routes, c.setup.Policy.Routes[1]) }, ReasonRouteMissing},
		{"route gone, no share", "it leads nowhere", prepared, func(c *fakeCluster) { delete(c.world.Routes, c.setup.Policy.Routes[1]) }, ""},
		{"nothing to split", "the user's rules lead elsewhere by now", half, func(c *fakeCluster) {
			r := Route{c.setup.Policy.Routes[0], c.world.Routes[c.setup.Policy.Routes[0]]}
			c.world.Routes[r.Key] = r.with(c.t, []any{}).Object
		}, ReasonNothingToSplit},
		{"canary Service going", "it can't be made before it is gone", prepared, func(c *fakeCluster) {
			c.world.Canary = c.world.Canary.DeepCopy()
			c.world.Canary.DeletionTimestamp = &metav1.Time{}
		}, ReasonServiceDeleting},
		{"all gone", "nothing is asked of anything", Desired{}, func(c *fakeCluster) { c.world = World{} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t)
			c.settle(prepared)
			c.ready()
			c.settle(tt.desired)
			c.acceptAll()
			tt.change(c)
			if v := Look(c.setup, tt.desired, c.world); v.Reason != tt.want || v.Drift || v.Verified != (tt.want == "") {
				t.Errorf("%s: view %+v, want reason %q", tt.reason, v, tt.want)
			}
		})
	}
}

// TestOthersService: a Service of others is not deleted, and one that an earlier workload has left is.
func TestOthersService(t *testing.T) {
	c := newFakeCluster(t)
	c.settle(Desired{Prepared: true})
	c.world.Canary.OwnerReferences[0].UID = "earlier"
	want := []string{"delete Service vllm-canary", "create Service vllm-canary"}
	if diff := cmp.Diff(want, c.settle(Desired{Prepared: true})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	delete(c.world.Canary.Labels, StableLabel)
	if diff := cmp.Diff([]string{"patch Service vllm"}, c.settle(Desired{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTroubles(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*fakeCluster)
		desired      Desired
		want         pb.ErrorReason
	}{
		{"stable Service gone", "it can't be fenced", func(c *fakeCluster) { c.world.Stable = nil }, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND},
		{"selector moved", "the user has it select others: not fought over", func(c *fakeCluster) {
			c.world.Stable.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] = "others"
		}, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE},
		{"name taken", "a Service of others is never changed", func(c *fakeCluster) {
			c.world.Canary = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm-canary"}}
		}, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"note edited", "what the fence added can't be told", func(c *fakeCluster) {
			c.world.Stable.Annotations[FenceAnnotation] = "x"
		}, Desired{}, pb.ErrorReason_ERROR_REASON_RECORD_INVALID},
		{"defect", "a weight beyond 100", func(*fakeCluster) {}, Desired{Weight: 101}, pb.ErrorReason_ERROR_REASON_INTERNAL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t)
			tt.change(c)
			var err error
			for range 3 {
				var write *Write
				if write, err = Next(c.setup, tt.desired, c.world); write == nil {
					break
				}
				c.apply(write)
			}
			if got := drivererr.Reason(err); got != tt.want {
				t.Errorf("%s: error %v, want reason %v", tt.reason, err, tt.want)
			}
			if v := Look(c.setup, tt.desired, c.world); v.Err == nil || v.Verified || v.Reason != ReasonBlocked {
				t.Errorf("%s: view %+v", tt.reason, v)
			}
		})
	}
}

// TestRetreatInTrouble: a share goes back although the stable Service can't be fenced any more.
func TestRetreatInTrouble(t *testing.T) {
	c := newFakeCluster(t)
	c.settle(Desired{Prepared: true})
	c.ready()
	c.settle(Desired{Weight: 50})
	c.world.Stable.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] = "others"
	for _, want := range []Key{c.setup.Policy.Routes[0], c.setup.Policy.Routes[1]} {
		write, err := Next(c.setup, Desired{Prepared: true}, c.world)
		if err != nil || write == nil || write.Key != want {
			t.Fatalf("next is %v, %v, want a write to %s", write, err, want)
		}
		c.apply(write)
	}
}

// TestLeak: a fence that the endpoints do not follow yet is not in force.
func TestLeak(t *testing.T) {
	c := newFakeCluster(t)
	c.settle(Desired{Prepared: true})
	c.world.StableReady = []string{"vllm-0", "vllm-abc123-1"}
	if v := Look(c.setup, Desired{Prepared: true}, c.world); v.Verified || v.Reason != ReasonFenceNotInForce {
		t.Errorf("view %+v", v)
	}
}
