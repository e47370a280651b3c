// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// roleGroups returns groups of a child, the first ones ready. Each became ready a minute after the one before.
func roleGroups(child string, n, ready int) []Group {
	all := make([]Group, 0, n)
	for i := range n {
		g := Group{Index: i, Leader: fmt.Sprintf("%s-%d", child, i), Revision: "lws", ReadyPods: 1, Pods: 1}
		if i < ready {
			g.Ready, g.ReadySince = true, noon.Add(time.Duration(i)*time.Minute)
			g.FirstReady = g.ReadySince
		} else {
			g.Reason, g.Pod, g.Message = "Pending", g.Leader, "is starting"
		}
		all = append(all, g)
	}
	return all
}

var rolesOf4and2 = []Role{{Name: "prefill", Replicas: 4, Size: 1}, {Name: "decode", Replicas: 2, Size: 1}}

// rolesObservation is a DisaggregatedSet with 4 groups of prefill and 2 of decode at revision old, and ready groups of the children at new.
func rolesObservation(prefill, decode int) Observation {
	child := func(revision, role string, n, ready int) Child {
		name := "llm-" + revision + "-" + role
		return Child{Name: name, Role: role, Revision: revision, Replicas: n, Groups: roleGroups(name, n, ready)}
	}
	o := Observation{
		Key: scenarioKey, Now: noon.Add(time.Hour), Roles: slices.Clone(rolesOf4and2), Slices: 1, BoundsEnforced: true,
		Stable: Workload{Name: "llm", Revision: "new", Observed: true},
		Children: []Child{
			child("old", "prefill", 4, 4), child("old", "decode", 2, 2), child("new", "prefill", prefill, prefill), child("new", "decode", decode, decode),
		},
		Bounds: &Bounds{Roles: rolesOf4and2, Stable: "old", Min: map[string]int{"0-prefill": 4, "0-decode": 2}},
		Record: &record.Record{Release: &record.Release{
			ID: "r", StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, Replicas: 4, StartedAt: noon, PhaseAt: noon,
		}},
		Policy: record.Policy{Style: pb.Style_STYLE_CANARY},
	}
	if prefill+decode > 0 {
		o.Bounds = withUpdate(o, "new", prefill)
	}
	return o
}

func withUpdate(o Observation, revision string, units int) *Bounds {
	b := *o.Bounds
	b.Update, b.Target = revision, &record.Target{Groups: fmt.Sprint(units), At: noon}
	b = o.withUnits(b, units)
	return &b
}

// A batch has at least one group of each role, never fewer than the batch before, and all of them at the end.
func TestPartOf(t *testing.T) {
	t.Parallel()
	for range 1000 {
		o := Observation{Roles: []Role{{Name: "entry", Replicas: 1 + rand.IntN(20)}, {Name: "other", Replicas: 1 + rand.IntN(20)}}}
		last := 0
		for units := 1; units <= o.Roles[0].Replicas; units++ {
			n := o.roleGroupsInAll(o.Roles[1], "", units)
			require.True(t, n >= max(last, 1) && n*o.Roles[0].Replicas >= units*o.Roles[1].Replicas && (n-1)*o.Roles[0].Replicas < units*o.Roles[1].Replicas,
				"%d of %d units have %d of %d groups, after %d", units, o.Roles[0].Replicas, n, o.Roles[1].Replicas, last)
			last = n
		}
		require.True(t, last == o.Roles[1].Replicas && o.roleGroupsInAll(o.Roles[1], "", 0) == 0,
			"all units have %d of %d groups", last, o.Roles[1].Replicas)
	}
}

