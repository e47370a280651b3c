// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// replacing returns a release in place in a phase: two groups are stable, two are updated, and the host requested a
// weight of 50.
func replacing(phase record.Phase, change ...func(*Observation)) Observation {
	o := Observation{
		Now: noon, Policy: record.Policy{Style: pb.Style_STYLE_PARTITION},
		Stable: Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: "B", Rolling: rollingOf(2, "1", "0"), Observed: true},
		Record: &record.Record{Release: &record.Release{
			Phase: phase, StableRevision: "A", UpdateRevision: "B", Traffic: &record.Traffic{Weight: 50},
			Target: &record.Target{Groups: "50%", At: noon},
		}},
	}
	for i, revision := range []string{"A", "A", "B", "B"} {
		o.Stable.Groups = append(o.Stable.Groups, Group{
			Index: i, Leader: "vllm-" + string(rune('0'+i)), Revision: revision, Ready: true, ReadySince: noon,
		})
	}
	by(routing{isolated: true, prepared: true})(&o)
	for _, f := range change {
		f(&o)
	}
	return o
}

func by(v routing) func(*Observation) {
	v.stable, v.pods = 2, []string{"vllm-2", "vllm-3"}
	return func(o *Observation) { o.Traffic = v.observe(*o) }
}

func declared(o *Observation) { o.Record.Release.SplitEnded = true }

func indices(groups []Group) []int {
	var out []int
	for _, g := range groups {
		out = append(out, g.Index)
	}
	return out
}

// TestDrainingInPlace checks that groups drain before they are restarted, once they receive no share; where the Service
// selects all leaders, readiness does it.
func TestDrainingInPlace(t *testing.T) {
	split := by(routing{isolated: true, prepared: true, weight: 50, seen: 50})
	behind := by(routing{isolated: true, prepared: true, seen: 50})
	template := func(revision string) func(*Observation) {
		return func(o *Observation) { o.Stable.Revision = revision }
	}
	for _, tc := range []struct {
		name, reason string
		o            Observation
		want         []int
	}{
		{"batch", "all of them stay", replacing(record.Progressing), nil},
		{"rollback", "they are restarted", replacing(record.RollingBack), []int{2, 3}},
		{"rollback, split", "they receive requests", replacing(record.RollingBack, split), nil},
		{"rollback, gateway behind", "it may still send requests", replacing(record.RollingBack, behind), nil},
		{"rollback, no longer isolated", "all ready leaders receive requests", replacing(record.RollingBack, declared), nil},
		{"rolled back", "nothing is restarted any more", replacing(record.CleaningUp), nil},
		{"new template", "they are restarted", replacing(record.Progressing, template("C")), []int{2, 3}},
		{"new template, not recorded", "its revision is unknown", replacing(record.Progressing, template("")), nil},
		{"started over", "no release has their revision", replacing(record.Progressing, template("C"), func(o *Observation) {
			o.Record.Release.UpdateRevision, o.Record.Release.Target = "C", nil
		}), []int{2, 3}},
		{"promoting", "LWS replaces the others", replacing(record.Promoting, declared), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Empty(t, cmp.Diff(tc.want, indices(tc.o.drainingGroups())), "%s (-want +got)", tc.reason)
		})
	}
}

func TestRequestsInPlace(t *testing.T) {
	shared := traffic.Desired{Prepared: true, Weight: 50}
	target := func(groups string) func(*Observation) {
		return func(o *Observation) { o.Record.Release.Target.Groups = groups }
	}
	stable := func(o *Observation) {
		for i := range o.Stable.Groups {
			o.Stable.Groups[i].Revision = "A"
		}
	}
	for _, tc := range []struct {
		name string
		o    Observation
		want traffic.Desired
	}{
		{"batch", replacing(record.Progressing), shared},
		{"no updated group is ready", replacing(record.Progressing, func(o *Observation) {
			o.Stable.Groups[2].Ready, o.Stable.Groups[3].Ready = false, false
		}), preparedRouting()},
		{"last batch, not recorded as such", replacing(record.Progressing, target("100%")), shared},
		{"last batch", replacing(record.Progressing, target("100%"), declared), routingAfterSplit()},
		{"groups came later", replacing(record.Progressing, declared), routingAfterSplit()},
		{"all of them are stable again", replacing(record.Progressing, declared, stable), preparedRouting()},
		{"new template", replacing(record.Progressing, func(o *Observation) { o.Stable.Revision = "C" }), preparedRouting()},
		{"new template, no longer isolated", replacing(record.Progressing, declared, func(o *Observation) { o.Stable.Revision = "C" }), routingAfterSplit()},
		{"no revision yet", replacing(record.Progressing, func(o *Observation) { o.Record.Release.UpdateRevision = "" }), traffic.Desired{}},
		{"promoting", replacing(record.Promoting, declared), routingAfterSplit()},
		{"promoted", replacing(record.Promoted, declared), traffic.Desired{}},
		{"rolling back", replacing(record.RollingBack), preparedRouting()},
		{"rolling back, no longer isolated", replacing(record.RollingBack, declared), routingAfterSplit()},
		{"rolled back", replacing(record.CleaningUp), traffic.Desired{}},
	} {
		assert.Empty(t, cmp.Diff(tc.want, Requests(tc.o)), "%s (-want +got)", tc.name)
	}
}

