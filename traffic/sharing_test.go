// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawDesired(t *rapid.T) Desired {
	d := Desired{
		Weight: rapid.SampledFrom([]int{0, 0, 1, 10, 33, 50, 99, 100}).Draw(t, "weight"),
		Mirror: rapid.SampledFrom([]int{0, 0, 1, 100}).Draw(t, "mirror"),
	}
	for _, name := range []string{"beta", "alpha"} {
		if rapid.Bool().Draw(t, name) {
			d.HeaderRoutes = append(d.HeaderRoutes, HeaderRoute{
				Name: name, Matches: []HeaderMatch{{Name: "x-" + name, Value: "yes"}},
			})
		}
	}
	return d
}

// TestSharedRoute: concurrent releases of several workloads, in any order, agree on a route that they share, even on one rule,
// and restore it, in whichever order they end.
func TestSharedRoute(t *testing.T) {
	vllm, sglang := setupOf("vllm"), setupOf("sglang")
	user := map[string]Route{"http": readRoute(t, "httproute.yaml"), "grpc": readRoute(t, "grpcroute.yaml")}
	rapid.Check(t, func(rt *rapid.T) {
		route := user[rapid.SampledFrom([]string{"http", "grpc"}).Draw(rt, "route")]
		original := route
		step := func(s Setup, d Desired) (wrote bool) {
			next, changed, err := desiredRoute(route, s, d)
			require.NoError(rt, err)
			route = next
			return changed
		}
		applyAll := func(a, b Desired) {
			for range 6 {
				one, two := step(vllm, a), step(sglang, b)
				if !one && !two {
					return
				}
			}
			rt.Fatalf("the releases do not agree:\n%s", describe(route))
		}
		for range rapid.IntRange(1, 4).Draw(rt, "steps") {
			a, b := drawDesired(rt), drawDesired(rt)
			applyAll(a, b)
			if RouteWeight(route, vllm) != a.Weight {
				rt.Fatalf("vllm has weight %d, want %d", RouteWeight(route, vllm), a.Weight)
			}
			if rapid.Bool().Draw(rt, "reapply") {
				route = original
			}
		}
		applyAll(Desired{}, drawDesired(rt))
		applyAll(Desired{}, Desired{})
		if diff := diffJSON(original.Object.Object, route.Object.Object); diff != "" {
			rt.Fatalf("the route differs from the user's:\n%s", diff)
		}
	})
}