// A release has the entry role that its Service selects. Units are groups of that role, whatever its place in the spec.
func TestEntryRole(t *testing.T) {
	t.Parallel()
	o := rolesObservation(0, 0)
	o.Record, o.EntryRole = &record.Record{}, "decode"
	d := must(Decide(Judge(o), Begin{ReleaseID: "r", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%"}}}))
	rec := d.Action.(SetStable).Record
	o.Record = &rec
	r := o.Record.Release
	assert.True(t, r.EntryRole == "decode" && r.Replicas == 2, "the release has entry role %q and %d units", r.EntryRole, r.Replicas)
	o = Judge(o)
	b := o.withUnits(*withUpdate(o, "new", 1), 1)
	if want := map[string]int{"0-prefill": 2, "0-decode": 1}; !maps.Equal(b.Exact, want) || roleNamesOf(b.Roles) != "prefill, decode" {
		t.Errorf("a unit has %v of roles %v, want %v", b.Exact, b.Roles, want)
	}
	o.Bounds = &b
	n := o.presentBounds("old").Units
	assert.Zero(t, n, "%d units of no groups", n)
	if roles := RoleCounts(o); roles[0].GetName() != "decode" || roles[1].GetName() != "prefill" || roles[0].GetPlanned() != 1 || roles[1].GetPlanned() != 2 {
		t.Errorf("the roles are %v", roles)
	}
	o.EntryRole = "embed"
	name := EntryRole(o)
	assert.Equal(t, "prefill", name, "%s is the entry role where the groups have no other one", name)
}

// inSlices is a DisaggregatedSet with 4 groups of prefill and 2 of decode in each of its slices, all ready at revision old, and some units at
// revision new.
func inSlices(n int, exact map[string]int, units int) Observation {
	o := rolesObservation(0, 0)
	o.Slices, o.Children, o.Bounds = n, nil, &Bounds{Roles: o.Roles, Stable: "old", Min: map[string]int{}, Update: "new", Units: units, Exact: exact}
	for slice := range n {
		for _, role := range o.Roles {
			member := Member(slice, role.Name)
			o.Bounds.Min[member] = role.Replicas
			for revision, groups := range map[string]int{"old": role.Replicas, "new": exact[member]} {
				name := "llm-" + revision + "-" + member
				o.Children = append(o.Children, Child{
					Name: name, Role: role.Name, Revision: revision, Slice: slice, Replicas: groups, Groups: roleGroups(name, groups, groups),
				})
			}
		}
	}
	return Judge(o)
}

// Units fill one slice after another, and leave them in the opposite order. No slice loses a unit to another one, whatever number of units a
// slice has now.
func TestPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		prefill, units int
		exact          []int
		want           []int
	}{
		{4, 1, []int{0, 0, 0}, []int{1, 0, 0}},
		{4, 4, []int{0, 0, 0}, []int{4, 0, 0}},
		{4, 6, []int{1, 0, 0}, []int{4, 2, 0}},
		{4, 12, []int{4, 2, 0}, []int{4, 4, 4}},
		{4, 5, []int{4, 4, 4}, []int{4, 1, 0}},
		{4, 0, []int{4, 2, 0}, []int{0, 0, 0}},
		{5, 6, []int{4, 2, 0}, []int{4, 2, 0}}, // a slice has another unit since
		{5, 8, []int{4, 2, 0}, []int{5, 3, 0}},
		{3, 6, []int{4, 2, 0}, []int{3, 3, 0}}, // a slice has a unit less since
	} {
		exact := map[string]int{}
		for slice, n := range tt.exact {
			exact[Member(slice, "prefill")] = n
		}
		o := inSlices(3, exact, 0)
		o.Roles[0].Replicas = tt.prefill
		got := o.unitsPerSlice("new", tt.units)
		assert.True(t, slices.Equal(got, tt.want), "%d units after %v are %v, want %v", tt.units, tt.exact, got, tt.want)
	}
}

// A batch has at least one group of each role in every slice that it touches, and all of them in each slice at the end.
func TestBatchesOfSlices(t *testing.T) {
	t.Parallel()
	o := inSlices(2, map[string]int{}, 0)
	require.True(t, o.Stable.Replicas == 8 && len(o.Stable.Groups) == 8, "%d units of %d", len(o.Stable.Groups), o.Stable.Replicas)
	for units, want := range [][4]int{{0, 0, 0, 0}, {1, 1, 0, 0}, {2, 1, 0, 0}, {3, 2, 0, 0}, {4, 2, 0, 0}, {4, 2, 1, 1}, {4, 2, 2, 1}, {4, 2, 3, 2}, {4, 2, 4, 2}} {
		b := o.withUnits(*o.desiredBounds(), units)
		assert.Equal(t, want, [4]int{b.Exact["0-prefill"], b.Exact["0-decode"], b.Exact["1-prefill"], b.Exact["1-decode"]}, "%d units", units)
		n := o.roleGroupsInAll(o.Roles[1], "", units)
		assert.Equal(t, want[1]+want[3], n, "%d units have %d groups of decode", units, n)
		o.Bounds = &b
	}
	roles := RoleCounts(o)
	assert.True(t, roles[0].GetReplicas() == 8 && roles[1].GetPlanned() == 4 && roles[1].GetStableReady() == 4, "the roles are %v", roles)
}

// Prefill and decode pair within a slice: a group of decode makes no unit of another slice ready.
func TestUnitsPairWithinSlices(t *testing.T) {
	t.Parallel()
	o := inSlices(2, map[string]int{"0-prefill": 4, "0-decode": 2, "1-prefill": 2}, 6)
	for i, g := range o.canary().Groups {
		assert.True(t, g.Index == i && g.Ready == (i < 4), "unit %d has index %d, ready %t: %s", i, g.Index, g.Ready, g.Message)
	}
}

// LWS creates a slice only at the template in the spec. One that is added while another revision serves, or to children that LWS v0.9.0 made, is
// left to the end of the release. One that is removed is left out at once.
func TestSlicesChange(t *testing.T) {
	t.Parallel()
	o := inSlices(2, map[string]int{"0-prefill": 4, "0-decode": 2}, 4)
	o.Slices = 3
	if d := reconcile(Judge(o)); Judge(o).Stable.Replicas != 8 || d.State == pb.State_STATE_FAILED || !strings.Contains(d.Message, "slices from 2 on get groups once") {
		t.Errorf("a slice was added: %s %s of %d units", d.State, d.Message, Judge(o).Stable.Replicas)
	}
	assert.NoError(t, (Begin{Policy: &pb.ReleasePolicy{}}).checkRoles(Judge(o)), "a slice was added")
	disowned := o
	disowned.Record, disowned.Bounds = nil, nil
	assert.NotContains(t, reconcile(Judge(disowned)).Message, "slices from", "LeaderWorkerSet rolls a disowned set by itself")
	o.Stable.Revision = "old"
	if added := Judge(o); added.Stable.Replicas != 12 || added.desiredBounds().Min["2-decode"] != 2 {
		t.Errorf("the template was restored: %d units, bounds %v", added.Stable.Replicas, added.desiredBounds())
	}
	o = inSlices(1, map[string]int{}, 0)
	o.Record.Release, o.Bounds.Update, o.Stable.Revision, o.Slices = nil, "", "old", 2
	for i := range o.Children {
		o.Children[i].Legacy = true
	}
	if legacy := Judge(o); legacy.Stable.Replicas != 4 || !strings.Contains(reconcile(legacy).Message, "slices from 1 on get groups once another template is released") {
		t.Errorf("a slice was added to legacy children: %d units, %s", legacy.Stable.Replicas, reconcile(legacy).Message)
	}
	o = inSlices(2, map[string]int{"0-prefill": 4, "0-decode": 2, "1-prefill": 1, "1-decode": 1}, 5)
	forged := o.Children[0]
	forged.Slice = -1
	o.Slices, o.Children = 1, append(o.Children, forged)
	if removed := Judge(o); removed.Stable.Replicas != 4 || len(removed.canary().Groups) != 4 || removed.desiredBounds().Min["1-prefill"] != 0 {
		t.Errorf("a slice was removed: %d units, %d new", removed.Stable.Replicas, len(removed.canary().Groups))
	}
}

// A child that an autoscaler scales by itself can't be held: the next one has another name.
func TestAutoscaledChild(t *testing.T) {
	t.Parallel()
	o := inSlices(1, map[string]int{}, 0)
	o.Children[0].Autoscaler = "HorizontalPodAutoscaler scale"
	begun := (Begin{Policy: &pb.ReleasePolicy{}}).checkRoles(o)
	o.Record, o.Bounds = nil, nil
	for _, err := range []error{begun, checkRoles(Judge(o))} {
		want := "HorizontalPodAutoscaler scale scales LeaderWorkerSet " + o.Children[0].Name
		assert.ErrorContains(t, err, want, "want %q, got %v", want, err)
	}
}

// What a set costs does not grow with a number in its spec: slices beyond those that bounds can have numbers of are refused, and not looked at.
func TestTooManySlices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		slices  int
		refused bool
	}{{100, false}, {101, true}, {math.MaxInt32, true}} {
		o := inSlices(1, map[string]int{}, 0)
		o.Slices, o.Stable.Revision = tt.slices, "old"
		o.Record, o.Bounds = nil, nil
		judged := Judge(o)
		err := checkRoles(judged)
		if words := fmt.Sprintf("has %d slices, and Lockstep holds at most 100", tt.slices); (err != nil && strings.Contains(err.Error(), words)) != tt.refused || judged.Slices > 100 {
			t.Errorf("%d slices: %v, of which %d are looked at", tt.slices, err, judged.Slices)
		}
	}
}