// TestWarmsUp checks that a group is warmed up only where a serving label lets it receive requests.
func TestWarmsUp(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Observation
		want []int
	}{
		{"batch", replacing(record.Progressing), []int{2, 3}},
		{"splitEnded", replacing(record.Progressing, declared), nil},
		{"promoting", replacing(record.Promoting), nil},
		{"nothing routed", replacing(record.Progressing, func(o *Observation) { o.Traffic = nil }), nil},
	} {
		var got []Group
		for _, g := range tc.o.Stable.Groups {
			if tc.o.warmsUp(tc.o.Stable, g) {
				got = append(got, g)
			}
		}
		assert.Empty(t, cmp.Diff(tc.want, indices(got)), "%s (-want +got)", tc.name)
	}
}

// TestBeginPromotionInPlace checks that the intent to promote leaves the batch unchanged, as far as LWS accepts it: its
// share is withdrawn first.
func TestBeginPromotionInPlace(t *testing.T) {
	batch := func(set, found rolling, replicas int) func(*Observation) {
		return func(o *Observation) {
			o.Record.Set, o.Stable.Rolling, o.Stable.Replicas = &set, found, replicas
		}
	}
	for _, tc := range []struct {
		name, reason string
		o            func(*Observation)
		want         rolling
	}{
		{"Batch", "", batch(rollingOf(2, "1", "0"), rollingOf(2, "1", "0"), 4), rollingOf(2, "1", "0")},
		{"ScaledDown", "LWS refuses 25 % of one group.", batch(rollingOf(2, "25%", "0"), rollingOf(2, "25%", "0"), 1), rollingOf(2, "1", "0")},
		{"ScaledToNone", "LWS accepts anything.", batch(rollingOf(2, "25%", "0"), rollingOf(2, "25%", "0"), 0), rollingOf(2, "25%", "0")},
		{"Overwritten", "Another pace may let LWS continue.", batch(rollingOf(2, "1", "0"), rollingOf(0, "1", "0"), 4), record.Hold()},
		{"NeverSet", "There was no batch.", func(*Observation) {}, record.Hold()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := promoteNow(replacing(record.Progressing, tc.o))
			if !a.Record.Release.SplitEnded || !record.SameRolling(*a.Rolling, tc.want) || a.Record.Release.Phase != record.Promoting {
				t.Errorf("%s %s, want %s; record %+v", tc.reason, describeSet(a.Rolling), describeRolling(tc.want), a.Record.Release)
			}
		})
	}
}

func TestCheckDecisionInPlace(t *testing.T) {
	isolated := routing{isolated: true, prepared: true}
	split, open := isolated, routing{prepared: true}
	split.weight, split.seen = 50, 50
	set := func(phase record.Phase, partition int, open bool) SetStable {
		return SetStable{
			Record:  record.Record{Release: &record.Release{Phase: phase, StableRevision: "A", UpdateRevision: "B", SplitEnded: open, StableTemplate: &record.Template{}}},
			Rolling: ptr.To(rollingOf(partition, "1", "0")),
		}
	}
	all := func(o *Observation) { o.Record.Release.Target.Groups = "100%" }
	hold := func(o *Observation) { o.Stable.Rolling = record.Hold() }
	old := func(o *Observation) { o.Stable.Revision = "A" }
	for _, tc := range []struct {
		name, reason string
		o            Observation
		a            Action
		bad          bool
	}{
		{"Batch", "The Service is isolated.", replacing(record.Progressing, hold, by(split)), set(record.Progressing, 2, false), false},
		{"BatchUnfenced", "Updated leaders would get requests through the stable Service.", replacing(record.Progressing, hold, by(open)), set(record.Progressing, 2, false), true},
		{"LastBatch", "Requests follow the groups.", replacing(record.Progressing, all, by(open)), set(record.Progressing, 0, true), false},
		{"LastBatchIsolated", "The Service would have no endpoint.", replacing(record.Progressing, all, by(isolated)), set(record.Progressing, 0, true), true},
		{"LastBatchSplit", "The stable side of the routes would have no endpoint.", replacing(record.Progressing, all, by(routing{weight: 50, seen: 50})), set(record.Progressing, 0, true), true},
		{"Promotion", "Requests follow the groups.", replacing(record.Promoting, by(open)), set(record.Promoting, 0, true), false},
		{"PromotionIsolated", "The Service would have no endpoint.", replacing(record.Promoting, by(isolated)), set(record.Promoting, 0, true), true},
		{"Restored", "A partition that is raised moves no group.", replacing(record.Progressing, func(o *Observation) { o.Stable.Rolling = rollingOf(0, "1", "0") }, by(split)), set(record.Progressing, 2, false), false},
		{"RollBack", "No share is left.", replacing(record.RollingBack, old, by(isolated)), set(record.RollingBack, 0, false), false},
		{"RollBackSplit", "LWS would replace groups that have a share.", replacing(record.RollingBack, old, by(split)), set(record.RollingBack, 0, false), true},
		{"Restart", "No share is left.", replacing(record.RollingBack, hold, by(isolated)), RestartGroup{Leader: "vllm-3"}, false},
		{"RestartSplit", "It has a share.", replacing(record.RollingBack, hold, by(split)), RestartGroup{Leader: "vllm-3"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := checkDecision(tc.o, nil, Decision{Action: tc.a})
			assert.Equal(t, tc.bad, err != nil, "%s\nerror %v, want one: %t", tc.reason, err, tc.bad)
		})
	}
}
