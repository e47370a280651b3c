// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// providers are clusters with each kind of object that can carry traffic, alone and combined.
var providers = map[string]func(testing.TB) *fakeCluster{
	"routes":             newFakeCluster,
	"pool":               func(t testing.TB) *fakeCluster { return newFakeCluster(t).withPool() },
	"ingress":            func(t testing.TB) *fakeCluster { return newFakeCluster(t).withoutRoutes().withIngress() },
	"routes and ingress": func(t testing.TB) *fakeCluster { return newFakeCluster(t).withIngress() },
	"pool and ingress":   func(t testing.TB) *fakeCluster { return newFakeCluster(t).withPool().withIngress() },
}

// TestEachWriteKeepsTheInvariants drives random releases through random events, and checks invariants after each write.
func TestEachWriteKeepsTheInvariants(t *testing.T) {
	for name, provider := range providers {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { driveSafely(t, rt, provider(t)) })
		})
	}
}

func driveSafely(t *testing.T, rt *rapid.T, c *fakeCluster) {
	t.Helper()
	user := c.world
	for range rapid.IntRange(1, 8).Draw(rt, "steps") {
		rapid.SampledFrom([]func(){
			func() { c.world.CanaryReady = nil },
			func() { c.world.PickerReady = nil },
			func() { c.ready() },
			func() { c.ready() },
			func() { c.ready() },
			func() { c.world.Canary, c.world.CanaryReady = nil, nil },
			func() { c.world.CanaryPool = nil },
			func() { c.world.Ingresses = user.Ingresses },
			c.editIngress,
			func() { c.reapplyRoutes(user) },
			func() { c.replaceService(user) },
			func() { c.replacePool(user) },
			c.acceptAll,
		}).Draw(rt, "event")()
		d := drawDesired(rt)
		d.Prepared, d.Isolated = rapid.Bool().Draw(rt, "prepared"), rapid.Bool().Draw(rt, "isolated")
		if c.walk(rt, d); Supported(c.setup.Policy, d) != nil {
			d = supported(d)
			c.walk(rt, d)
		}
		if v := Look(c.setup, d, c.world); v.Stage == Verified && v.Weight != d.Weight {
			rt.Fatalf("verified at %d, wanted %d", v.Weight, d.Weight)
		}
	}
	if user.Ingresses["llm"] != nil {
		c.world.Ingresses = maps.Clone(c.world.Ingresses)
		c.world.Ingresses["llm"] = user.Ingresses["llm"] // edits were the user's
	}
	c.walk(rt, Desired{})
	if diff := c.differs(user); diff != "" {
		rt.Fatalf("the objects differ from the user's:\n%s", diff)
	}
}

// supported reduces what is desired to what an Ingress can express.
func supported(d Desired) Desired {
	d.Mirror, d.HeaderRoutes = 0, nil
	return d
}

// differs returns how the objects differ from those before a release, except fields that only the API server writes, "" if they do not. The
// user's Ingress is never written, see apply.
func (c *fakeCluster) differs(user World) string {
	if c.world.Canary != nil || c.world.CanaryPool != nil || c.world.Ingresses["llm-canary"] != nil {
		return "an object of the release is left"
	}
	diff := cmp.Diff(user.Stable.Spec, c.world.Stable.Spec) + cmp.Diff(user.Stable.Annotations, c.world.Stable.Annotations)
	if user.StablePool != nil {
		diff += diffJSON(usersOwn(user.StablePool), usersOwn(c.world.StablePool))
	}
	for key, o := range user.Routes {
		diff += diffJSON(usersOwn(o), usersOwn(c.world.Routes[key]))
	}
	return diff
}

func usersOwn(o *unstructured.Unstructured) any {
	if o == nil {
		return nil
	}
	o = o.DeepCopy()
	delete(o.Object, "status")
	o.SetGeneration(0)
	o.SetResourceVersion("")
	return o.Object
}

// walk makes the writes one by one and checks each. It returns early if what is desired is not supported.
func (c *fakeCluster) walk(rt *rapid.T, d Desired) {
	for range 20 {
		before := c.world
		write, err := Next(c.setup, d, before)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSUPPORTED && Supported(c.setup.Policy, d) != nil {
			return
		}
		require.NoError(rt, err)
		if write == nil {
			return
		}
		c.apply(write)
		if grew := c.grown(before); grew != "" && !write.Grows {
			rt.Fatalf("%s: %s gets more, and the write does not say so", write, grew)
		} else if grew != "" && (len(before.CanaryReady) == 0 || !before.prepared(c.setup) || !before.isolated(c.setup, Desired{}) || before.canaryPoolUnusable(c.setup) != "") {
			rt.Fatalf("%s: %s gives more to a canary without isolation, an endpoint or a picker", write, grew)
		}
		if gone := before.Canary != nil && c.world.Canary == nil || before.CanaryPool != nil && c.world.CanaryPool == nil; gone && c.uses() != "" {
			rt.Fatalf("%s: %s still leads there", write, c.uses())
		}
		came := before.Canary == nil && c.world.Canary != nil || before.CanaryPool == nil && c.world.CanaryPool != nil
		if came && !before.isolated(c.setup, Desired{}) {
			rt.Fatalf("%s: before the isolation", write)
		}
		if (c.world.Canary != nil || c.world.CanaryPool != nil) && before.isolated(c.setup, Desired{}) && !c.world.isolated(c.setup, Desired{}) {
			rt.Fatalf("%s: while the canary Service or pool exists", write)
		}
	}
	rt.Fatal("no end after 20 writes")
}

