// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// TestShareLimitsBounds checks, for any numbers, that the share is at most what the groups carry while the stable side is
// whole, that more ready groups never lower it, and that it takes few values.
func TestShareLimitsBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		groups := rapid.IntRange(1, 300).Draw(rt, "groups")
		weight := rapid.IntRange(0, 100).Draw(rt, "weight")
		c := shareLimits{
			groups: groups, tolerated: rapid.IntRange(0, groups-1).Draw(rt, "tolerated"),
			stable: rapid.IntRange(0, 300).Draw(rt, "stable"), whole: rapid.Bool().Draw(rt, "whole"),
		}
		c.whole = c.whole && c.stable > 0
		last, values := 0, map[int]bool{}
		for n := range groups + 1 {
			c.steady, c.updated = n, n
			got := c.carried(weight)
			switch {
			case got < last:
				rt.Fatalf("%+v: %d %%, and %d with one group fewer", c, got, last)
			case got > weight:
				rt.Fatalf("%+v: %d of %d %%", c, got, weight)
			case c.whole && n < groups-c.tolerated && got*groups > weight*n:
				rt.Fatalf("%+v: %d of %d %% is more than the groups carry", c, got, weight)
			}
			last, values[got] = got, true
		}
		if last != weight || c.whole && len(values) > 11 {
			rt.Fatalf("%+v: %d of %d %% in %d steps", c, last, weight, len(values))
		}
	})
}

