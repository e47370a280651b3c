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
	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func rolling(unavailable, surge string, partition int32) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge), Partition: ptr.To(partition),
	}
}

// settings is what an update depends on.
type settings struct {
	replicas int
	rolling  lws.RollingUpdateConfiguration
	parallel bool
	// order is the order in which groups become ready, one at a time: of the groups that are not ready the first in order, else the lowest
	// index. Nil means each a minute after its creation.
	order []int
}

// roll takes a set with a changed template through the update, and calls note while both controllers wait.
func roll(s settings, note func(at time.Duration, set *Set)) {
	set := NewSet(s.replicas, s.rolling, "old")
	set.Parallel = s.parallel
	note(0, set)
	set.Template = "new"
	due := map[*Group]time.Duration{}
	for now := time.Duration(0); ; {
		for _, i := range set.Reconcile() {
			due[set.Groups[i]] = now + time.Minute
		}
		note(now, set)
		unready := set.Unready()
		switch {
		case len(unready) == 0:
			return
		case s.order != nil:
			next := slices.IndexFunc(s.order, func(i int) bool { return slices.Contains(unready, i) })
			if next < 0 {
				set.Groups[unready[0]].Ready = true
			} else {
				set.Groups[s.order[next]].Ready = true
			}
			continue
		}
		first := slices.MinFunc(unready, func(a, b int) int { return int(due[set.Groups[a]] - due[set.Groups[b]]) })
		now = due[set.Groups[first]]
		for _, i := range unready {
			set.Groups[i].Ready = due[set.Groups[i]] == now
		}
	}
}

// line formats a stage, "time partition/replicas groups": . missing, o old, u updating, N updated.
func line(at time.Duration, set *Set) string {
	var groups strings.Builder
	for i := range set.LeaderReplicas() {
		switch g := set.Groups[i]; {
		case g == nil:
			groups.WriteByte('.')
		case !g.Ready:
			groups.WriteByte('u')
		case g.Revision == "new":
			groups.WriteByte('N')
		default:
			groups.WriteByte('o')
		}
	}
	return fmt.Sprintf("%s %d/%d %s", at, set.Partition(), set.LeaderReplicas(), groups.String())
}

func TestRollStages(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		settings     settings
		want         []string
	}{
		{
			"v0.9.0", "deletes both surge groups once the two unready groups fit into maxUnavailable: 6 -> 4",
			settings{4, rolling("2", "2", 0), true, []int{4, 5, 3, 1, 0, 2}},
			[]string{"0s 0/4 oooo", "0s 2/6 oouuuu", "0s 2/6 oouuNu", "0s 0/6 uuuuNN", "0s 0/6 uuuNNN", "0s 0/4 uNuN", "0s 0/4 NNuN", "0s 0/4 NNNN"},
		},
		{
			"deployment-like", "5 replicas, surge 1, 25 % unavailable, which is 1: never below 4, never above 6", settings{5, rolling("25%", "1", 0), true, nil},
			[]string{"0s 0/5 ooooo", "0s 4/6 oooouu", "1m0s 2/6 oouuNN", "2m0s 0/6 uuNNNN", "3m0s 0/5 NNNNN"},
		},
		{
			"deployment-like without the gate", "a StatefulSet updates one by one by default", settings{5, rolling("25%", "1", 0), false, nil},
			[]string{
				"0s 0/5 ooooo", "0s 4/6 ooooou", "1m0s 3/6 oooouN", "2m0s 2/6 ooouNN", "3m0s 1/6 oouNNN", "4m0s 0/6 ouNNNN", "5m0s 0/5 uNNNN", "6m0s 0/5 NNNNN",
			},
		},
		{
			"partition", "groups below it stay", settings{4, rolling("1", "0", 2), false, nil},
			[]string{"0s 2/4 oooo", "0s 3/4 ooou", "1m0s 2/4 oouN", "2m0s 2/4 ooNN"},
		},
		{
			"frozen", "a partition above all of them rolls nothing",
			settings{2, rolling("1", "0", 1000000), false, nil}, []string{"0s 1000000/2 oo", "0s 1000000/2 oo"},
		},
		{"empty", "nothing to roll", settings{rolling: rolling("1", "0", 0)}, []string{"0s 0/0 ", "0s 0/0 "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			roll(tt.settings, func(at time.Duration, set *Set) { got = append(got, line(at, set)) })
			assert.Empty(t, cmp.Diff(tt.want, got), "%s (-want +got)", tt.reason)
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
		assert.Equal(t, tt.want, LimitsOf(rolling(tt.unavailable, tt.surge, 0), tt.replicas), "%s/%s of %d", tt.unavailable, tt.surge, tt.replicas)
	}
}

// TestRollHoldsItsLimits checks that no stage of any update has more unavailable or more groups than allowed, and that it
// ends with every group updated.
func TestRollHoldsItsLimits(t *testing.T) {
	for replicas := 1; replicas <= 6; replicas++ {
		for unavailable := 0; unavailable <= replicas; unavailable++ {
			for surge := 0; surge <= replicas; surge++ {
				if unavailable+surge == 0 {
					continue
				}
				for _, parallel := range []bool{true, false} {
					for _, order := range [][]int{nil, {}, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {3, 0, 6, 2, 5, 1, 4}} {
						s, last := settings{replicas, rolling(fmt.Sprint(unavailable), fmt.Sprint(surge), 0), parallel, order}, ""
						roll(s, func(_ time.Duration, set *Set) {
							last = line(0, set)
							if set.Ready() < replicas-unavailable || len(set.Groups) > replicas+surge {
								t.Errorf("%+v: %s", s, last)
							}
						})
						if want := fmt.Sprintf("0s 0/%d %s", replicas, strings.Repeat("N", replicas)); last != want {
							t.Errorf("%+v ends as %q", s, last)
						}
					}
				}
			}
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
	fresh := s.Reconcile()
	assert.True(t, slices.Equal(fresh, []int{3}), "new groups %v, want the last", fresh)
}
