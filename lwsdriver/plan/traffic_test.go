// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// releasing is a release in a phase whose host wants half of the requests at a canary of three groups.
func releasing(phase record.Phase, groups string, v trafficView) Observation {
	c := Workload{
		Name: "vllm-b", Replicas: 3, Size: 2, Revision: "B", Carries: "B", HasFinalizer: true,
		Target: &record.Target{Groups: groups, At: noon},
	}
	for i := range 3 {
		g := Group{Index: i, Leader: "vllm-b-" + string(rune('0'+i)), Revision: "B", Ready: true, ReadySince: noon}
		c.Groups = append(c.Groups, g)
	}
	return Observation{
		Now: noon, Stable: Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: "B", Rolling: record.Hold()},
		Added: []Workload{c}, Traffic: v,
		Record: &record.Record{Release: &record.Release{
			Phase: phase, StableRevision: "A", UpdateRevision: "B", Traffic: &record.Traffic{Weight: 50},
		}},
	}
}

// Groups drain once they are to go and no request can come to them any more.
func TestLeaving(t *testing.T) {
	whole, none := trafficView{trafficModel: trafficModel{fenced: true, prepared: true}, stable: 4}, trafficView{}
	split := whole
	split.weight, split.seen, split.canary, split.pods = 50, 50, 2, []string{"vllm-b-0", "vllm-b-1"}
	behind, reached := split, split
	behind.seen = 40
	reached.pods = []string{"vllm-b-0", "vllm-b-2"}
	gone, unread := whole, whole
	gone.gone, unread.unread = true, true
	all := split
	all.weight, all.seen, all.canary, all.pods = 100, 100, 3, []string{"vllm-b-0", "vllm-b-1", "vllm-b-2"}
	everything := func(o *Observation) {
		o.Record.Release.Traffic = &record.Traffic{Weight: 100}
		o.Stable.Groups = []Group{{Index: 0, Revision: "A"}, {Index: 1, Revision: "A"}}
	}
	change := func(o Observation, f func(*Observation)) Observation { f(&o); return o }
	for _, tc := range []struct {
		name, reason string
		o            Observation
		want         []int
	}{
		{"nothing routed", "there is nobody to wait for", change(releasing(record.CleaningUp, "3", none), func(o *Observation) { o.Traffic = nil }), nil},
		{"batch", "all of them stay", releasing(record.Progressing, "3", split), nil},
		{"scale down", "the last one goes, and is out of service", releasing(record.Progressing, "2", split), []int{2}},
		{"still in service", "requests come to the one that goes", releasing(record.Progressing, "2", reached), nil},
		{"gateway behind", "nobody knows what it sends where", releasing(record.Progressing, "2", behind), nil},
		{"rollback, split", "requests come to all of them", releasing(record.CleaningUp, "3", split), nil},
		{"rollback, withdrawn", "none does", releasing(record.CleaningUp, "3", whole), []int{0, 1, 2}},
		{"rollback, Service gone", "no route leads to the canary", releasing(record.CleaningUp, "3", gone), []int{0, 1, 2}},
		{"rollback, not read", "nobody knows", releasing(record.CleaningUp, "3", unread), nil},
		{"about to be rolled", "all requests go to the canary", change(releasing(record.Promoting, "3", all), everything), []int{0, 1}},
		{"about to be rolled too early", "a gateway still sends some", change(releasing(record.Promoting, "3", split), everything), nil},
		{"promoting", "its capacity stays", releasing(record.Promoting, "3", whole), nil},
		{"promoted", "it goes", releasing(record.Promoted, "3", whole), []int{0, 1, 2}},
		{"new template", "it goes", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Stable.Revision = "C" }), []int{0, 1, 2}},
		{"deleted by hand", "it goes", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Added[0].Deleting = true }), []int{0, 1, 2}},
		{"no record", "it goes", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Record = nil }), []int{0, 1, 2}},
		{"no pod", "there is nobody to wait for", change(releasing(record.CleaningUp, "3", whole), func(o *Observation) {
			for i := range o.Added[0].Groups {
				o.Added[0].Groups[i].Revision = ""
			}
		}), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []int
			for _, g := range DrainingGroups(tc.o) {
				got = append(got, g.Index)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// Where the requests should go follows from the phase, and from what is there to serve them.
func TestRequests(t *testing.T) {
	v := trafficView{trafficModel: trafficModel{fenced: true, prepared: true}, stable: 4}
	half, ready, nothing := traffic.Desired{Prepared: true, Weight: 50, HeaderRoutes: []traffic.HeaderRoute{}}, prepared(), traffic.Desired{}
	change := func(phase record.Phase, f func(*Observation)) Observation {
		o := releasing(phase, "3", v)
		f(&o)
		return o
	}
	keep := func(*Observation) {}
	for _, tc := range []struct {
		name string
		o    Observation
		want traffic.Desired
	}{
		{"batch", change(record.Progressing, keep), half},
		{"no group is whole", change(record.Progressing, func(o *Observation) {
			for i := range o.Added[0].Groups {
				o.Added[0].Groups[i].Ready = false
			}
		}), ready},
		{"none of those that stay", change(record.Progressing, func(o *Observation) {
			o.Added[0].Target.Groups, o.Added[0].Groups[0].Ready = "1", false
		}), ready},
		{"new template", change(record.Progressing, func(o *Observation) { o.Stable.Revision = "C" }), ready},
		{"nothing wished for", change(record.Progressing, func(o *Observation) { o.Record.Release.Traffic = nil }), ready},
		{"canary not there", change(record.Progressing, func(o *Observation) { o.Added = nil }), ready},
		{"promoting", change(record.Promoting, keep), half},
		{"promoting, canary torn out", change(record.Promoting, func(o *Observation) { o.Added = nil }), ready},
		{"promoted", change(record.Promoted, keep), ready},
		{"rolling back", change(record.CleaningUp, keep), ready},
		{"rolled back", change(record.CleaningUp, func(o *Observation) { o.Added = nil }), nothing},
		{"no release", change(record.Progressing, func(o *Observation) { o.Record.Release = nil }), nothing},
		{"no record", change(record.Progressing, func(o *Observation) { o.Record = nil }), nothing},
	} {
		if diff := cmp.Diff(tc.want, Requests(tc.o)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}
