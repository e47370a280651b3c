// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// template returns a template of two pods with that many GPUs each.
func template(gpus string) lws.LeaderWorkerTemplate {
	return lws.LeaderWorkerTemplate{Size: ptr.To[int32](2), WorkerTemplate: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
		}}},
	}}}
}

func rolling(unavailable, surge string) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge), Partition: ptr.To[int32](0)}
}

// input returns a release of 4 groups that start in 10 minutes.
func input(t *testing.T, p *pb.ReleasePolicy) Input {
	t.Helper()
	policy, bad := record.ParsePolicy(p)
	require.Empty(t, bad)
	return Input{
		Replicas: 4, Rolling: rolling("1", "1"), Old: template("8"), New: template("8"), Policy: policy,
		Startup: 10 * time.Minute, StatefulSetMaxUnavailable: true, Frames: true,
	}
}

func routes() *pb.TrafficPolicy {
	return &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"vllm"}}
}

// lines formats the steps: groups old/new/ready after it, extra groups, fewest available, GPUs, weight, time.
func lines(r *pb.PlanResponse) []string {
	out := make([]string, 0, len(r.GetSteps()))
	for _, s := range r.GetSteps() {
		out = append(out, fmt.Sprintf("%s: %d/%d/%d +%d >=%d gpu %q %d%% %s", s.GetName(), s.GetStableGroups(), s.GetCanaryGroups(), s.GetReadyGroups(),
			s.GetExtraGroups(), s.GetMinAvailableGroups(), s.GetExtraResources()["nvidia.com/gpu"], s.GetTrafficWeight(), s.GetEstimate().AsDuration()))
	}
	return out
}

// handover returns a blue-green policy that hands over to the second set 5 minutes after it receives all requests.
func handover(traffic *pb.TrafficPolicy, batches ...string) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: batches, Traffic: traffic, BlueGreen: &pb.BlueGreenPolicy{
		Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT, ScaleDownDelay: durationpb.New(5 * time.Minute),
	}}
}

