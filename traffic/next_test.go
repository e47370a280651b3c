// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestOrder runs a release: the writes of each stage.
func TestOrder(t *testing.T) {
	c := newFakeCluster(t)
	user := c.world.Stable
	const stable, canary, http, grpc = "patch Service vllm", "Service vllm-canary", "patch HTTPRoute llm", "patch GRPCRoute llm"
	header := HeaderRoute{Name: "beta", Matches: []HeaderMatch{{Name: "x-canary", Value: "yes"}}}
	c.through([]stage{
		{"prepare", "isolation first, then the canary Service, and no route yet", nil, Desired{Prepared: true}, []string{stable, "create " + canary}, ""},
		{"too early", "no share for a canary that can't serve", nil, Desired{Weight: 10}, nil, ReasonNoCanaryEndpoints},
		{"up", "every route, once endpoints are ready", func() { c.world.CanaryReady = []string{"vllm-abc123-0"} }, Desired{Weight: 10}, []string{http, grpc}, ReasonRouteNotObserved},
		{"again", "nothing to write", nil, Desired{Weight: 10}, nil, ReasonRouteNotObserved},
		{"verified", "the gateways have accepted it", c.acceptAll, Desired{Weight: 10}, nil, ""},
		{"not up", "the canary has lost its endpoints: the share is kept, neither it nor header routes grow", func() { c.world.CanaryReady = nil }, Desired{Weight: 50, HeaderRoutes: []HeaderRoute{header}}, nil, ReasonNoCanaryEndpoints},
		{"down", "a share shrinks whatever the state of the canary", nil, Desired{Prepared: true}, []string{http, grpc}, ReasonRouteNotObserved},
		{"service deleted by hand", "it is recreated", func() { c.world.Canary = nil }, Desired{Prepared: true}, []string{"create " + canary}, ReasonRouteNotObserved},
		{"clean up", "the canary Service, then the isolation", c.acceptAll, Desired{}, []string{"delete " + canary, stable}, ""},
	})
	if diff := cmp.Diff(user.Spec, c.world.Stable.Spec); diff != "" {
		t.Errorf("the stable Service differs from the user's:\n%s", diff)
	}
}

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
	c.asBefore(rt, user)
}

// supported reduces what is desired to what an Ingress can express.
func supported(d Desired) Desired {
	d.Mirror, d.HeaderRoutes = 0, nil
	return d
}

// asBefore requires that no generated object is left and the user's objects are restored, except fields that only the API
// server writes. The user's Ingress is never written, see apply.
func (c *fakeCluster) asBefore(rt *rapid.T, user World) {
	c.t.Helper()
	if c.world.Canary != nil || c.world.CanaryPool != nil || c.world.Ingresses["llm-canary"] != nil {
		rt.Fatal("an object of the release is left")
	}
	if diff := cmp.Diff(user.Stable.Spec, c.world.Stable.Spec); diff != "" {
		rt.Fatalf("the stable Service differs from the user's:\n%s", diff)
	}
	if diff := cmp.Diff(user.Stable.Annotations, c.world.Stable.Annotations); diff != "" {
		rt.Fatalf("the annotations of the stable Service differ from the user's:\n%s", diff)
	}
	if user.StablePool != nil {
		if diff := diffJSON(usersOwn(user.StablePool), usersOwn(c.world.StablePool)); diff != "" {
			rt.Fatalf("the stable pool differs from the user's:\n%s", diff)
		}
	}
	for key, o := range user.Routes {
		if diff := diffJSON(usersOwn(o), usersOwn(c.world.Routes[key])); diff != "" {
			rt.Fatalf("%s differs from the user's:\n%s", key, diff)
		}
	}
}