// LWS rolls each slice by itself. A set is not adopted while it rolls one, and not released while a role of a slice has no child.
func TestSlicesRefused(t *testing.T) {
	t.Parallel()
	o := inSlices(2, map[string]int{}, 0)
	o.Children = slices.DeleteFunc(o.Children, func(c Child) bool { return c.Slice == 1 && c.Role == "decode" && c.Revision == "old" })
	err := (Begin{Policy: &pb.ReleasePolicy{}}).checkRoles(Judge(o))
	assert.True(t, err != nil && strings.Contains(err.Error(), "slice 1 of DisaggregatedSet") && strings.Contains(err.Error(), "set slices to 1"),
		"a role of a slice has no child: %v", err)
	o = inSlices(2, map[string]int{}, 0)
	o.Record, o.Bounds = nil, nil
	assert.NoError(t, checkRoles(Judge(o)), "at rest")
	for i := range o.Children {
		if o.Children[i].Slice == 1 {
			o.Children[i].Replicas = 0
		}
	}
	err = checkRoles(Judge(o))
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS, drivererr.Reason(err), "LWS rolls slice 1: %v", err)
}

// A unit is ready only when all its roles are, and since the last of them was. What it lacks is named.
func TestUnits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefill, decode, want int }{{4, 2, 4}, {4, 1, 2}, {3, 1, 2}, {1, 2, 1}, {4, 0, 0}, {0, 2, 0}} {
		o := rolesObservation(tt.prefill, tt.decode)
		o.formUnits()
		ready := 0
		for _, g := range o.Added[0].Groups {
			switch {
			case g.Ready:
				ready++
			case g.Reason != ReasonRoleNotReady || !strings.Contains(g.Message, "role decode"):
				t.Errorf("%+v: group %d: %s %s", tt, g.Index, g.Reason, g.Message)
			}
			assert.Equal(t, "new", g.Revision, "%+v: group %d is at revision", tt, g.Index)
		}
		assert.True(t, ready == tt.want && len(o.Stable.Groups) == 4 && o.Stable.Replicas == 4,
			"%+v: %d units are ready, want %d; %d stable", tt, ready, tt.want, len(o.Stable.Groups))
	}
	o := rolesObservation(2, 1)
	o.Children[3].Groups[0].ReadySince = noon.Add(time.Hour)
	o.formUnits()
	since := o.Added[0].Groups[0].ReadySince
	assert.True(t, since.Equal(noon.Add(time.Hour)), "a unit is ready since %s, before its group of decode", since)
}

// A promotion and a rollback say of each role how many groups they wait for.
func TestMessagesCountRoles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pace, end string
		want      []string
	}{
		{"surge=1", "host aborts", []string{"2 units of revision B stay until more of revision A are ready (prefill 2/4, decode 1/2)"}},
		{"unavailable=1", "host aborts", []string{"2 of 4 groups are available again (prefill 3/4, decode 1/2)"}},
		{"unavailable=1", "host promotes", []string{
			"the last groups of revision A stay until those of B are ready (prefill 2/4, decode 1/2)",
			"the last groups of llm-B take the place of old ones, and are not ready yet (prefill 4/4, decode 1/2)",
			"the groups of revision A that are left are being deleted (prefill 0/4, decode 1/2)",
			"4 groups run revision B (prefill 4/4, decode 2/2)",
		}},
	} {
		said := ""
		s := parseRoles("style=PARTITION prefill=4 decode=2 " + tt.pace)
		for _, moment := range s.course("the user edits the template to B", "host begins", "host asks for a unit", "host asks for all units", tt.end) {
			said += reconcile(moment.next.observe()).Message + "\n"
		}
		for _, want := range tt.want {
			assert.Contains(t, said, want, "%s, %s: nothing says %q:\n%s", tt.pace, tt.end, want, said)
		}
	}
}