func TestGroupReturned(t *testing.T) {
	at := func(age time.Duration) time.Time { return noon.Add(-age) }
	for _, tc := range []struct {
		name string
		g    Group
		want bool
	}{
		{"never lost", Group{Ready: true, ReadySince: at(time.Hour), FirstReady: at(time.Hour)}, false},
		{"ready for the first time", Group{Ready: true, ReadySince: at(time.Second), FirstReady: at(time.Second), LostAt: at(time.Minute)}, false},
		{"ready, at no time for minReady", Group{Ready: true, ReadySince: at(time.Second), LostAt: at(time.Minute)}, false},
		{"ready again", Group{Ready: true, ReadySince: at(time.Second), FirstReady: at(time.Hour), LostAt: at(time.Minute)}, true},
		{"lost soon after it was first ready", Group{Ready: true, ReadySince: at(time.Second), FirstReady: at(3 * time.Second), LostAt: at(time.Minute)}, true},
		{"lost", Group{FirstReady: at(time.Hour), LostAt: at(time.Minute)}, false},
	} {
		if got := tc.g.justReturned(0); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

// TestWeightIsRecordedForGroups checks for how many groups a weight counts.
func TestWeightIsRecordedForGroups(t *testing.T) {
	v := routing{isolated: true, prepared: true, stable: 4}
	for _, tc := range []struct {
		name   string
		ready  int
		had    *record.Traffic
		weight int
		want   *record.Traffic
	}{
		{"first weight", 3, nil, 50, &record.Traffic{Weight: 50, Groups: 3}},
		{"first weight, before the groups", 0, nil, 50, &record.Traffic{Weight: 50, Groups: 3}},
		{"repeated during the next batch", 1, &record.Traffic{Weight: 50, Groups: 1}, 50, nil},
		{"repeated once it is complete", 3, &record.Traffic{Weight: 50, Groups: 1}, 50, &record.Traffic{Weight: 50, Groups: 3}},
		{"another weight", 1, &record.Traffic{Weight: 50, Groups: 1}, 60, &record.Traffic{Weight: 60, Groups: 3}},
		{"a mirror is left", 3, &record.Traffic{Weight: 50, Mirror: 5, Groups: 3}, 0, &record.Traffic{Mirror: 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := releasing(record.Progressing, "3", v)
			o.Policy.Traffic = &traffic.Policy{}
			o.Record.Release.Traffic = tc.had
			for i := tc.ready; i < 3; i++ {
				o.Added[0].Groups[i].Ready = false
			}
			d := must(Decide(o, Route{Weight: &tc.weight}))
			a, _ := d.Action.(SetStable)
			switch {
			case tc.want == nil && d.Action != nil:
				t.Errorf("%+v is written", a.Record.Release.Traffic)
			case tc.want == nil:
			case a.Record.Release == nil || a.Record.Release.Traffic.Weight != tc.want.Weight || a.Record.Release.Traffic.Groups != tc.want.Groups:
				t.Errorf("%+v is written, want %+v", d.Action, tc.want)
			}
		})
	}
}

// partlyReady is a release whose host requested all requests for three groups, of which some are ready.
func partlyReady(readyGroups int, v routing) Observation {
	o := releasing(record.Progressing, "3", v)
	o.Record.Release.Traffic = &record.Traffic{Weight: 100, Groups: 3}
	for i := range o.Stable.Replicas {
		o.Stable.Groups = append(o.Stable.Groups, Group{Index: i, Revision: "A", Ready: true, ReadySince: noon.Add(-time.Hour)})
	}
	for i := readyGroups; i < 3; i++ {
		o.Added[0].Groups[i].Ready, o.Added[0].Groups[i].LostAt = false, noon.Add(-time.Minute)
	}
	return o
}

// TestVerificationOfCappedShare checks that a share below the requested weight is not verified, whatever is asked.
func TestVerificationOfCappedShare(t *testing.T) {
	at := func(weight int) routing {
		return routing{isolated: true, prepared: true, weight: weight, seen: weight, stable: 4, pods: []string{"vllm-b-0", "vllm-b-1"}}
	}
	blocked := at(100)
	blocked.blocked = true
	for _, tc := range []struct {
		name     string
		o        Observation
		ask      int
		verified bool
		reason   string
	}{
		{"every group is ready", partlyReady(3, at(100)), 100, true, ""},
		{"capped", partlyReady(2, at(60)), 100, false, ReasonCapacityBelowShare},
		{"about to be capped", partlyReady(2, at(100)), 100, false, ReasonCapacityBelowShare},
		{"the share in force", partlyReady(2, at(60)), 60, false, "OtherWeight"},
		{"the stable groups receive all", partlyReady(1, at(0)), 100, false, ReasonCapacityBelowShare},
		{"0 was not requested", partlyReady(1, at(0)), 0, false, "OtherWeight"},
		{"no group is ready", partlyReady(0, at(0)), 100, false, traffic.ReasonNoCanaryEndpoints},
		{"blocked", partlyReady(2, blocked), 100, false, traffic.ReasonRecordInvalid},
	} {
		v := VerifyWeight(tc.o, tc.ask)
		if v.Verified != tc.verified || v.Reason != tc.reason || (v.Message == "") != tc.verified {
			t.Errorf("%s: %+v", tc.name, v)
		}
	}
}

// TestCheckShare checks the rule that no write raises a share above what the groups carry.
func TestCheckShare(t *testing.T) {
	v := routing{isolated: true, prepared: true, weight: 20, seen: 20, stable: 4, pods: []string{"vllm-b-0", "vllm-b-1"}}
	for _, tc := range []struct {
		name   string
		o      Observation
		weight int
		bad    bool
	}{
		{"lowered", partlyReady(0, v), 0, false},
		{"unchanged", partlyReady(0, v), 20, false},
		{"to what the groups carry", partlyReady(2, v), 60, false},
		{"above what the groups carry", partlyReady(2, v), 70, true},
		{"without a ready group", partlyReady(0, v), 30, true},
		{"to the requested weight", partlyReady(3, v), 100, false},
		{"above the requested weight", func() Observation { o := partlyReady(3, v); o.Record.Release.Traffic.Weight = 50; return o }(), 60, true},
		{"of a release that is over", func() Observation { o := partlyReady(3, v); o.Record.Release.Phase = record.CleaningUp; return o }(), 60, true},
	} {
		err := checkDecision(tc.o, nil, Decision{Action: SetTraffic{Desired: traffic.Desired{Weight: tc.weight}}})
		if (err != nil) != tc.bad {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
