// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func rolling(unavailable, surge string, partition int32) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge), Partition: ptr.To(partition),
	}
}

// lines formats the stages, "time partition/replicas groups": . absent, o old, u updating, N updated.
func lines(r Rollout) []string {
	out := make([]string, 0, len(r.Stages))
	for _, s := range r.Stages {
		var groups strings.Builder
		for _, g := range s.Groups {
			groups.WriteByte(".ouN"[g])
		}
		out = append(out, fmt.Sprintf("%s %d/%d %s", s.At, s.Partition, s.Replicas, groups.String()))
	}
	return out
}

func TestRollStages(t *testing.T) {
	minute := time.Minute
	for _, tt := range []struct {
		name, reason string
		settings     Settings
		want         []string
	}{
		{
			"v0.9.0", "deletes both surge groups once the two unready groups fit into maxUnavailable: 6 -> 4",
			Settings{Replicas: 4, Rolling: rolling("2", "2", 0), Order: []int{4, 5, 3, 1, 0, 2}, Parallel: true},
			[]string{
				"0s 0/4 oooo..", "0s 2/6 oouuuu", "0s 2/6 oouuNu", "0s 0/6 uuuuNN", "0s 0/6 uuuNNN", "0s 0/4 uNuN..", "0s 0/4 NNuN..", "0s 0/4 NNNN..",
			},
		},
		{
			"deployment-like", "5 replicas, surge 1, 25 % unavailable, which is 1: never below 4, never above 6",
			Settings{Replicas: 5, Rolling: rolling("25%", "1", 0), Startup: minute, Parallel: true},
			[]string{"0s 0/5 ooooo.", "0s 4/6 oooouu", "1m0s 2/6 oouuNN", "2m0s 0/6 uuNNNN", "3m0s 0/5 NNNNN."},
		},
		{
			"deployment-like without the gate", "a StatefulSet updates one by one by default",
			Settings{Replicas: 5, Rolling: rolling("25%", "1", 0), Startup: minute},
			[]string{
				"0s 0/5 ooooo.", "0s 4/6 ooooou", "1m0s 3/6 oooouN", "2m0s 2/6 ooouNN", "3m0s 1/6 oouNNN", "4m0s 0/6 ouNNNN", "5m0s 0/5 uNNNN.", "6m0s 0/5 NNNNN.",
			},
		},
		{
			"partition", "groups below it stay",
			Settings{Replicas: 4, Rolling: rolling("1", "0", 2), Startup: minute},
			[]string{"0s 2/4 oooo", "0s 3/4 ooou", "1m0s 2/4 oouN", "2m0s 2/4 ooNN"},
		},
		{
			"frozen", "a partition above all of them rolls nothing",
			Settings{Replicas: 2, Rolling: rolling("1", "0", 1000000), Startup: minute}, []string{"0s 1000000/2 oo", "0s 1000000/2 oo"},
		},
		{"empty", "nothing to roll", Settings{Rolling: rolling("1", "0", 0)}, []string{"0s 0/0 ", "0s 0/0 "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Roll(tt.settings)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, lines(r)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		unavailable, surge string
		replicas           int
		want               Limits
	}{
		{"99%", "0", 2, Limits{Replicas: 2, MaxUnavailable: 1}},
		{"25%", "0", 5, Limits{Replicas: 5, MaxUnavailable: 1}},
		{"25%", "25%", 5, Limits{Replicas: 5, MaxUnavailable: 1, MaxSurge: 2}},
		{"0", "1%", 4, Limits{Replicas: 4, MaxSurge: 1}},
		{"1", "9", 4, Limits{Replicas: 4, MaxUnavailable: 1, MaxSurge: 4}},
		{"100%", "100%", 3, Limits{Replicas: 3, MaxUnavailable: 3, MaxSurge: 3}},
	} {
		if got := LimitsOf(rolling(tt.unavailable, tt.surge, 0), tt.replicas); got != tt.want {
			t.Errorf("%s/%s of %d: %+v, want %+v", tt.unavailable, tt.surge, tt.replicas, got, tt.want)
		}
	}
}

// TestIterationsAndWaves checks the published count of iterations, which is replicas by batch; surge groups are updated,
// too, so waves are of replicas and surge.
func TestIterationsAndWaves(t *testing.T) {
	for _, tt := range []struct {
		surge, unavailable        string
		iterations, waves, single int
	}{
		{"1", "0", 4, 5, 5}, {"2", "2", 1, 2, 5}, {"0", "2", 2, 2, 4},
	} {
		var waves []int
		for _, parallel := range []bool{true, false} {
			r, err := Roll(Settings{Replicas: 4, Rolling: rolling(tt.unavailable, tt.surge, 0), Startup: time.Minute, Parallel: parallel})
			if err != nil {
				t.Fatal(err)
			}
			if r.Iterations() != tt.iterations {
				t.Errorf("surge %s, unavailable %s: %d iterations, want %d", tt.surge, tt.unavailable, r.Iterations(), tt.iterations)
			}
			waves = append(waves, r.Waves)
		}
		if want := []int{tt.waves, tt.single}; !slices.Equal(waves, want) {
			t.Errorf("surge %s, unavailable %s: waves %v, want %v", tt.surge, tt.unavailable, waves, want)
		}
	}
}

// TestRollHoldsItsLimits checks that no stage of any update has more unavailable or more groups than allowed, and that it
// ends with every group updated.
func TestRollHoldsItsLimits(t *testing.T) {
	n := 0
	for replicas := 1; replicas <= 6; replicas++ {
		for unavailable := 0; unavailable <= replicas; unavailable++ {
			for surge := 0; surge <= replicas; surge++ {
				if unavailable+surge == 0 {
					continue
				}
				for _, parallel := range []bool{true, false} {
					for _, order := range [][]int{nil, {}, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {3, 0, 6, 2, 5, 1, 4}} {
						n++
						checkLimits(t, Settings{
							Replicas: replicas, Rolling: rolling(fmt.Sprint(unavailable), fmt.Sprint(surge), 0), Startup: time.Minute,
							Order: order, Parallel: parallel,
						})
					}
				}
			}
		}
	}
	t.Logf("%d updates", n)
}

func checkLimits(t *testing.T, s Settings) {
	t.Helper()
	r, err := Roll(s)
	if err != nil {
		t.Fatal(err)
	}
	last := r.Stages[len(r.Stages)-1]
	end := strings.Repeat("N", s.Replicas)
	if got := lines(r)[len(r.Stages)-1]; !strings.HasSuffix(strings.TrimRight(got, "."), end) || last.Partition != 0 {
		t.Errorf("%+v ends as %q", s, got)
	}
	if r.MinReady < s.Replicas-r.MaxUnavailable || r.MaxGroups > s.Replicas+r.MaxSurge {
		t.Errorf("%+v: %d to %d groups: %v", s, r.MinReady, r.MaxGroups, lines(r))
	}
	if s.Order == nil && r.Time < time.Duration(r.Iterations())*s.Startup {
		t.Errorf("%+v takes %s, less than %d iterations", s, r.Time, r.Iterations())
	}
	if s.Order == nil && s.Parallel && r.Waves > (s.Replicas+r.MaxSurge+r.Batch()-1)/r.Batch() {
		t.Errorf("%+v takes %d waves: %v", s, r.Waves, lines(r))
	}
}

func TestRollRefuses(t *testing.T) {
	for name, s := range map[string]Settings{
		"both 0":             {Replicas: 2, Rolling: rolling("0", "0", 0)},
		"both round to 0":    {Replicas: 2, Rolling: rolling("25%", "0%", 0)},
		"negative":           {Replicas: -1, Rolling: rolling("1", "0", 0)},
		"negative partition": {Replicas: 1, Rolling: rolling("1", "0", -1)},
	} {
		if r, err := Roll(s); err == nil {
			t.Errorf("%s: %v", name, lines(r))
		}
	}
}

// TestSettleCountsUnavailable checks that a group that was down before the update counts as unavailable.
func TestSettleCountsUnavailable(t *testing.T) {
	s := NewSet(4, rolling("1", "0", 0), "a")
	s.Parallel = true
	s.Groups[0].Ready = false
	s.Template = "b"
	if fresh := s.Reconcile(); len(fresh) != 0 || s.Partition() != 4 {
		t.Errorf("new groups %v, partition %d: one group is down already", fresh, s.Partition())
	}
	s.Groups[0].Ready = true
	if fresh := s.Reconcile(); !slices.Equal(fresh, []int{3}) {
		t.Errorf("new groups %v, want the last", fresh)
	}
}
