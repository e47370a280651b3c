// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func fields(bad []drivererr.FieldViolation) []string {
	var names []string
	for _, v := range bad {
		names = append(names, v.Field)
	}
	return names
}

func TestParseWarmUp(t *testing.T) {
	invalid := &durationpb.Duration{Seconds: 1, Nanos: -1}
	for _, tt := range []struct {
		name   string
		policy *pb.WarmUpPolicy
		want   WarmUp
		bad    []string // below policy.traffic.warm_up
	}{
		{"none", nil, WarmUp{}, nil},
		{"defaults", &pb.WarmUpPolicy{Endpoint: ":8000/health"}, WarmUp{Endpoint{8000, "/health"}, "", 30 * time.Second}, nil},
		{"all", &pb.WarmUpPolicy{Endpoint: ":65535/?a=b", Body: "{}", Timeout: durationpb.New(time.Minute)},
			WarmUp{Endpoint{65535, "/?a=b"}, "{}", time.Minute}, nil},
		{"double slash", &pb.WarmUpPolicy{Endpoint: ":1//x/y"}, WarmUp{Endpoint{1, "//x/y"}, "", 30 * time.Second}, nil},
		{"nothing", &pb.WarmUpPolicy{}, WarmUp{}, []string{".endpoint"}},
		{"invalid duration", &pb.WarmUpPolicy{Endpoint: ":1/", Timeout: invalid}, WarmUp{}, []string{".timeout"}},
		{"negative duration", &pb.WarmUpPolicy{Endpoint: ":1/", Timeout: durationpb.New(-1)}, WarmUp{}, []string{".timeout"}},
		{"long duration", &pb.WarmUpPolicy{Endpoint: "1/", Timeout: durationpb.New(time.Hour + 1)}, WarmUp{}, []string{".endpoint", ".timeout"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, bad := ParseWarmUp(tt.policy)
			for i := range tt.bad {
				tt.bad[i] = "policy.traffic.warm_up" + tt.bad[i]
			}
			if diff := cmp.Diff(tt.bad, fields(bad)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			if len(tt.bad) == 0 && got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseDrain(t *testing.T) {
	day := durationpb.New(24 * time.Hour)
	for _, tt := range []struct {
		name   string
		policy *pb.DrainPolicy
		want   Drain
		bad    []string // below policy.traffic.drain
	}{
		{"none", nil, Drain{}, nil},
		{"period", &pb.DrainPolicy{Period: durationpb.New(time.Second)}, Drain{Period: time.Second, Timeout: 5 * time.Minute}, nil},
		{"long period", &pb.DrainPolicy{Period: day}, Drain{Period: 24 * time.Hour, Timeout: 5 * time.Minute}, nil},
		{"metric", &pb.DrainPolicy{Metric: "vllm:num_requests_running", MetricEndpoint: ":8000/metrics", Timeout: durationpb.New(time.Hour)},
			Drain{0, "vllm:num_requests_running", Endpoint{8000, "/metrics"}, time.Hour}, nil},
		{"nothing", &pb.DrainPolicy{}, Drain{}, []string{""}},
		{"timeout alone", &pb.DrainPolicy{Timeout: day}, Drain{}, []string{""}},
		{"metric alone", &pb.DrainPolicy{Metric: "m"}, Drain{}, []string{".metric_endpoint"}},
		{"endpoint alone", &pb.DrainPolicy{MetricEndpoint: ":1/m"}, Drain{}, []string{".metric"}},
		{"labels", &pb.DrainPolicy{Metric: "m{a=\"b\"}", MetricEndpoint: ":1/m"}, Drain{}, []string{".metric"}},
		{"digit", &pb.DrainPolicy{Metric: "1m", MetricEndpoint: ":1/m"}, Drain{}, []string{".metric"}},
		{"durations", &pb.DrainPolicy{Period: durationpb.New(-1), Timeout: durationpb.New(25 * time.Hour)}, Drain{}, []string{".period", ".timeout"}},
		{"together", &pb.DrainPolicy{Period: durationpb.New(1), Metric: "m", MetricEndpoint: ":1/m", Timeout: day}, Drain{}, []string{".timeout"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, bad := ParseDrain(tt.policy)
			for i := range tt.bad {
				tt.bad[i] = "policy.traffic.drain" + tt.bad[i]
			}
			if diff := cmp.Diff(tt.bad, fields(bad)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			if len(tt.bad) == 0 && got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"8000/health":           "must begin with",
		"localhost:8000/health": "each leader's own",
		"http://x:1/":           "each leader's own",
		":8000":                 "missing",
		":8000health":           "missing",
		":/health":              "1 to 65535",
		":0/health":             "1 to 65535",
		":65536/health":         "1 to 65535",
		":-1/health":            "1 to 65535",
		":+1/health":            "1 to 65535",
		":http/health":          "1 to 65535",
		":1/a b":                "percent-encoded",
		":1/a#b":                "percent-encoded",
		":1/%zz":                "percent-encoded",
		":1/\n":                 "percent-encoded",
	} {
		if e, err := parseEndpoint(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, e, err, want)
		}
	}
}

// TestNoKubernetes: the package is used without a cluster and does not depend on Kubernetes.
func TestNoKubernetes(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			if strings.Contains(spec.Path.Value, "k8s.io/") {
				t.Errorf("%s imports %s", file.Name(), spec.Path.Value)
			}
		}
	}
}