// grown returns an object whose share of the canary grew, "" if there is none.
func (c *fakeCluster) grown(before World) string {
	for _, r := range c.world.routes(c.setup) {
		if RouteWeight(r, c.setup) > RouteWeight(Route{r.Key, before.Routes[r.Key]}, c.setup) {
			return r.Key.String()
		}
	}
	now := c.world.Ingresses["llm-canary"]
	if now == nil {
		return ""
	}
	was := &networkingv1.Ingress{}
	if o := before.Ingresses["llm-canary"]; o != nil {
		was = o
	}
	weight, paths := weightIn(now.Annotations), pathsOf(was)
	for path, has := range pathsOf(now) {
		if has && !paths[path] {
			return fmt.Sprintf("Ingress at %v", path)
		}
	}
	if weight > weightIn(was.Annotations) {
		return fmt.Sprintf("Ingress with %d", weight)
	}
	return ""
}

// uses returns an object that leads to the canary, "" if there is none.
func (c *fakeCluster) uses() string {
	for _, r := range c.world.routes(c.setup) {
		if RouteUses(r, c.setup) {
			return r.Key.String()
		}
	}
	if c.world.Ingresses["llm-canary"] != nil {
		return "the canary Ingress"
	}
	return ""
}

func (c *fakeCluster) ready() {
	c.world.PickerReady = []string{"vllm-canary-epp-0"}
	if c.world.Canary != nil {
		c.world.CanaryReady = []string{"vllm-abc123-0"}
	}
}

// reapplyRoutes does what a tool does that applies the user's manifest.
func (c *fakeCluster) reapplyRoutes(user World) {
	for _, r := range c.world.routes(c.setup) {
		spec, _ := user.Routes[r.Key].Object["spec"].(map[string]any)
		rules, _ := spec["rules"].([]any)
		next := r.with(c.t, rules)
		next.Object.SetGeneration(r.Object.GetGeneration() + 1)
		next.Object.SetResourceVersion(c.version())
		c.store(r.Key, next.Object.Object)
	}
}

// replaceService does what kubectl replace does: isolation and annotation are lost.
func (c *fakeCluster) replaceService(user World) {
	c.world.Stable = user.Stable.DeepCopy()
	c.world.Stable.ResourceVersion = c.version()
}

// editIngress removes one more rule from the user's Ingress, and finally the Ingress.
func (c *fakeCluster) editIngress() {
	if c.world.Ingresses["llm"] == nil {
		return
	}
	c.world.Ingresses = maps.Clone(c.world.Ingresses)
	user := c.world.Ingresses["llm"].DeepCopy()
	switch {
	case user.Spec.DefaultBackend != nil:
		user.Spec.DefaultBackend = nil
	case len(user.Spec.Rules) > 0:
		user.Spec.Rules = user.Spec.Rules[1:]
	default:
		delete(c.world.Ingresses, "llm")
		return
	}
	c.world.Ingresses["llm"] = user
}

func (c *fakeCluster) replacePool(user World) {
	if user.StablePool != nil {
		c.world.StablePool = user.StablePool.DeepCopy()
		c.world.StablePool.SetResourceVersion(c.version())
	}
}

// TestRefusedWriteYields: an object whose write the API server refuses keeps no other from its write.
func TestRefusedWriteYields(t *testing.T) {
	c := newFakeCluster(t).withIngress()
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 50})
	next := func(refused Key) *Write {
		t.Helper()
		c.world.Refused = refused
		write, err := Next(c.setup, Desired{Weight: 10}, c.world)
		if err != nil || write == nil || !write.Moves {
			t.Fatalf("%v, %v", write, err)
		}
		return write
	}
	all := append(slices.Clone(c.setup.Policy.Routes), Key{KindIngress, "llm-canary"})
	if write := next(Key{}); write.Key != all[0] || write.AfterOthers {
		t.Errorf("%s, after others: %t", write, write.AfterOthers)
	}
	for i, refused := range all {
		want := all[(i+1)%len(all)]
		if write := next(refused); write.Key != want || write.AfterOthers != (want == all[0]) {
			t.Errorf("%s is refused: %s, after others: %t", refused, write, write.AfterOthers)
		}
	}
	c.apply(next(all[0]))
	c.apply(next(all[1]))
	if write := next(all[0]); write.Key != all[0] || !write.AfterOthers {
		t.Errorf("%s, after others: %t", write, write.AfterOthers)
	}
}

// TestShrinkAddsNoHeaderRoute: if a user adds a rule to a route, a canary that can't serve does not get its requests.
func TestShrinkAddsNoHeaderRoute(t *testing.T) {
	r, s := readRoute(t, "grpcroute.yaml"), setupOf("vllm")
	d := Desired{HeaderRoutes: []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: "x-tester", Value: "yes"}}}}}
	got := apply(t, r, s, d)
	added := object{
		"matches":     []any{object{"method": object{"type": "Exact", "service": "llm.New"}}},
		"backendRefs": []any{object{"group": "", "kind": "Service", "name": "vllm", "port": int64(80), "weight": int64(1)}},
	}
	edited := got.with(t, append([]any{added}, anySlice(got.rules())...))
	next, _, err := shrunkRoute(edited, s, d)
	require.NoError(t, err)
	after := describe(next)
	if n := strings.Count(after, "llm.New"); n != 1 {
		t.Errorf("%d rules for the requests of the new one, want the user's:\n%s", n, after)
	}
	if n := strings.Count(after, "x-tester=yes"); n != 3 {
		t.Errorf("%d rules for the header route, want those it had:\n%s", n, after)
	}
}
