// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// releasing returns a release in a phase whose host requested a weight of 50 for a canary of three groups.
func releasing(phase record.Phase, groups string, v routing) Observation {
	c := Workload{
		Name: "vllm-b", Replicas: 3, Size: 2, Revision: "B", Carries: "B", HasFinalizer: true,
		Target: &record.Target{Groups: groups, At: noon},
	}
	for i := range 3 {
		g := Group{Index: i, Leader: "vllm-b-" + string(rune('0'+i)), Revision: "B", Ready: true, ReadySince: noon}
		c.Groups = append(c.Groups, g)
	}
	o := Observation{
		Now: noon, Stable: Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: "B", Rolling: record.Hold()},
		Added: []Workload{c},
		Record: &record.Record{Release: &record.Release{
			Phase: phase, StableRevision: "A", UpdateRevision: "B", Traffic: &record.Traffic{Weight: 50},
		}},
	}
	o.Traffic = v.observe(o)
	return o
}

// A share that the API server refuses to withdraw does not keep the label of a broken group from being removed.
func TestRefusedRouteYieldsToLabels(t *testing.T) {
	o := releasing(record.Progressing, "3", routing{isolated: true, prepared: true, stable: 4, weight: 50, seen: 50, pods: []string{"vllm-b-0"}})
	for i := range o.Stable.Replicas {
		o.Stable.Groups = append(o.Stable.Groups, Group{Index: i, Revision: "A", Ready: true, ReadySince: noon.Add(-time.Hour)})
	}
	for i := range o.Added[0].Groups {
		o.Added[0].Groups[i].Serving, o.Added[0].Groups[i].Ready, o.Added[0].Groups[i].LostAt = true, i == 0, noon.Add(-time.Minute)
	}
	o.Record.Release.Traffic.Groups, o.Policy.Style, o.Record.Saved = 3, pb.Style_STYLE_CANARY, record.Native(record.Hold())
	for _, tt := range []struct {
		name    string
		refused traffic.Key
		want    Action
	}{
		{"nothing", traffic.Key{}, SetTraffic{Desired: preparedRouting(), Why: "patch HTTPRoute route: from 50 % to the canary towards 0 %"}},
		{"the route", routed.Routes[0], LabelServing{Name: "vllm-b", Leader: "vllm-b-1"}},
		{"another object", traffic.Key{Kind: traffic.KindService, Name: "service"}, SetTraffic{Desired: preparedRouting(), Why: "patch HTTPRoute route: from 50 % to the canary towards 0 %"}},
	} {
		o := o
		o.Traffic = o.Traffic.AfterRefusal(tt.refused)
		assert.Empty(t, cmp.Diff(tt.want, reconcile(o).Action), "refused is %s (-want +got)", tt.name)
	}
	for i := range o.Added[0].Groups {
		o.Added[0].Groups[i].Serving = i == 0
	}
	o.Traffic = o.Traffic.AfterRefusal(routed.Routes[0])
	_, again := reconcile(o).Action.(SetTraffic)
	assert.True(t, again, "the refused write is not repeated once nothing else is due")
}

// A stale cache gives the canary no more requests of any kind, and withdraws all the same.
func TestStaleRoutes(t *testing.T) {
	split := routing{isolated: true, prepared: true, stable: 4, weight: 50, seen: 50, pods: []string{"vllm-b-0", "vllm-b-1", "vllm-b-2"}}
	testers := []traffic.HeaderRoute{{Name: "testers", Matches: []traffic.HeaderMatch{{Name: "x-canary", Value: "yes"}}}}
	for name, tt := range map[string]struct {
		is, want traffic.Desired
		withheld bool
	}{
		"a larger share":                   {traffic.Desired{Weight: 50}, traffic.Desired{Weight: 60}, true},
		"a smaller share":                  {traffic.Desired{Weight: 50}, traffic.Desired{Weight: 40}, false},
		"a mirror":                         {traffic.Desired{Weight: 50}, traffic.Desired{Weight: 50, Mirror: 10}, true},
		"a larger mirror":                  {traffic.Desired{Weight: 50, Mirror: 5}, traffic.Desired{Weight: 50, Mirror: 10}, true},
		"no mirror, before a larger share": {traffic.Desired{Weight: 50, Mirror: 10}, traffic.Desired{Weight: 60}, false},
		"a header route":                   {traffic.Desired{Weight: 50}, traffic.Desired{Weight: 50, HeaderRoutes: testers}, true},
		"no header route, before a mirror": {traffic.Desired{Weight: 50, HeaderRoutes: testers}, traffic.Desired{Weight: 50, Mirror: 10}, false},
		"a smaller share, before a mirror": {traffic.Desired{Weight: 50}, traffic.Desired{Weight: 40, Mirror: 10}, false},
		"nothing, for an abort":            {traffic.Desired{Weight: 50, Mirror: 10, HeaderRoutes: testers}, preparedRouting(), false},
	} {
		o := releasing(record.Progressing, "3", split)
		o.Traffic.World = must(model.Objects{World: o.Traffic.World}.Next(o.Traffic.Setup, tt.is)).World
		assert.Equal(t, tt.withheld, o.needsFresh(SetTraffic{Desired: tt.want}), "%s: withheld", name)
	}
}