// A child that was deleted is named whenever it is needed, with how it returns: in a batch, after an abort, and while a template only waits.
// One that LWS recreates by itself, or that is not needed any more, is not.
func TestLackedChild(t *testing.T) {
	t.Parallel()
	aborted := func(o *Observation) {
		o.Record.Release.Phase, o.Bounds.Update, o.Bounds.Exact = record.CleaningUp, "", nil
	}
	held := func(o *Observation) { *o.Record = record.Record{} }
	restored := func(o *Observation) { *o.Record, o.Stable.Revision = record.Record{}, "old" }
	drained := func(o *Observation) {
		o.Record.Release.Phase, o.Record.Release.Groups, o.Bounds.Min = record.HandingOver, 4, map[string]int{"0-prefill": 0, "0-decode": 0}
	}
	const (
		stable  = "revision old in slice 0: restore the template of revision old, and LeaderWorkerSet creates it"
		waiting = "revision new in slice 0: if it stays away, run `kubectl -n prod delete leaderworkersets "
		batch   = "revision new in slice 0: after an abort, run `kubectl -n prod delete leaderworkersets "
	)
	for _, tt := range []struct {
		name    string
		units   int
		change  func(*Observation)
		deleted []string
		want    string
	}{
		{"update, in a batch", 2, nil, []string{"llm-new-prefill"}, "role prefill at " + batch + "llm-new-decode`"},
		{"stable, in a batch", 2, nil, []string{"llm-old-decode"}, "role decode at " + stable},
		{"waiting, before the first batch", 0, nil, []string{"llm-new-decode"}, "role decode at " + waiting + "llm-new-prefill`"},
		{"waiting, after an abort", 0, aborted, []string{"llm-new-decode"}, "role decode at " + waiting + "llm-new-prefill`"},
		{"stable, after an abort", 0, aborted, []string{"llm-old-prefill"}, "role prefill at " + stable},
		{"waiting, only held", 0, held, []string{"llm-new-prefill"}, "role prefill at " + waiting + "llm-new-decode`"},
		{"stable, only held", 0, held, []string{"llm-old-decode"}, "role decode at " + stable},
		{"none", 2, nil, nil, ""},
		{"all that wait: LWS creates them", 0, held, []string{"llm-new-prefill", "llm-new-decode"}, ""},
		{"stable, no template waits: LWS creates it", 0, restored, []string{"llm-old-decode", "llm-new-prefill", "llm-new-decode"}, ""},
		{"stable, drained", 4, drained, []string{"llm-old-prefill"}, ""},
		{"waiting, with other roles: the template is refused", 0, func(o *Observation) {
			held(o)
			o.Roles[1].Name = "embed"
		}, []string{"llm-new-prefill"}, ""},
	} {
		o := rolesObservation(tt.units, (tt.units+1)/2)
		if tt.change != nil {
			tt.change(&o)
		}
		o.Children = slices.DeleteFunc(o.Children, func(c Child) bool { return slices.Contains(tt.deleted, c.Name) })
		d := reconcile(Judge(o))
		assert.False(t, strings.Contains(d.Message, "there is no child of "+tt.want) != (tt.want != "") || tt.want == "" && strings.Contains(d.Message, "there is no child"),
			"%s: %s %s: %s", tt.name, d.State, d.Reason, d.Message)
	}
	for role, other := range map[string]string{"prefill": "decode", "decode": "prefill"} { // nothing else helps once the deadline has passed
		o := rolesObservation(2, 1)
		o.Policy.ProgressDeadline = time.Minute
		o.Children = slices.DeleteFunc(o.Children, func(c Child) bool { return c.Name == "llm-new-"+role })
		d := reconcile(Judge(o))
		assert.True(t, d.State == pb.State_STATE_FAILED && strings.Contains(d.Message, ". After an abort, run `kubectl -n prod delete leaderworkersets llm-new-"+other+"`, and LeaderWorkerSet creates them all. The release") && !strings.Contains(d.Message, "quota") && !strings.Contains(d.Message, "describe pod"),
			"%s: %s %s: %s", role, d.State, d.Reason, d.Message)
	}
}

// Whatever the roles are, the share of a side follows the role that lacks most.
func TestUnitsAreTheSmallestRatio(t *testing.T) {
	t.Parallel()
	for range 500 {
		entry, other := 1+rand.IntN(8), 1+rand.IntN(8)
		readyEntry, readyOther := rand.IntN(entry+1), rand.IntN(other+1)
		o := Observation{
			Roles:  []Role{{Name: "a", Replicas: entry, Size: 1}, {Name: "b", Replicas: other, Size: 1}},
			Stable: Workload{Name: "llm"}, Bounds: &Bounds{Stable: "old"},
			Children: []Child{
				{Role: "a", Revision: "old", Replicas: entry, Groups: roleGroups("a", entry, readyEntry)},
				{Role: "b", Revision: "old", Replicas: other, Groups: roleGroups("b", other, readyOther)},
			},
		}
		o.formUnits()
		ready := len(readyFirst(o.Stable.Groups))
		if want := min(readyEntry, readyOther*entry/other); ready != want {
			t.Fatalf("%d of %d and %d of %d groups are ready: %d units, want %d", readyEntry, entry, readyOther, other, ready, want)
		}
	}
}

