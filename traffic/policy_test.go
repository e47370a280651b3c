// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestParsePolicy(t *testing.T) {
	got, bad := ParsePolicy(&pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"a", "b"}, GrpcRoutes: []string{"a"}})
	want := Policy{StableService: "vllm", CanaryService: "vllm-canary", Routes: []Key{
		{KindHTTPRoute, "a"}, {KindHTTPRoute, "b"}, {KindGRPCRoute, "a"},
	}}
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("%v (-want +got):\n%s", bad, diff)
	}
	for _, tt := range []struct {
		name   string
		policy *pb.TrafficPolicy
		want   []string // fields below policy.traffic
	}{
		{"no Service", &pb.TrafficPolicy{HttpRoutes: []string{"a"}}, []string{"stable_service"}},
		{"no route", &pb.TrafficPolicy{StableService: "vllm"}, []string{"http_routes"}},
		{"bad names", &pb.TrafficPolicy{StableService: "Vllm", CanaryService: "1.", GrpcRoutes: []string{"a", "A"}},
			[]string{"stable_service", "canary_service", "grpc_routes[1]"}},
		{"a digit first, as Kubernetes allows since 1.36", &pb.TrafficPolicy{StableService: "70b-leader", HttpRoutes: []string{"a"}}, nil},
		{"same Service", &pb.TrafficPolicy{StableService: "vllm", CanaryService: "vllm", HttpRoutes: []string{"a"}}, []string{"canary_service"}},
		{"duplicate route", &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"a", "a"}}, []string{"http_routes[1]"}},
		{"name too long", &pb.TrafficPolicy{StableService: strings.Repeat("v", 60), HttpRoutes: []string{"a"}}, []string{"canary_service"}},
		{"an Ingress alone", &pb.TrafficPolicy{StableService: "vllm", Ingresses: []string{"a.example"}}, nil},
		{"bad Ingresses", &pb.TrafficPolicy{StableService: "vllm", Ingresses: []string{"", "A", "b", "b", "b-canary"}},
			[]string{"ingresses[0]", "ingresses[1]", "ingresses[3]", "ingresses[2]", "ingresses[3]"}},
		{"a pool and its route", pool(&pb.InferencePoolPolicy{Name: "vllm", CanaryEndpointPicker: "epp", CanaryEndpointPickerPort: 65535}, "a"), nil},
		{"a pool without route", pool(&pb.InferencePoolPolicy{Name: "vllm", CanaryEndpointPicker: "epp"}), []string{"http_routes"}},
		{"an empty pool", pool(&pb.InferencePoolPolicy{}, "a"), []string{"inference_pool.name", "inference_pool.canary_endpoint_picker"}},
		{"a bad pool", pool(&pb.InferencePoolPolicy{Name: "V", CanaryEndpointPicker: "E", CanaryEndpointPickerPort: -1}, "a"),
			[]string{"inference_pool.name", "inference_pool.canary_endpoint_picker", "inference_pool.canary_endpoint_picker_port"}},
		{"no such port", pool(&pb.InferencePoolPolicy{Name: "vllm", CanaryEndpointPicker: "epp", CanaryEndpointPickerPort: 65536}, "a"),
			[]string{"inference_pool.canary_endpoint_picker_port"}},
		{"leaders as picker", pool(&pb.InferencePoolPolicy{Name: "vllm", CanaryEndpointPicker: "vllm"}, "a"), []string{"inference_pool.canary_endpoint_picker"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, bad := ParsePolicy(tt.policy)
			var got []string
			for _, v := range bad {
				got = append(got, strings.TrimPrefix(v.Field, "policy.traffic."))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func pool(p *pb.InferencePoolPolicy, routes ...string) *pb.TrafficPolicy {
	return &pb.TrafficPolicy{StableService: "vllm", InferencePool: p, HttpRoutes: routes}
}

func TestParseProviders(t *testing.T) {
	p := pool(&pb.InferencePoolPolicy{Name: "llm", CanaryEndpointPicker: "epp", CanaryEndpointPickerPort: 9002}, "a")
	p.Ingresses = []string{"b", strings.Repeat("c", 253)}
	got, bad := ParsePolicy(p)
	want := Policy{
		StableService: "vllm", CanaryService: "vllm-canary", Routes: []Key{{KindHTTPRoute, "a"}}, Ingresses: p.GetIngresses(),
		Pool: &Pool{Stable: "llm", Canary: "llm-canary", Picker: "epp", PickerPort: 9002},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("%v (-want +got):\n%s", bad, diff)
	}
	s := setupOf("vllm")
	s.Policy = got
	for _, key := range []Key{
		{KindIngress, "b"}, {KindIngress, "b-canary"}, {KindInferencePool, "llm"}, {KindInferencePool, "llm-canary"}, {KindService, "epp"},
	} {
		if !slices.Contains(s.Objects(), key) {
			t.Errorf("does not refer to %s", key)
		}
	}
}

// TestCanaryName: names are valid and unique.
func TestCanaryName(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"llm", strings.Repeat("a", 246), strings.Repeat("a", 247), strings.Repeat("a", 253), strings.Repeat("a", 252) + "b",
		strings.Repeat("a", 236) + "." + strings.Repeat("a", 16), strings.Repeat("a.", 126) + "a", strings.Repeat("a", 235) + "--" + strings.Repeat("a", 16),
	} {
		got := canaryName(name)
		if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 || !strings.HasSuffix(got, "-canary") {
			t.Errorf("%s: %v", got, problems)
		}
		if seen[got] != "" {
			t.Errorf("%s is for %s and for %s", got, name, seen[got])
		}
		seen[got] = name
	}
	if canaryName("llm") != "llm-canary" {
		t.Errorf("the canary of llm is %s", canaryName("llm"))
	}
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
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("%v (-want +got):\n%s", bad, diff)
	}
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
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetup(t *testing.T) {
	s := setupOf("vllm", Key{KindHTTPRoute, "llm"})
	for key, want := range map[Key]bool{
		{KindService, "vllm"}: true, {KindService, "vllm-canary"}: true, {KindHTTPRoute, "llm"}: true,
		{KindGRPCRoute, "llm"}: false, {KindService, "llm"}: false,
	} {
		if slices.Contains(s.Objects(), key) != want {
			t.Errorf("refers to %s: %t", key, !want)
		}
	}
}

// TestPure: the package does no I/O.
func TestPure(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if regexp.MustCompile(`^"(context|time|log.*|os|sync|k8s\.io/client-go/.*)"$`).MatchString(spec.Path.Value) {
				t.Errorf("%s imports %s", e.Name(), spec.Path.Value)
			}
		}
	}
}