// TestDraining checks that groups drain once they are to be deleted and can receive no request.
func TestDraining(t *testing.T) {
	whole, none := routing{isolated: true, prepared: true, stable: 4}, routing{}
	split := whole
	split.weight, split.seen, split.pods = 50, 50, []string{"vllm-b-0", "vllm-b-1"}
	behind, reached := split, split
	behind.seen = 40
	reached.pods = []string{"vllm-b-0", "vllm-b-2"}
	gone, unread := whole, whole
	gone.gone, unread.unread = true, true
	all := split
	all.weight, all.seen, all.pods = 100, 100, []string{"vllm-b-0", "vllm-b-1", "vllm-b-2"}
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
		{"nothing routed", "nothing to wait for", change(releasing(record.CleaningUp, "3", none), func(o *Observation) { o.Traffic = nil }), nil},
		{"batch", "all of them stay", releasing(record.Progressing, "3", split), nil},
		{"scale down", "the last one is deleted, and receives no requests", releasing(record.Progressing, "2", split), []int{2}},
		{"still in service", "the last one still receives requests", releasing(record.Progressing, "2", reached), nil},
		{"gateway behind", "its routing is unknown", releasing(record.Progressing, "2", behind), nil},
		{"rollback, split", "all of them receive requests", releasing(record.CleaningUp, "3", split), nil},
		{"rollback, withdrawn", "they receive none", releasing(record.CleaningUp, "3", whole), []int{0, 1, 2}},
		{"rollback, Service gone", "no route selects the canary", releasing(record.CleaningUp, "3", gone), []int{0, 1, 2}},
		{"rollback, not synced", "the routing is unknown", releasing(record.CleaningUp, "3", unread), nil},
		{"about to be rolled", "all requests go to the canary", change(releasing(record.Promoting, "3", all), everything), []int{0, 1}},
		{"about to be rolled too early", "a gateway still sends some", change(releasing(record.Promoting, "3", split), everything), nil},
		{"promoting", "its capacity stays", releasing(record.Promoting, "3", whole), nil},
		{"promoted", "it is deleted", releasing(record.Promoted, "3", whole), []int{0, 1, 2}},
		{"new template", "it is deleted", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Stable.Revision = "C" }), []int{0, 1, 2}},
		{"deleted by hand", "it is deleted", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Added[0].Deleting = true }), []int{0, 1, 2}},
		{"no record", "it is deleted", change(releasing(record.Progressing, "3", whole), func(o *Observation) { o.Record = nil }), []int{0, 1, 2}},
		{"no pod", "nothing to wait for", change(releasing(record.CleaningUp, "3", whole), func(o *Observation) {
			for i := range o.Added[0].Groups {
				o.Added[0].Groups[i].Revision = ""
			}
		}), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []int
			for _, g := range tc.o.drainingGroups() {
				got = append(got, g.Index)
			}
			assert.Empty(t, cmp.Diff(tc.want, got), "%s (-want +got)", tc.reason)
		})
	}
}

// TestRequests checks that the desired routing follows from the phase and the groups that can serve.
func TestRequests(t *testing.T) {
	v := routing{isolated: true, prepared: true, stable: 4}
	shared, ready, nothing := traffic.Desired{Prepared: true, Weight: 50}, preparedRouting(), traffic.Desired{}
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
		{"batch", change(record.Progressing, keep), shared},
		{"no group is ready", change(record.Progressing, func(o *Observation) {
			for i := range o.Added[0].Groups {
				o.Added[0].Groups[i].Ready = false
			}
		}), ready},
		{"only a surplus group is ready", change(record.Progressing, func(o *Observation) {
			o.Added[0].Target.Groups, o.Added[0].Groups[0].Ready = "1", false
		}), ready},
		{"new template", change(record.Progressing, func(o *Observation) { o.Stable.Revision = "C" }), ready},
		{"no weight requested", change(record.Progressing, func(o *Observation) { o.Record.Release.Traffic = nil }), ready},
		{"no canary", change(record.Progressing, func(o *Observation) { o.Added = nil }), ready},
		{"promoting", change(record.Promoting, keep), shared},
		{"promoting, canary deleted by hand", change(record.Promoting, func(o *Observation) { o.Added = nil }), ready},
		{"promoted", change(record.Promoted, keep), ready},
		{"rolling back", change(record.CleaningUp, keep), ready},
		{"rolled back", change(record.CleaningUp, func(o *Observation) { o.Added = nil }), nothing},
		{"no release", change(record.Progressing, func(o *Observation) { o.Record.Release = nil }), nothing},
		{"no record", change(record.Progressing, func(o *Observation) { o.Record = nil }), nothing},
	} {
		assert.Empty(t, cmp.Diff(tc.want, Requests(tc.o)), "%s (-want +got)", tc.name)
	}
}