// Writes of units become writes of bounds, and then of children within them.
func TestInRoles(t *testing.T) {
	t.Parallel()
	bounds := func(o Observation, action Action) Bounds {
		t.Helper()
		a, ok := o.roleAction(action).(SetBounds)
		if !ok {
			t.Fatalf("%v becomes %v", action, o.roleAction(action))
		}
		return a.Bounds
	}
	o := rolesObservation(0, 0)
	o.formUnits()
	if b := bounds(o, CreateCanary{Revision: "new", Replicas: 1}); b.Units != 1 || b.Exact["0-prefill"] != 1 || b.Exact["0-decode"] != 1 || b.Min["0-prefill"] != 4 {
		t.Errorf("a batch of one unit has %+v", b)
	}
	o = rolesObservation(1, 1)
	o.formUnits()
	b := bounds(o, ScaleCanary{Name: "llm-new", Replicas: 3})
	assert.True(t, b.Exact["0-prefill"] == 3 && b.Exact["0-decode"] == 2, "a batch of three units has %+v", b)
	o.Bounds = &b
	if d := keepRoles(o, Decision{State: pb.State_STATE_READY}); d.Action != (ScaleChild{Name: "llm-new-prefill", Replicas: 3}) || d.State == pb.State_STATE_READY {
		t.Errorf("the first child is scaled by %v, in %s", d.Action, d.State)
	}

	if b := bounds(o, DeleteCanary{Name: "llm-new"}); b.Update != "new" || b.Units != 0 || b.Exact["0-decode"] != 0 {
		t.Errorf("the units are removed by %+v", b)
	}
	o.Namesakes = []string{"llm-1-0123abcd-prefill"}
	d := keepRoles(o, Decision{})
	assert.Equal(t, o.Namesakes[0], d.Action.(SetBounds).Bounds.Others[0], "the bounds hold what only has the name of a child: %v", d.Action)
	empty := rolesObservation(0, 0)
	empty.Bounds = withUpdate(empty, "new", 0)
	if b := bounds(empty, DeleteCanary{Name: "llm-new"}); b.Update != "" {
		t.Errorf("the revision stays in %+v", b)
	}
}

// A child that LeaderWorkerSet or a webhook keeps from growing must not keep an abort from removing groups.
func TestChildrenShrinkFirst(t *testing.T) {
	t.Parallel()
	o := rolesObservation(0, 0)
	o.Record.Release.Phase = record.CleaningUp
	o.Bounds = withUpdate(o, "new", 0)
	for i := range o.Children {
		if c := &o.Children[i]; c.Role == "prefill" { // stable: 3 of 4 groups, new: 2 of 0
			c.Name = map[string]string{"old": "llm-0-prefill", "new": "llm-1-prefill"}[c.Revision]
			c.Replicas = map[string]int{"old": 3, "new": 2}[c.Revision]
			c.Groups = roleGroups(c.Name, c.Replicas, c.Replicas)
		}
	}
	d := must(Decide(Judge(o), nil))
	assert.Equal(t, ScaleChild{Name: "llm-1-prefill"}, d.Action)
}

// The bounds note a release that routes requests before its first write of routes, and until these are as before. So they outlive a set that is
// deleted while no driver runs, and the next one restores its routes, and lets them go.
func TestBoundsOutliveTheSet(t *testing.T) {
	t.Parallel()
	routed := func(isolated bool) Observation {
		o := rolesObservation(1, 1)
		o.Traffic = routing{isolated: isolated, prepared: isolated, stable: 4}.observe(o)
		return Judge(o)
	}
	o := routed(false)
	first, ok := o.roleAction(SetTraffic{}).(SetBounds)
	if !ok || first.Bounds.Routes != "r" {
		t.Fatalf("the routes change before the bounds note it: %v", o.roleAction(SetTraffic{}))
	}
	o.Bounds = &first.Bounds
	a, ok := o.roleAction(SetTraffic{}).(SetTraffic)
	assert.True(t, ok, "then follows %v", a)
	for phase, want := range map[record.Phase]string{record.Progressing: "r", record.Promoted: ""} {
		end := routed(false)
		end.Record.Release.Phase, end.Record.Release.UpdateRevision = phase, "old"
		assert.Equal(t, want, end.desiredBounds().Routes, "%s: the bounds note", phase)
	}
	left := routed(true)
	left.Record.Release.Phase = record.Promoted
	assert.Equal(t, "r", left.desiredBounds().Routes, "the selector is pinned, and the bounds note")
	gone := Observation{Key: o.Key, Gone: true, Stable: Workload{Name: "llm", HasFinalizer: true, Deleting: true}, Traffic: left.Traffic}
	d := reconcile(gone)
	assert.Equal(t, "plan.SetTraffic", fmt.Sprintf("%T", d.Action), "before the routes are restored: %v", d.Action)
	orphaned := gone
	orphaned.BoundsLeft, orphaned.Traffic = true, routing{unread: true}.observe(o)
	d = reconcile(orphaned)
	assert.True(t, d.Action == nil, "before the routes are known: %v", d.Action)
	gone.Traffic = routed(false).Traffic
	d = reconcile(gone)
	assert.True(t, d.Action == (RemoveFinalizer{Name: "llm"}), "once they are: %v", d.Action)
	orphaned.Stable.HasFinalizer, orphaned.Traffic = false, gone.Traffic
	d = reconcile(orphaned)
	assert.True(t, d.Action == (RemoveBounds{}), "at last: %v", d.Action)
}

