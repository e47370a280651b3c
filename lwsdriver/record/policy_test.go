// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// fields are the fields that violations are about, in order.
func fields(all []drivererr.FieldViolation) []string {
	var out []string
	for _, v := range all {
		out = append(out, v.Field)
	}
	return out
}

func TestParsePolicyAccepts(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		in     *pb.ReleasePolicy
		want   Policy
	}{
		{
			name: "Least", reason: "Style and one batch are enough; the rest has defaults.",
			in: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
			want: Policy{
				Style: pb.Style_STYLE_CANARY, Batches: []Quantity{{100, true}}, ProgressDeadline: DefaultProgressDeadline,
			},
		},
		{
			name: "ZeroDurations", reason: "A duration that is set to 0 means its default, like one that is not set.",
			in: &pb.ReleasePolicy{
				Style: pb.Style_STYLE_CANARY, Batches: []string{"1"},
				ProgressDeadline: durationpb.New(0), MinReady: durationpb.New(0),
			},
			want: Policy{
				Style: pb.Style_STYLE_CANARY, Batches: []Quantity{{value: 1}}, ProgressDeadline: DefaultProgressDeadline,
			},
		},
		{
			name: "Everything", reason: "Batches may repeat; the user's own metadata keys are valid.",
			in: &pb.ReleasePolicy{
				Style: pb.Style_STYLE_PARTITION, Batches: []string{"1", "1", "3"}, FailureThreshold: "10%",
				ProgressDeadline: durationpb.New(time.Hour), MinReady: durationpb.New(time.Second), RolloutId: "Rollout-7.b_2",
				CanaryLeaderMetadata: &pb.PodMetadata{
					Labels: map[string]string{"track": "canary"}, Annotations: map[string]string{"example.com/note": "any text, 100%"},
				},
			},
			want: Policy{
				Style: pb.Style_STYLE_PARTITION, Batches: []Quantity{{value: 1}, {value: 1}, {value: 3}},
				FailureThreshold: Quantity{10, true}, ProgressDeadline: time.Hour, MinReady: time.Second, RolloutID: "Rollout-7.b_2",
				LeaderLabels: map[string]string{"track": "canary"}, LeaderAnnotations: map[string]string{"example.com/note": "any text, 100%"},
			},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, bad := ParsePolicy(tc.in)
			if len(bad) > 0 {
				t.Fatalf("%s\nrefused: %v", tc.reason, bad)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(Quantity{})); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	batches := func(b ...string) func(*pb.ReleasePolicy) { return func(p *pb.ReleasePolicy) { p.Batches = b } }
	labels := func(k, v string) func(*pb.ReleasePolicy) {
		return func(p *pb.ReleasePolicy) {
			p.CanaryLeaderMetadata = &pb.PodMetadata{Labels: map[string]string{k: v}}
		}
	}
	annotations := func(k string) func(*pb.ReleasePolicy) {
		return func(p *pb.ReleasePolicy) {
			p.CanaryLeaderMetadata = &pb.PodMetadata{Annotations: map[string]string{k: ""}}
		}
	}
	tests := []struct {
		name   string
		reason string
		spoil  func(*pb.ReleasePolicy)
		want   []string
	}{
		{"NoBatches", "A release of no batch does nothing.", batches(), []string{"policy.batches"}},
		{
			"BlueGreenOfCanary", "What another style would do is not ignored in silence.",
			func(p *pb.ReleasePolicy) { p.BlueGreen = &pb.BlueGreenPolicy{Force: true} }, []string{"policy.blue_green"},
		},
		{
			"RoleTwice", "A role is removed once.",
			func(p *pb.ReleasePolicy) { p.RoleOrder = []string{"decode", "prefill", "decode"} }, []string{"policy.role_order[2]"},
		},
		{"Decreasing", "Batches never decrease.", batches("50%", "25%"), []string{"policy.batches[1]"}},
		{"DecreasingTwice", "Each batch that decreases is named.", batches("3", "2", "1"), []string{"policy.batches[1]", "policy.batches[2]"}},
		{"OverAll", "At most 100 % is valid.", batches("50%", "101%"), []string{"policy.batches[1]"}},
		{"Negative", "A number of groups is not negative.", batches("-1"), []string{"policy.batches[0]"}},
		{"NotANumber", "Words are no batches.", batches("1", "all"), []string{"policy.batches[1]"}},
		{"EmptyBatch", "An empty batch is a templating accident.", batches("", "1"), []string{"policy.batches[0]"}},
		{"Mixed", "3 and 50 % can't be compared, so a decrease could not be detected.", batches("3", "50%"), []string{"policy.batches[1]"}},
		{"ThresholdNotANumber", "A threshold is a quantity.", func(p *pb.ReleasePolicy) { p.FailureThreshold = "few" }, []string{"policy.failure_threshold"}},
		{"ThresholdOverAll", "No more than all may fail.", func(p *pb.ReleasePolicy) { p.FailureThreshold = "101%" }, []string{"policy.failure_threshold"}},
		{"ThresholdNegative", "A number of groups is not negative.", func(p *pb.ReleasePolicy) { p.FailureThreshold = "-1" }, []string{"policy.failure_threshold"}},
		{"DeadlineNegative", "It would have passed before it began.", func(p *pb.ReleasePolicy) { p.ProgressDeadline = durationpb.New(-time.Second) }, []string{"policy.progress_deadline"}},
		{"MinReadyNegative", "Time runs forwards.", func(p *pb.ReleasePolicy) { p.MinReady = durationpb.New(-1) }, []string{"policy.min_ready"}},
		{"DeadlineOutOfRange", "protobuf allows seconds that no duration has.", func(p *pb.ReleasePolicy) {
			p.ProgressDeadline = &durationpb.Duration{Seconds: math.MaxInt64}
		}, []string{"policy.progress_deadline"}},
		{"MinReadyMixedSigns", "protobuf forbids it.", func(p *pb.ReleasePolicy) {
			p.MinReady = &durationpb.Duration{Seconds: 1, Nanos: -1}
		}, []string{"policy.min_ready"}},
		{"StyleUnset", "A style must be chosen.", func(p *pb.ReleasePolicy) { p.Style = 0 }, []string{"policy.style"}},
		{"StyleUnknown", "A newer host may know more styles.", func(p *pb.ReleasePolicy) { p.Style = 99 }, []string{"policy.style"}},
		{"RolloutID", "Kubernetes would refuse the pods' label.", func(p *pb.ReleasePolicy) { p.RolloutId = "no/slash" }, []string{"policy.rollout_id"}},
		{"RolloutIDTooLong", "A label's value has 63 characters.", func(p *pb.ReleasePolicy) {
			p.RolloutId = strings.Repeat("x", 64)
		}, []string{"policy.rollout_id"}},
		{"LabelOfLWS", "LWS selects by its labels.", labels("leaderworkerset.sigs.k8s.io/name", "x"), []string{"policy.canary_leader_metadata"}},
		{"LabelOfOurs", "Lockstep selects by its labels.", labels("lockstep.dev/role", "x"), []string{"policy.canary_leader_metadata"}},
		{"AnnotationOfLWS", "LWS reads its annotations.", annotations("leaderworkerset.sigs.k8s.io/size"), []string{"policy.canary_leader_metadata"}},
		{"LabelKey", "Kubernetes would refuse the pod.", labels("no spaces", "x"), []string{"policy.canary_leader_metadata.labels"}},
		{"LabelValue", "Kubernetes would refuse the pod.", labels("track", "no/slash"), []string{"policy.canary_leader_metadata.labels"}},
		{"AnnotationKey", "Kubernetes would refuse the pod.", annotations("no spaces"), []string{"policy.canary_leader_metadata.annotations"}},
		{"Several", "All violations are reported at once.", func(p *pb.ReleasePolicy) {
			p.Style, p.Batches, p.FailureThreshold = 0, nil, "x"
		}, []string{"policy.batches", "policy.failure_threshold", "policy.style"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			p := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1", "100"}}
			tc.spoil(p)
			_, bad := ParsePolicy(p)
			if diff := cmp.Diff(tc.want, fields(bad)); diff != "" {
				t.Errorf("%s\nfields: -want, +got:\n%s", tc.reason, diff)
			}
			for _, v := range bad {
				if v.Description == "" {
					t.Errorf("%s: no description", v.Field)
				}
			}
		})
	}
	if _, bad := ParsePolicy(nil); len(bad) != 1 || bad[0].Field != "policy" {
		t.Errorf("no policy at all: %v", bad)
	}
}

// A threshold is a share of the batch's groups, rounded down. A batch of which no group is ready has shown nothing.
func TestThreshold(t *testing.T) {
	for _, tt := range []struct {
		threshold     string
		planned, want int
	}{{"", 4, 0}, {"10%", 9, 0}, {"50%", 3, 1}, {"2", 5, 2}, {"2", 1, 0}, {"100%", 4, 3}, {"100%", 0, 0}} {
		p, bad := ParsePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1"}, FailureThreshold: tt.threshold})
		if got := p.Threshold(tt.planned); got != tt.want || len(bad) > 0 {
			t.Errorf("Threshold(%d) of %q = %d, want %d: %v", tt.planned, tt.threshold, got, tt.want, bad)
		}
	}
}

func TestCheckMetadata(t *testing.T) {
	p := Policy{
		LeaderLabels:      map[string]string{"track": "canary", "example.com/a": "", "example.org/b": ""},
		LeaderAnnotations: map[string]string{"example.com/c": ""},
	}
	for _, tt := range []struct {
		name     string
		prefixes []string
		want     []string
	}{
		{"none allowed", nil, []string{"annotations example.com/c", "labels example.com/a", "labels example.org/b", "labels track"}},
		{"a domain", []string{"example.com/"}, []string{"labels example.org/b", "labels track"}},
		{"all of them", []string{"example.com/", "example.org/", "track"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := CheckMetadata(p, tt.prefixes)
			if len(got) != len(tt.want) {
				t.Fatalf("%v, want %v", got, tt.want)
			}
			for i, want := range tt.want {
				field, key, _ := strings.Cut(want, " ")
				if got[i].Field != "policy.canary_leader_metadata."+field || !strings.Contains(got[i].Description, `"`+key+`"`) ||
					!strings.Contains(got[i].Description, "--canary-metadata-prefix") {
					t.Errorf("violation %d is %v, want %s", i, got[i], want)
				}
			}
		})
	}
	if bad := CheckMetadata(Policy{}, nil); len(bad) > 0 {
		t.Errorf("a policy without metadata: %v", bad)
	}
}

// A deadline beyond the driver's bound is refused; a recorded one counts as long as the bound.
func TestOperatorLimits(t *testing.T) {
	b := Limits{ProgressDeadline: time.Hour}
	for _, tt := range []struct {
		deadline, counts time.Duration
		refused          bool
	}{
		{DefaultProgressDeadline, DefaultProgressDeadline, false}, {time.Hour, time.Hour, false}, {time.Hour + 1, time.Hour, true},
	} {
		p := Policy{ProgressDeadline: tt.deadline}
		bad := b.Check(p)
		if refused := len(bad) > 0; refused != tt.refused {
			t.Errorf("%s: %v", tt.deadline, bad)
		} else if refused && (bad[0].Field != "policy.progress_deadline" || !strings.Contains(bad[0].Description, "at most 1h0m0s") ||
			!strings.Contains(bad[0].Description, "--max-progress-deadline")) {
			t.Errorf("%s: %v, want the field, the maximum and the flag", tt.deadline, bad)
		}
		if got := b.Apply(p).ProgressDeadline; got != tt.counts {
			t.Errorf("%s counts as %s, want %s", tt.deadline, got, tt.counts)
		}
	}
	if bad := (Limits{}).Check(Policy{ProgressDeadline: math.MaxInt64}); len(bad) > 0 {
		t.Errorf("without a bound: %v", bad)
	}
}

// 25 groups of 4 are all of them, which is rarely meant.
func TestWarnings(t *testing.T) {
	for _, tt := range []struct {
		batches []string
		want    int
	}{{[]string{"25%", "100%"}, 0}, {[]string{"1", "4"}, 0}, {[]string{"25", "100"}, 1}, {[]string{"1", "5"}, 1}} {
		p, bad := ParsePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: tt.batches})
		if len(bad) > 0 {
			t.Fatal(bad)
		}
		if got := p.Warnings(4); len(got) != tt.want {
			t.Errorf("%v: %v", tt.batches, got)
		}
	}
	p := Policy{Style: pb.Style_STYLE_BLUE_GREEN}
	if got := p.Warnings(4); len(got) != 1 || got[0].GetCode() != "RequestsNotSwitched" {
		t.Errorf("blue-green without traffic: %v", got)
	}
	p.Traffic = &traffic.Policy{}
	if got := p.Warnings(4); len(got) != 0 {
		t.Errorf("blue-green with traffic: %v", got)
	}
}
