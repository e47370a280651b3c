// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// A group that gets requests only by a serving label is ready once its leader has answered its warm-up request, or has the serving label.
func TestColdGroups(t *testing.T) {
	o := releasing(record.Progressing, "3", routing{isolated: true, prepared: true, stable: 4})
	o.Policy.WarmUp = probe.WarmUp{Endpoint: probe.Endpoint{Port: 8080, Path: "/"}}
	shared := o.Added[0].Groups
	shared[0].Serving, shared[1].Serving, shared[2].Serving = true, false, false
	shared[2].WarmUp = &Answer{Message: "it waits for a 2xx response"}
	for _, tc := range []struct {
		name   string
		change func(*Observation)
		want   []string // the reasons of the canary's groups
	}{
		{"not asked, and not answered", func(*Observation) {}, []string{"", reasonWarmUp, reasonWarmUp}},
		{"answered", func(o *Observation) { o.Added[0].Groups[2].WarmUp = &Answer{Done: true} }, []string{"", reasonWarmUp, ""}},
		{"no warm-up", func(o *Observation) { o.Policy.WarmUp = probe.WarmUp{} }, []string{"", "", ""}},
		{"no requests", func(o *Observation) { o.Traffic = nil }, []string{"", "", ""}},
	} {
		o := o
		o.Added = []Workload{o.Added[0]}
		o.Added[0].Groups = append([]Group(nil), shared...)
		tc.change(&o)
		before := o.Added[0].Groups
		judged := Judge(o)
		var got []string
		for i, g := range judged.Added[0].Groups {
			got = append(got, g.Reason)
			assert.False(t, g.Ready == (g.Reason != "") || !g.Ready && !g.FirstReady.IsZero(), "%s: group %+v", tc.name, g)
			assert.True(t, before[i].Ready, "%s: the shared groups are changed", tc.name)
		}
		assert.Empty(t, cmp.Diff(tc.want, got), "%s (-want +got)", tc.name)
		for _, g := range judged.Stable.Groups {
			assert.True(t, g.Ready, "%s: a group of the stable revision is cold: %+v", tc.name, g)
		}
	}
	g := Judge(o).Added[0].Groups[2]
	assert.True(t, g.Message == "it waits for a 2xx response" && g.Pod == g.Leader, "a cold group does not say what it waits for: %+v", g)
}

// The loop's decision names the leaders to ask, whatever it writes or waits for.
func TestEffects(t *testing.T) {
	o := releasing(record.CleaningUp, "3", routing{isolated: true, prepared: true, stable: 4})
	if d := reconcile(o); d.Effects.Drain != nil || d.Effects.WarmUp != nil {
		t.Errorf("without a policy: %+v", d.Effects)
	}
	o.Policy.Style = pb.Style_STYLE_CANARY
	o.Policy.WarmUp, o.Policy.Drain = probe.WarmUp{Timeout: time.Minute}, probe.Drain{Period: time.Minute}
	leaders := leadersOf(o.Added[0].Groups)
	d := reconcile(o)
	assert.Empty(t, cmp.Diff(Effects{WarmUp: leaders, Drain: leaders}, d.Effects), "(-want +got)")
	broken := o
	broken.Added = slices.Clone(o.Added)
	broken.Added[0].Groups = slices.Clone(o.Added[0].Groups)
	broken.Added[0].Groups[1].Ready = false
	if got := reconcile(broken).Effects.WarmUp; slices.Contains(got, leaders[1]) || len(got) != len(leaders)-1 {
		t.Errorf("asked are %v: the warm-up of a group that broke is kept", got)
	}
	assert.True(t, d.Action == nil && d.Reason == ReasonDraining, "leaders that were not asked are removed: %v, %s", d.Action, d.Reason)
	o.Drain = &Drain{leaders[:2], Answer{Done: true}}
	d = reconcile(o)
	assert.True(t, d.Action == nil, "a leader that was not asked is removed: %v", d.Action)
	o.Drain.Leaders = leaders
	d = reconcile(o)
	assert.True(t, d.Action != nil, "nothing follows once they have finished: %s, %s", d.Reason, d.Message)
}