// A promotion removes the old groups role by role, decode last, and each only once those before it are gone.
func TestRolesDrainInOrder(t *testing.T) {
	t.Parallel()
	o := rolesObservation(4, 2)
	o.Roles = []Role{{Name: "decode", Replicas: 2, Size: 1}, {Name: "prefill", Replicas: 4, Size: 1}}
	o.Record.Release.Phase, o.Record.Release.Groups = record.HandingOver, 4
	zero := 0
	next, ok := o.roleAction(SetStable{Record: *o.Record, Rolling: hold(), Replicas: &zero}).(SetBounds)
	require.True(t, ok && next.Bounds.Min["0-prefill"] == 0 && next.Bounds.Min["0-decode"] == 2, "the first bounds are %+v", next)
	o.Bounds = &next.Bounds
	b := o.desiredBounds()
	assert.Equal(t, 2, b.Min["0-decode"], "decode may go while prefill exists: %+v", b)
	o.Children[0].Replicas, o.Children[0].Groups = 0, nil
	b = o.desiredBounds()
	assert.True(t, b.Min["0-prefill"] == 0 && b.Min["0-decode"] == 0, "the bounds are %+v once prefill is gone", b)
	assert.False(t, o.stableDrained(), "the old groups count as gone while decode exists")
	o.Children[0].Groups = []Group{stuckGroup("llm-old-prefill-3")}
	d := scaleDownStable(Judge(o))
	assert.True(t, strings.Contains(d.Message, "pod llm-old-prefill-3: is being deleted on node n") && strings.Contains(d.Remedy, "kubectl -n prod delete pod llm-old-prefill-3 --force"),
		"what keeps the last old groups: %q, %q", d.Message, d.Remedy)
}

// While LWS does not observe a set, the remedy names the set, and no LeaderWorkerSet of its name.
func TestUnobservedSet(t *testing.T) {
	t.Parallel()
	o := rolesObservation(0, 0)
	o.Stable.Revision, o.Record.Release.UpdateRevision = "", ""
	o.Policy.ProgressDeadline = time.Minute
	o.Waiting = Waiting{For: o.askedFor(), Since: o.Now.Add(-time.Hour)}
	if d := reconcile(Judge(o)); d.State != pb.State_STATE_FAILED || !strings.Contains(d.Message, "and kubectl -n prod describe disaggregatedset llm show an error. The release") {
		t.Errorf("%s, %s: %s", d.State, d.Reason, d.Message)
	}
}

// stuckGroup is a group whose leader is being deleted on a node that is lost.
func stuckGroup(leader string) Group {
	return Group{Leader: leader, Pod: leader, Revision: "lws", Terminating: true, Pods: 1, Reason: reasonTerminating, Message: "is being deleted on node n", LostAt: noon}
}

// An abort ends although the node of a group is lost: LWS keeps the children of the template in the spec, and so the group, until a user acts. As long
// as the deletion may last, it waits, and once it has ended, nothing is written any more.
func TestAbortLeavesLostGroups(t *testing.T) {
	t.Parallel()
	o := rolesObservation(0, 0)
	o.Bounds = withUpdate(o, "new", 0)
	o.Bounds.Target = nil
	o.Children[2].Groups = []Group{stuckGroup("llm-new-prefill-0")}
	o.Record.Release.Phase, o.Policy.ProgressDeadline = record.CleaningUp, 10*time.Minute
	o.Record.Release.Waiting = record.Waiting{For: o.askedFor(), Since: o.Now.Add(-9 * time.Minute)}
	o.Waiting = Waiting{For: o.askedFor(), Since: o.Now.Add(-9 * time.Minute)}
	if d := reconcile(Judge(o)); d.Action != nil || d.State != pb.State_STATE_ROLLING_BACK || !strings.Contains(d.Message, "pod llm-new-prefill-0: is being deleted") {
		t.Errorf("before the deadline: %v, %s, %s", d.Action, d.State, d.Message)
	}
	o.Now = o.Now.Add(time.Minute)
	alive := o
	alive.Children = slices.Clone(o.Children)
	alive.Children[3].Groups = roleGroups("llm-new-decode", 1, 1)
	if d := reconcile(Judge(alive)); d.Action != nil || d.Reason != ReasonCleanupDeadline {
		t.Errorf("a group that is not being deleted is left: %v, %s, %s", d.Action, d.State, d.Reason)
	}
	next, ok := reconcile(Judge(o)).Action.(SetBounds)
	if !ok || next.Bounds.Update != "" {
		t.Fatalf("after the deadline: %+v", reconcile(Judge(o)))
	}
	deleted := o
	deleted.Bounds = nil
	if d := reconcile(Judge(deleted)); d.Action == nil || d.State == pb.State_STATE_FAILED {
		t.Errorf("another client has deleted the bounds: %v, %s, %s", d.Action, d.State, d.Message)
	}
	o.Bounds = &next.Bounds
	for range 3 {
		d := reconcile(Judge(o))
		if a, ok := d.Action.(SetStable); ok {
			o.Record = &a.Record
			continue
		}
		assert.True(t, d.Action == nil && d.State == pb.State_STATE_ROLLED_BACK && strings.Contains(d.Message, "kubectl -n prod delete pod llm-new-prefill-0 --force"),
			"at the end: %v, %s, %s", d.Action, d.State, d.Message)
	}
}

// The policy has the order in which roles are removed. Those that it does not name go before.
func TestRolesDrainInTheOrderOfThePolicy(t *testing.T) {
	t.Parallel()
	o := Observation{Roles: []Role{{Name: "decode"}, {Name: "prefill"}, {Name: "embed"}}}
	for _, tt := range []struct {
		order []string
		want  string
	}{
		{nil, "prefill, embed, decode"},
		{[]string{"prefill"}, "decode, embed, prefill"},
		{[]string{"embed", "prefill", "decode"}, "embed, prefill, decode"},
		{[]string{"gone", "decode", "prefill"}, "embed, decode, prefill"},
	} {
		o.Policy.RoleOrder = tt.order
		assert.Equal(t, tt.want, roleNamesOf(o.drainOrder()), "%q", tt.order)
	}
}

