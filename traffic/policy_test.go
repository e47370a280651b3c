// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestCanaryName: names are valid and unique.
func TestCanaryName(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"llm", strings.Repeat("a", 246), strings.Repeat("a", 247), strings.Repeat("a", 253), strings.Repeat("a", 252) + "b",
		strings.Repeat("a", 236) + "." + strings.Repeat("a", 16), strings.Repeat("a.", 126) + "a", strings.Repeat("a", 235) + "--" + strings.Repeat("a", 16),
	} {
		got := canaryName(name)
		problems := validation.IsDNS1123Subdomain(got)
		assert.True(t, len(problems) == 0 && strings.HasSuffix(got, "-canary"), "%s: %v", got, problems)
		assert.Empty(t, seen[got], "%s is for %s and for", got, name)
		seen[got] = name
	}
	assert.Equal(t, "llm-canary", canaryName("llm"), "the canary of llm")
}

func TestParseHeaderRoute(t *testing.T) {
	exact := func(name, value string) *pb.HeaderMatch {
		return &pb.HeaderMatch{Name: name, Value: &pb.HeaderMatch_Exact{Exact: value}}
	}
	regex := func(name, value string) *pb.HeaderMatch {
		return &pb.HeaderMatch{Name: name, Value: &pb.HeaderMatch_Regex{Regex: value}}
	}
	cookie := func(name, value string) *pb.HeaderMatch {
		return &pb.HeaderMatch{Name: name, Value: &pb.HeaderMatch_Cookie{Cookie: value}}
	}
	got, bad := ParseHeaderRoute("beta", []*pb.HeaderMatch{exact("x-a", "1"), regex("x-b", "v.*"), cookie("tester", "always")})
	want := HeaderRoute{Name: "beta", Matches: []HeaderMatch{
		{Name: "x-a", Value: "1"}, {Name: "x-b", Value: "v.*", Regex: true}, {Name: "tester", Value: "always", Cookie: true},
	}}
	diff := cmp.Diff(want, got)
	assert.True(t, diff == "" && len(bad) == 0, "%v (-want +got):\n%s", bad, diff)
	for _, tt := range []struct {
		name    string
		route   string
		matches []*pb.HeaderMatch
		want    []string
	}{
		{"removal", "beta", nil, nil},
		{"no name", "", nil, []string{"name"}},
		{"no label", "Be.ta", nil, []string{"name"}},
		{"no header", "beta", []*pb.HeaderMatch{exact("", "1")}, []string{"matches[0].name"}},
		{"no value", "beta", []*pb.HeaderMatch{{Name: "x-a"}}, []string{"matches[0].exact"}},
		{"bad expression", "beta", []*pb.HeaderMatch{regex("x-a", "(")}, []string{"matches[0].regex"}},
		{"duplicate header", "beta", []*pb.HeaderMatch{exact("x-a", "1"), exact("X-A", "2")}, []string{"matches[1].name"}},
		{"no cookie", "beta", []*pb.HeaderMatch{cookie("", "1")}, []string{"matches[0].name"}},
		{"cookie without a value", "beta", []*pb.HeaderMatch{cookie("a", "")}, []string{"matches[0].cookie"}},
		{"two cookies", "beta", []*pb.HeaderMatch{cookie("a", "1"), cookie("b", "1")}, []string{"matches[1].name"}},
		{"cookie and its header", "beta", []*pb.HeaderMatch{exact("cookie", "a=1"), cookie("b", "1")}, []string{"matches[1].name"}},
		{"value that would be two", "beta", []*pb.HeaderMatch{cookie("a", "1; b=2")}, []string{"matches[0].cookie"}},
		{"cookie and a header of its name", "beta", []*pb.HeaderMatch{cookie("a", "1"), exact("a", "1")}, nil},
		{"value too long to match", "beta", []*pb.HeaderMatch{cookie("a", strings.Repeat(".", 4000))}, []string{"matches[0].cookie"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, bad := ParseHeaderRoute(tt.route, tt.matches)
			var got []string
			for _, v := range bad {
				got = append(got, v.Field)
			}
			assert.Empty(t, cmp.Diff(tt.want, got), "violations (-want +got)")
		})
	}
}

func TestSetupRefersToObjects(t *testing.T) {
	s := setupOf("vllm", Key{KindHTTPRoute, "llm"})
	s.Policy.Ingresses, s.Policy.Pool = []string{"b"}, &Pool{Stable: "llm", Canary: "llm-canary", Picker: "epp"}
	want := []Key{
		{KindService, "vllm"}, {KindService, "vllm-canary"}, {KindHTTPRoute, "llm"}, {KindIngress, "b"}, {KindIngress, "b-canary"},
		{KindInferencePool, "llm"}, {KindInferencePool, "llm-canary"}, {KindService, "epp"},
	}
	assert.Empty(t, cmp.Diff(want, s.Objects()), "-want +got")
}