func usersOwn(o *unstructured.Unstructured) any {
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
		if err != nil {
			rt.Fatal(err)
		}
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

// TestUnverified: the reasons why a view without due writes is not verified.
func TestUnverified(t *testing.T) {
	prepared, half := Desired{Prepared: true}, Desired{Weight: 50}
	header := Desired{HeaderRoutes: []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: "x", Value: "y"}}}}}
	for _, tt := range []struct {
		name, reason string
		desired      Desired
		change       func(*fakeCluster)
		want         string
	}{
		{"verified", "", half, func(*fakeCluster) {}, ""},
		{"no canary endpoints", "the canary has a share", half, func(c *fakeCluster) { c.world.CanaryReady = nil }, ReasonNoCanaryEndpoints},
		{"no canary endpoint with the port", "the canary has a share", half, func(c *fakeCluster) {
			c.world.CanaryReady, c.world.CanaryPortless = nil, []string{"vllm-abc123-0"}
		}, ReasonNoCanaryEndpoints},
		{"no canary endpoints for headers", "", header, func(c *fakeCluster) { c.world.CanaryReady = nil }, ReasonNoCanaryEndpoints},
		{"no canary endpoints, no share", "none are needed", prepared, func(c *fakeCluster) { c.world.CanaryReady = nil }, ""},
		{"no stable endpoints", "stable has a share", half, func(c *fakeCluster) { c.world.StableReady = nil }, ReasonNoStableEndpoints},
		{"no stable endpoints, no share", "none are needed", Desired{Weight: 100}, func(c *fakeCluster) { c.world.StableReady = nil }, ""},
		{"route missing", "the canary has a share", half, func(c *fakeCluster) { delete(c.world.Routes, c.setup.Policy.Routes[1]) }, ReasonRouteMissing},
		{"route missing, no share", "it sends no requests", prepared, func(c *fakeCluster) { delete(c.world.Routes, c.setup.Policy.Routes[1]) }, ""},
		{"nothing to split", "the user has removed the backend", half, func(c *fakeCluster) {
			r := Route{c.setup.Policy.Routes[0], c.world.Routes[c.setup.Policy.Routes[0]]}
			c.world.Routes[r.Key] = r.with(c.t, []any{}).Object
		}, ReasonNothingToSplit},
		{"canary Service being deleted", "it can't be recreated before it is deleted", prepared, func(c *fakeCluster) {
			c.world.Canary = c.world.Canary.DeepCopy()
			c.world.Canary.DeletionTimestamp = &metav1.Time{}
		}, ReasonServiceDeleting},
		{"all missing", "nothing is desired", Desired{}, func(c *fakeCluster) { c.world = World{} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t)
			c.applyAll(prepared)
			c.ready()
			c.applyAll(tt.desired)
			c.acceptAll()
			tt.change(c)
			if v := Look(c.setup, tt.desired, c.world); v.Reason != tt.want || v.Stage < Written || (v.Stage == Verified) != (tt.want == "") {
				t.Errorf("%s: view %+v, want reason %q", tt.reason, v, tt.want)
			}
		})
	}
}

// TestForeignServiceKept: a foreign Service is not deleted; one that an earlier workload left is.
func TestForeignServiceKept(t *testing.T) {
	c := newFakeCluster(t)
	c.applyAll(Desired{Prepared: true})
	c.world.Canary.OwnerReferences[0].UID = "earlier"
	want := []string{"delete Service vllm-canary", "create Service vllm-canary"}
	if diff := cmp.Diff(want, c.applyAll(Desired{Prepared: true})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	delete(c.world.Canary.Labels, StableLabel)
	if diff := cmp.Diff([]string{"patch Service vllm"}, c.applyAll(Desired{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBlocked: what blocks a release until a user acts.
func TestBlocked(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*fakeCluster)
		desired      Desired
		want         pb.ErrorReason
	}{
		{"stable Service missing", "it can't be isolated", func(c *fakeCluster) { c.world.Stable = nil }, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND},
		{"selector moved", "a user's selector for another workload is not overwritten", func(c *fakeCluster) {
			c.world.Stable.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] = "others"
		}, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE},
		{"name taken", "a foreign Service is never changed", func(c *fakeCluster) {
			c.world.Canary = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm-canary"}}
		}, Desired{Prepared: true}, pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"annotation edited", "the labels that the isolation added are unknown", func(c *fakeCluster) {
			c.world.Stable.Annotations[IsolationAnnotation] = "x"
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
			reason := ReasonBlocked
			if tt.want == pb.ErrorReason_ERROR_REASON_RECORD_INVALID {
				reason = ReasonRecordInvalid
			}
			if v := Look(c.setup, tt.desired, c.world); v.Stage != Blocked || v.Reason != reason {
				t.Errorf("%s: view %+v", tt.reason, v)
			}
		})
	}
}

// TestShrinkWithoutIsolation: a share shrinks although the stable Service can't be isolated.
func TestShrinkWithoutIsolation(t *testing.T) {
	c := newFakeCluster(t)
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 50})
	c.world.Stable.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] = "others"
	for _, want := range []Key{c.setup.Policy.Routes[0], c.setup.Policy.Routes[1]} {
		write, err := Next(c.setup, Desired{Prepared: true}, c.world)
		if err != nil || write == nil || write.Key != want {
			t.Fatalf("next is %v, %v, want a write to %s", write, err, want)
		}
		c.apply(write)
	}
}