// A release is refused if its policy names roles that the workload does not have.
func TestPolicyNamesRoles(t *testing.T) {
	t.Parallel()
	policy := &pb.ReleasePolicy{RoleOrder: []string{"decode", "encode"}, Traffic: &pb.TrafficPolicy{
		Drain: &pb.DrainPolicy{Roles: []string{"decode"}}, WarmUp: &pb.WarmUpPolicy{Roles: []string{"router"}},
	}}
	for want, o := range map[string]Observation{
		`policy.role_order[1]: DisaggregatedSet prod/llm has no role "encode"; its roles: prefill, decode; policy.traffic.warm_up.roles[0]: `: rolesObservation(0, 0),
		`policy.traffic.drain.roles[0]: LeaderWorkerSet /llm has no role "decode"; its roles: none`:                                           {Stable: Workload{Name: "llm"}},
	} {
		assert.ErrorContains(t, errors.Join((Begin{Policy: policy}).Obstacles(o)...), want)
	}
}

// A unit gets requests once the leaders of all roles that the policy names have been warmed up.
func TestRolesAreWarmedUp(t *testing.T) {
	t.Parallel()
	ready := func(change func(*Observation)) (Observation, string) {
		o := rolesObservation(2, 2)
		o.Bounds = withUpdate(o, "new", 4)
		o.Policy.WarmUp, o.Policy.WarmUpRoles = probe.WarmUp{Timeout: time.Minute}, []string{"decode"}
		for i := range o.Children[2].Groups {
			o.Children[2].Groups[i].WarmUp = &Answer{Done: true}
		}
		o.Traffic = routing{isolated: true, prepared: true, stable: 4}.observe(o)
		change(&o)
		var all []string
		for _, g := range Judge(o).canary().Groups {
			all = append(all, fmt.Sprint(g.Ready))
		}
		return o, strings.Join(all, " ")
	}
	answered := func(i int) func(*Observation) {
		return func(o *Observation) { o.Children[3].Groups[i].WarmUp = &Answer{Done: true} }
	}
	for name, tt := range map[string]struct {
		change func(*Observation)
		want   string
	}{
		"not asked":       {func(*Observation) {}, "false false"},
		"one answered":    {answered(1), "true true"}, // one group of decode is for two of prefill
		"serving already": {func(o *Observation) { o.Children[2].Groups[0].Serving = true }, "true true"},
		"another role":    {func(o *Observation) { o.Policy.WarmUpRoles = nil }, "true true"},
		"no requests":     {func(o *Observation) { o.Traffic = nil }, "true true"},
		"a role that is gone": {func(o *Observation) { // its child was deleted, and then the bounds
			o.Roles, o.Policy.WarmUpRoles = o.Roles[1:], []string{"prefill"}
		}, "false false"},
	} {
		o, got := ready(tt.change)
		assert.Equal(t, tt.want, got, "%s: units", name)
		assert.True(t, o.Children[3].Groups[0].Ready, "%s: the shared groups are changed", name)
	}
	o, _ := ready(func(*Observation) {})
	d := reconcile(Judge(o))
	want := leadersOf(slices.Concat(o.Children[2].Groups, o.Children[3].Groups))
	assert.True(t, slices.Equal(d.Effects.WarmUp, want), "asked are %v, want %v", d.Effects.WarmUp, want)
	assert.Contains(t, Judge(o).canary().Groups[0].Message, "0 of 1 groups of role decode that it needs are ready: the driver that releases it has not warmed it up yet",
		"the unit")
	o.Bounds = nil // another client has deleted them
	_, ok := reconcile(Judge(o)).Action.(SetBounds)
	assert.True(t, ok, "the bounds are not written again")
}

// The leaders of all roles that the policy names finish their requests before a whole revision goes: the old one in a promotion, the new one
// in an abort.
func TestRolesFinishTheirRequests(t *testing.T) {
	t.Parallel()
	for phase, tt := range map[record.Phase]struct {
		routing routing
		from    int // the index of the first child that goes
	}{
		record.HandingOver: {routing{isolated: true, prepared: true, handedOver: true, pods: []string{"llm-new-prefill-0"}}, 0},
		record.CleaningUp:  {routing{isolated: true, prepared: true, stable: 4}, 2},
	} {
		o := rolesObservation(4, 2)
		o.Record.Release.Phase, o.Record.Release.Groups = phase, 4
		if phase == record.HandingOver {
			o.Record.Release.Successor = "llm-new"
		} else {
			o.Stable.Revision = "old"
		}
		o.Policy.Drain, o.Policy.DrainRoles = probe.Drain{Period: time.Minute}, []string{"decode"}
		o.Traffic, o.Bounds.Routes = tt.routing.observe(Judge(o)), "r"
		want := leadersOf(slices.Concat(o.Children[tt.from].Groups, o.Children[tt.from+1].Groups))
		d := reconcile(Judge(o))
		assert.True(t, slices.Equal(d.Effects.Drain, want) && d.Action == nil && d.Reason == ReasonDraining,
			"%s: %v are to finish their requests, want %v: %v, %s: %s", phase, d.Effects.Drain, want, d.Action, d.Reason, d.Message)
		o.Drain = &Drain{want[:4], Answer{Done: true}}
		d = reconcile(Judge(o))
		assert.True(t, d.Action == nil, "%s: groups of decode are removed: %v", phase, d.Action)
		o.Drain.Leaders = want
		d = reconcile(Judge(o))
		assert.True(t, d.Action != nil, "%s: nothing is removed: %s", phase, d.Message)
	}
}