func TestRelease(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		policy       *pb.ReleasePolicy
		change       func(*Input)
		want         []string
	}{
		{
			"canary", "the canary stays while the user's own roll by 1/1: 5 groups and the surge on top",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}, nil,
			[]string{
				"batch 1 of 2 (25%): 4/1/5 +1 >=4 gpu \"16\" 20% 10m0s",
				"batch 2 of 2 (100%): 4/4/8 +4 >=4 gpu \"64\" 50% 10m0s",
				"promote: 0/4/4 +5 >=4 gpu \"80\" 100% 30m0s",
			},
		},
		{
			"routed", "requests follow the batches",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, Traffic: routes(), MinReady: durationpb.New(time.Minute)}, nil,
			[]string{
				"batch 1 of 2 (25%): 4/1/5 +1 >=4 gpu \"16\" 25% 11m0s",
				"batch 2 of 2 (100%): 4/4/8 +4 >=4 gpu \"64\" 100% 11m0s",
				"promote: 0/4/4 +5 >=4 gpu \"80\" 100% 31m0s",
			},
		},
		{
			"partition, routed", "requests are split until the last batch",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"1", "2", "4"}, Traffic: routes()}, nil,
			[]string{
				"batch 1 of 3 (1): 3/1/4 +0 >=3 gpu \"\" 25% 10m0s",
				"batch 2 of 3 (2): 2/2/4 +0 >=3 gpu \"\" 50% 10m0s",
				"batch 3 of 3 (4): 0/4/4 +0 >=3 gpu \"\" 100% 20m0s",
				"promote: 0/4/4 +0 >=4 gpu \"\" 100% 0s",
			},
		},
		{
			"blue-green", "requests move once, and blue is rolled all at once without requests",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}, Traffic: routes()}, nil,
			[]string{
				"batch 1 of 1 (100%): 4/4/8 +4 >=4 gpu \"64\" 100% 10m0s",
				"promote: 0/4/4 +4 >=4 gpu \"64\" 100% 10m0s",
			},
		},
		{
			"blue-green without the gate", "blue is rolled group by group all the same",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}, Traffic: routes()},
			func(in *Input) { in.StatefulSetMaxUnavailable = false },
			[]string{
				"batch 1 of 1 (100%): 4/4/8 +4 >=4 gpu \"64\" 100% 10m0s",
				"promote: 0/4/4 +4 >=4 gpu \"64\" 100% 40m0s",
			},
		},
		{
			"blue-green, handover", "green stays, so no group starts twice; blue stands by meanwhile",
			handover(routes(), "50%"), nil,
			[]string{
				"batch 1 of 1 (50%): 4/2/6 +2 >=4 gpu \"32\" 0% 10m0s",
				"promote: 0/4/4 +4 >=4 gpu \"64\" 100% 15m0s",
			},
		},
		{
			"partition", "no extra groups, maxUnavailable at once",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "100%"}}, nil,
			[]string{
				"batch 1 of 2 (25%): 3/1/4 +0 >=3 gpu \"\" 25% 10m0s",
				"batch 2 of 2 (100%): 0/4/4 +0 >=3 gpu \"\" 100% 30m0s",
				"promote: 0/4/4 +0 >=4 gpu \"\" 100% 0s",
			},
		},
		{
			"partition, larger pods", "in place, groups use more if the new template does",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"2"}}, func(in *Input) { in.New = template("10") },
			[]string{
				"batch 1 of 1 (2): 2/2/4 +0 >=3 gpu \"8\" 50% 20m0s",
				"promote: 0/4/4 +0 >=3 gpu \"16\" 100% 20m0s",
			},
		},
		{
			"rollback", "of a canary takes no time",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%"}}, func(in *Input) { in.Rollback = true },
			[]string{
				"batch 1 of 1 (50%): 4/2/6 +2 >=4 gpu \"32\" 33% 10m0s",
				"roll back: 4/0/4 +2 >=4 gpu \"32\" 0% 0s",
			},
		},
		{
			"rollback in place", "takes as long as the batches did",
			&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%"}}, func(in *Input) { in.Rollback = true },
			[]string{
				"batch 1 of 1 (50%): 2/2/4 +0 >=3 gpu \"\" 50% 20m0s",
				"roll back: 4/0/4 +0 >=3 gpu \"\" 0% 20m0s",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(t, tt.policy)
			if tt.change != nil {
				tt.change(&in)
			}
			r, err := Release(in)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(tt.want, lines(r)), "%s (-want +got)", tt.reason)
			checkSums(t, in, r)
		})
	}
}

// checkSums: the totals follow from the parts.
func checkSums(t *testing.T, in Input, r *pb.PlanResponse) {
	t.Helper()
	sum := time.Duration(0)
	for _, s := range r.GetSteps() {
		sum += s.GetEstimate().AsDuration()
		assert.Equal(t, s.GetExtraGroups()*int32(in.Size()), s.GetExtraPods(),
			"%s: %d pods of %d groups", s.GetName(), s.GetExtraPods(), s.GetExtraGroups())
	}
	if r.GetEstimate().AsDuration() != sum {
		t.Errorf("%s in all, the steps are %s", r.GetEstimate().AsDuration(), sum)
	}
	last := time.Duration(-1)
	for i, f := range r.GetFrames() {
		at := f.GetAt().AsDuration()
		assert.True(t, at >= last && int(f.GetStep()) < len(r.GetSteps()), "frame %d at %s after %s, step %d", i, at, last, f.GetStep())
		last = f.GetAt().AsDuration()
	}
}

