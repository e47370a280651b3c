// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FuzzParsePolicy: a traffic policy is either rejected with the invalid fields or has valid names only.
func FuzzParsePolicy(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		message := &pb.TrafficPolicy{}
		if proto.Unmarshal(raw, message) != nil {
			return
		}
		p, bad := ParsePolicy(message)
		for _, v := range bad {
			if !strings.HasPrefix(v.Field, policyField+".") || v.Description == "" {
				t.Errorf("violation %+v", v)
			}
		}
		if len(bad) > 0 {
			return
		}
		s := setupOf("vllm")
		s.Policy = p
		seen := map[Key]bool{}
		for _, o := range s.Objects() {
			if o.Name == "" || seen[o] {
				t.Errorf("%v names %v, twice or without a name", message, o)
			}
			seen[o] = true
		}
	})
}

// FuzzParseHeaderRoute: a valid header route can be added to any route, is detected there, and is removed without a trace.
func FuzzParseHeaderRoute(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		request := &pb.SetHeaderRouteRequest{}
		if proto.Unmarshal(raw, request) != nil {
			return
		}
		route, bad := ParseHeaderRoute(request.GetName(), request.GetMatches())
		for _, v := range bad {
			if v.Field == "" || v.Description == "" {
				t.Errorf("violation %+v", v)
			}
		}
		if len(bad) > 0 || len(route.Matches) == 0 {
			return
		}
		s, d := setupOf("vllm"), Desired{Weight: 10, HeaderRoutes: []HeaderRoute{route}}
		for _, name := range []string{"httproute.yaml", "grpcroute.yaml"} {
			user := readRoute(t, name)
			rules, _, err := RouteRules(user, s, d)
			if err != nil {
				continue // a rule matches the header already
			}
			split := user.with(t, rules)
			if _, again, err := RouteRules(split, s, d); again || err != nil {
				t.Errorf("%s with %+v is written again (%v)", name, route, err)
			}
			rules, _, err = RouteRules(split, s, Desired{})
			if err != nil || diffJSON(user.Object.Object, user.with(t, rules).Object.Object) != "" {
				t.Errorf("%s with %+v is not restored (%v)", name, route, err)
			}
		}
		share, err := shareFor(d)
		if err != nil {
			return
		}
		if back := shareOf(share.annotations()); back.weight != share.weight || len(back.header) != len(share.header) {
			t.Errorf("%+v is written as %v and read as %+v", route, share.annotations(), back)
		}
	})
}