// While a template with other roles waits, the groups keep theirs, with or without bounds that name them, and so does the entry role. No
// release of it begins.
func TestOtherRolesWait(t *testing.T) {
	t.Parallel()
	t.Run("first", func(t *testing.T) { t.Parallel(); otherRolesWait(t, "", 4) })
	t.Run("second", func(t *testing.T) { t.Parallel(); otherRolesWait(t, "decode", 2) })
}

func otherRolesWait(t *testing.T, entry string, units int) {
	t.Helper()
	embed := Role{Name: "embed", Replicas: 1, Size: 1}
	for _, tt := range []struct {
		name string
		spec []Role
	}{
		{"removed", rolesOf4and2[:1]}, {"added", append(slices.Clone(rolesOf4and2), embed)},
		{"replaced", []Role{rolesOf4and2[0], embed}}, {"reordered", []Role{rolesOf4and2[1], rolesOf4and2[0]}},
	} {
		o := rolesObservation(4/units, 1)
		o.EntryRole = entry
		o.Bounds = withUpdate(o, "new", 1)
		o.Bounds.Entry = entry
		o.Roles, o.Stable.Revision = tt.spec, "third"
		d := reconcile(Judge(o))
		assert.True(t, d.State == pb.State_STATE_FAILED && d.Reason == ReasonTemplateRefused && d.Action == nil && strings.Contains(d.Message, "Restore the roles"),
			"%s: %s %s: %v, %s", tt.name, d.State, d.Reason, d.Action, d.Message)
		if s := Judge(o); roleNamesOf(s.Roles) != "prefill, decode" || s.Stable.Replicas != units || s.desiredBounds().Min["0-decode"] != 2 || s.desiredBounds().Exact["0-decode"] != 1 {
			t.Errorf("%s: roles %v, bounds %v", tt.name, s.Roles, s.desiredBounds())
		}
		rest := o
		rest.Record, rest.Children = &record.Record{}, o.Children[:2]
		_, err := Decide(Judge(rest), Begin{ReleaseID: "r", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY}})
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, drivererr.Reason(err), "%s: a release begins: %v", tt.name, err)
		if o.Bounds = nil; tt.name != "reordered" {
			if b := Judge(o).desiredBounds(); b.Min["0-prefill"] != 4 || b.Min["0-decode"] != 2 || b.Update != "new" || b.Exact["0-decode"] != 1 {
				t.Errorf("%s: without bounds they are %v", tt.name, b)
			}
		}
	}
}

// An InferencePool may select other roles beside the entry role. So their leaders get the label, too, before those of the entry role, while
// their groups are ready. Without a pool they get none.
func TestPooledRolesServe(t *testing.T) {
	t.Parallel()
	canary := func(planned int) func(Observation) *Decision {
		return func(o Observation) *Decision { return labelLeaders(o, *o.canary(), planned, true) }
	}
	shifted := func(o *Observation) { o.Policy.Style, o.Bounds.Update = pb.Style_STYLE_PARTITION, "" }
	serves := func(o *Observation) {
		for _, c := range o.Children {
			for i := range c.Groups {
				c.Groups[i].Serving = true
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(*Observation)
		next   func(Observation) *Decision
		want   string
	}{
		"canary":    {func(*Observation) {}, canary(2), "+new-decode-0 +new-prefill-0 +new-prefill-1"},
		"no pool":   {func(o *Observation) { o.Traffic.Setup.Policy.Pool = nil }, canary(2), "+new-prefill-0 +new-prefill-1"},
		"not ready": {func(o *Observation) { o.Children[3].Groups[0].Ready = false }, canary(2), ""},
		"broken": {func(o *Observation) { serves(o); o.Children[3].Groups[0].Ready = false }, func(o Observation) *Decision { return protectRequests(o) },
			"-new-decode-0 -new-prefill-0 -new-prefill-1"},
		"withdrawn": {serves, canary(0), "-new-decode-0 -new-prefill-0 -new-prefill-1"},
		"replaced": {shifted, func(o Observation) *Decision { return labelStable(o) },
			"+old-decode-0 +old-decode-1 +old-prefill-0 +old-prefill-1 +old-prefill-2 +old-prefill-3"},
		"the end": {func(o *Observation) { shifted(o); serves(o); o.Children = o.Children[:2] }, func(o Observation) *Decision { return labelLeaders(o, o.Stable, 0, true) },
			"-old-decode-0 -old-decode-1 -old-prefill-0 -old-prefill-1 -old-prefill-2 -old-prefill-3"},
	} {
		o := rolesObservation(2, 1)
		o.Traffic = &traffic.Observed{Setup: traffic.Setup{Policy: traffic.Policy{Pool: &traffic.Pool{}}}, Unread: &drivererr.Problem{}}
		tt.change(&o)
		var got []string
		for d := tt.next(Judge(o)); d != nil && len(got) < 10; d = tt.next(Judge(o)) {
			a := d.Action.(LabelServing)
			got = append(got, map[bool]string{true: "+", false: "-"}[a.Serves]+strings.TrimPrefix(a.Leader, "llm-"))
			for _, c := range o.Children {
				if i := slices.IndexFunc(c.Groups, func(g Group) bool { return g.Leader == a.Leader }); i >= 0 {
					c.Groups[i].Serving = a.Serves
				}
			}
		}
		assert.Equal(t, tt.want, strings.Join(got, " "), name)
	}
}