// TestReleaseEnds checks that a release by any valid policy ends, for any workload, and that its steps are consistent.
func TestReleaseEnds(t *testing.T) {
	n := 0
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION} {
		for _, batches := range [][]string{{"0%", "10%", "100%"}, {"1", "2"}, {"0"}} {
			for _, pace := range [][2]string{{"1", "0"}, {"0", "1"}, {"25%", "25%"}, {"10%", "0%"}, {"100%", "100%"}} {
				for _, replicas := range []int{1, 4} {
					for mode := range 16 {
						p := &pb.ReleasePolicy{Style: style, Batches: batches, MinReady: durationpb.New(time.Duration(mode%2) * time.Minute)}
						if style == pb.Style_STYLE_BLUE_GREEN && mode&8 != 0 {
							p.BlueGreen = handover(nil).GetBlueGreen()
						}
						if mode&1 != 0 {
							p.Traffic = routes()
						}
						in := input(t, p)
						in.Replicas, in.Rolling, in.Rollback, in.StatefulSetMaxUnavailable = replicas, rolling(pace[0], pace[1]), mode&2 != 0, mode&4 != 0
						r, err := Release(in)
						if err != nil {
							t.Errorf("%+v: %v", in, err)
							continue
						}
						n++
						checkSums(t, in, r)
						checkEnd(t, in, r)
					}
				}
			}
		}
	}
	t.Logf("%d releases", n)
}

// TestLargest: a forecast of the most groups ends, also if they become ready one by one and are not available at once. Its frames share
// equal groups.
func TestLargest(t *testing.T) {
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION} {
		in := input(t, &pb.ReleasePolicy{Style: style, Batches: []string{"100%"}, MinReady: durationpb.New(90 * time.Second)})
		in.Replicas, in.Startup, in.StatefulSetMaxUnavailable, in.Frames = MaxGroups, time.Minute, false, true
		r, err := Release(in)
		assert.NoError(t, err, style)
		groups := map[*pb.PlanGroup]bool{}
		for _, f := range r.GetFrames() {
			for _, g := range f.GetGroups() {
				groups[g] = true
			}
		}
		assert.LessOrEqual(t, len(groups), 8*MaxGroups, "%v: %d frames have %d groups of their own", style, len(r.GetFrames()), len(groups))
	}
}

func checkEnd(t *testing.T, in Input, r *pb.PlanResponse) {
	t.Helper()
	last := r.GetSteps()[len(r.GetSteps())-1]
	stable, updated := int32(0), int32(in.Replicas)
	if in.Rollback {
		stable, updated = updated, stable
	}
	if last.GetStableGroups() != stable || last.GetCanaryGroups() != updated || last.GetReadyGroups() != int32(in.Replicas) {
		t.Errorf("%v %v ends as %v", in.Policy.Style, in.Rolling, lines(r))
	}
	for _, s := range r.GetSteps() {
		if in.Policy.Style == pb.Style_STYLE_PARTITION && s.GetExtraGroups() > 0 {
			t.Errorf("in place, and %v", lines(r))
		}
	}
}

// TestDeadlineBlocks checks that a start-up time beyond the progress deadline is reported in advance.
func TestDeadlineBlocks(t *testing.T) {
	in := input(t, &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}})
	in.Startup = 40 * time.Minute
	r, err := Release(in)
	require.True(t, err == nil && len(r.GetBlockers()) == 1 && r.GetBlockers()[0].GetCode() == "ProgressDeadlineExceeded",
		"blockers %v, error %v", r.GetBlockers(), err)
	if m := r.GetBlockers()[0].GetMessage(); !strings.Contains(m, "a group takes 40m0s") || !strings.Contains(m, "30m0s") || strings.Contains(m, "pod") {
		t.Errorf("the message is of the forecast's own pods: %s", m)
	}
}

func TestUnknownStartup(t *testing.T) {
	in := input(t, &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}})
	in.Startup, in.Frames = 0, false
	r, err := Release(in)
	assert.True(t, err == nil && r.GetEstimate() == nil && r.GetSteps()[0].GetEstimate() == nil && r.GetFrames() == nil, "%v, error %v", r, err)
}

// A forecast without a caller costs no more: it ends between two decisions.
func TestEndedForecast(t *testing.T) {
	in := input(t, &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}})
	gone, asked := errors.New("gone"), 0
	in.Ended = func() error {
		if asked++; asked < 3 {
			return nil
		}
		return gone
	}
	_, err := Release(in)
	assert.True(t, errors.Is(err, gone) && asked == 3, "%v after %d decisions, want %v after 3", err, asked, gone)
}