// TestSharedRule: up to five releases split one rule, begin, shift and end in any order, while a user applies the route again,
// edits a weight or removes the annotation. Each share is exact, the others are unchanged, and the last end restores the rule.
func TestSharedRule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var releases []Setup
		var refs []any
		weights := []int64{1, 1, 2, 7, 50, 100, 200, 5000, MaxWeight}
		edits := rapid.Bool().Draw(rt, "edits")
		if edits {
			weights = weights[:5] // an edit may need another multiplication
		}
		for _, name := range []string{"other", "other-canary", "a", "b", "c", "d", "e"} {
			weight := rapid.SampledFrom(weights).Draw(rt, "weight of "+name)
			refs = append(refs, object{"name": name, "port": int64(80), "weight": weight})
			if len(name) == 1 {
				releases = append(releases, setupOf(name))
			}
		}
		refs = rapid.Permutation(refs).Draw(rt, "refs")
		user := readRoute(t, "httproute.yaml")
		user = user.with(t, []any{object{"backendRefs": refs}})
		route, desired, edited := user, make([]Desired, len(releases)), user
		step := func(i int) bool {
			next, changed, err := desiredRoute(route, releases[i], desired[i])
			require.NoError(rt, err)
			route = next
			return changed
		}
		stepAll := func(rt *rapid.T) {
			for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4}).Draw(rt, "order") {
				step(i)
			}
		}
		check := func() {
			for i := range releases {
				if step(i) {
					rt.Fatalf("release %d writes after another one:\n%s", i, describe(route))
				}
			}
			before, after := objectList(edited.rules()[0], "backendRefs"), objectList(route.rules()[0], "backendRefs")
			all := func(object) bool { return true }
			fraction := func(name, of string, percent int) {
				is := func(name string) func(object) bool {
					return func(ref object) bool { return stringField(ref, "name", "") == name }
				}
				sameFraction(rt, name, total(before, is(of))*int64(percent), 100*total(before, all), total(after, is(name)), total(after, all))
			}
			fraction("other", "other", 100)
			fraction("other-canary", "other-canary", 100)
			for i, s := range releases {
				fraction(s.Stable, s.Stable, 100-desired[i].Weight)
				fraction(s.Policy.CanaryService, s.Stable, desired[i].Weight)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"shift": func(rt *rapid.T) {
				i := rapid.IntRange(0, len(releases)-1).Draw(rt, "release")
				desired[i].Weight = rapid.SampledFrom([]int{0, 0, 1, 10, 33, 50, 99, 100}).Draw(rt, "share")
				step(i)
			},
			"apply again": func(rt *rapid.T) {
				annotations := route.Object.GetAnnotations()
				route = Route{user.Key, user.Object.DeepCopy()}
				if rapid.Bool().Draw(rt, "client-side") {
					route.Object.SetAnnotations(annotations)
				}
				edited = user
				stepAll(rt)
			},
			"remove annotation": func(rt *rapid.T) {
				route = Route{user.Key, route.Object.DeepCopy()}
				route.Object.SetAnnotations(nil)
				stepAll(rt)
			},
			"edit": func(rt *rapid.T) {
				if !edits || !reflect.DeepEqual(edited, user) {
					return
				}
				route = Route{user.Key, route.Object.DeepCopy()}
				refs := objectList(route.rules()[0], "backendRefs")
				ref := refs[rapid.IntRange(0, len(refs)-1).Draw(rt, "ref")]
				ref["weight"] = weightOf(ref) + int64(rapid.IntRange(1, 50).Draw(rt, "more"))
				for _, s := range releases {
					refs = s.backend().unsplit(refs)
				}
				edited = user.with(t, []any{object{"backendRefs": anySlice(refs)}})
				stepAll(rt)
			},
			"": func(*rapid.T) { check() },
		})
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4}).Draw(rt, "ends") {
			desired[i] = Desired{}
			step(i)
			check()
		}
		if !reflect.DeepEqual(edited, user) {
			return
		}
		if diff := diffJSON(user.Object.Object, route.Object.Object); diff != "" {
			rt.Fatalf("the route differs from the user's:\n%s", diff)
		}
	})
}

// TestShrunkRoute: no share of the canary grows, in any rule.
func TestShrunkRoute(t *testing.T) {
	s, b := setupOf("vllm"), setupOf("vllm").backend()
	user := readRoute(t, "httproute.yaml")
	rapid.Check(t, func(rt *rapid.T) {
		route := apply(t, user, s, drawDesired(rt))
		if rapid.Bool().Draw(rt, "partly applied again") {
			route.rules()[len(route.rules())-2]["backendRefs"] = user.rules()[2]["backendRefs"]
		}
		d := drawDesired(rt)
		next, _, err := shrunkRoute(route, s, d)
		require.NoError(rt, err)
		before, after := b.strip(route.rules()), b.strip(next.rules())
		for i := range after {
			if after[i].share > before[i].share || after[i].mirror > before[i].mirror || after[i].share > d.Weight {
				rt.Fatalf("rule %d: share %d -> %d, mirror %d -> %d, desired %d", i, before[i].share, after[i].share,
					before[i].mirror, after[i].mirror, d.Weight)
			}
		}
		if count(next, b) > count(route, b) {
			rt.Fatalf("header rules were added:\n%s\n%s", describe(route), describe(next))
		}
		if _, again, _ := shrunkRoute(next, s, d); again {
			rt.Fatal("the second call changes the rules again")
		}
	})
}

func count(r Route, b backend) (n int) {
	for _, rule := range r.rules() {
		if b.added(rule) {
			n++
		}
	}
	return n
}
