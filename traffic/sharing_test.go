// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

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
			rules, changed, err := RouteRules(route, s, d)
			if err != nil {
				rt.Fatal(err)
			}
			route = route.with(t, rules)
			return changed
		}
		settle := func(a, b Desired) {
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
			settle(a, b)
			if RouteWeight(route, vllm) != a.Weight {
				rt.Fatalf("vllm has weight %d, want %d", RouteWeight(route, vllm), a.Weight)
			}
			if rapid.Bool().Draw(rt, "reapply") {
				route = original
			}
		}
		settle(Desired{}, drawDesired(rt))
		settle(Desired{}, Desired{})
		if diff := diffJSON(original.Object.Object, route.Object.Object); diff != "" {
			rt.Fatalf("the route differs from the user's:\n%s", diff)
		}
	})
}

// TestShrunkRouteRules: no share of the canary grows, in any rule.
func TestShrunkRouteRules(t *testing.T) {
	s, b := setupOf("vllm"), setupOf("vllm").backend()
	user := readRoute(t, "httproute.yaml")
	rapid.Check(t, func(rt *rapid.T) {
		route := apply(t, user, s, drawDesired(rt))
		if rapid.Bool().Draw(rt, "partly applied again") {
			route.rules()[len(route.rules())-2]["backendRefs"] = user.rules()[2]["backendRefs"]
		}
		d := drawDesired(rt)
		rules, _, err := ShrunkRouteRules(route, s, d)
		if err != nil {
			rt.Fatal(err)
		}
		next := route.with(t, rules)
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
		if _, again, _ := ShrunkRouteRules(next, s, d); again {
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