// TestShrinkOthers: a share shrinks in each route, although another can't express what is desired.
func TestShrinkOthers(t *testing.T) {
	c := newFakeCluster(t).withIngress()
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 50})
	first, second := c.setup.Policy.Routes[0], c.setup.Policy.Routes[1]
	rules := Route{first, c.world.Routes[first].DeepCopy()}.rules()
	list(rules[2], "backendRefs")[0]["weight"] = int64(1_000_000)
	c.world.Routes[first] = Route{first, c.world.Routes[first]}.with(t, anySlice(rules)).Object
	var wrote []Key
	for {
		write, err := Next(c.setup, Desired{Weight: 20}, c.world)
		if write == nil {
			if drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE {
				t.Errorf("%v, want what is wrong with %s", err, first)
			}
			break
		}
		wrote = append(wrote, write.Key)
		c.apply(write)
	}
	if diff := cmp.Diff([]Key{second, {KindIngress, "llm-canary"}}, wrote); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestShrinkDeletedRoute: gateways may serve a route with a finalizer until it is gone, so its share is withdrawn like any other, but
// does not grow.
func TestShrinkDeletedRoute(t *testing.T) {
	c := newFakeCluster(t)
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 50})
	c.acceptAll()
	key := c.setup.Policy.Routes[0]
	c.world.Routes[key].SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	if wrote := c.applyAll(Desired{Weight: 60}); slices.Contains(wrote, "patch HTTPRoute llm") {
		t.Errorf("%v, although it is being deleted", wrote)
	}
	if v := Look(c.setup, Desired{Prepared: true}, c.world); v.Withdrawn {
		t.Errorf("%d %% of the requests are withdrawn: %+v", v.Weight, v)
	}
	c.applyAll(Desired{Prepared: true})
	c.acceptAll()
	if v := Look(c.setup, Desired{Prepared: true}, c.world); !v.Withdrawn || v.Weight != 0 {
		t.Errorf("view %+v", v)
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
	if err != nil {
		t.Fatal(err)
	}
	after := describe(next)
	if n := strings.Count(after, "llm.New"); n != 1 {
		t.Errorf("%d rules for the requests of the new one, want the user's:\n%s", n, after)
	}
	if n := strings.Count(after, "x-tester=yes"); n != 3 {
		t.Errorf("%d rules for the header route, want those it had:\n%s", n, after)
	}
}

// TestIsolationNotInForce: isolation is not in force before the endpoints follow.
func TestIsolationNotInForce(t *testing.T) {
	c := newFakeCluster(t)
	c.applyAll(Desired{Prepared: true})
	c.world.StableReady = []string{"vllm-0", "vllm-abc123-1"}
	if v := Look(c.setup, Desired{Prepared: true}, c.world); v.Stage == Verified || v.Reason != ReasonIsolationNotInForce {
		t.Errorf("view %+v", v)
	}
}
