// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// shifting is a DisaggregatedSet of two roles and some slices whose units are about to be replaced.
func shifting(inSlices int, prefill, decode Role) Observation {
	prefill.Name, decode.Name, prefill.Size, decode.Size = "prefill", "decode", 1, 1
	o := Observation{
		Now: noon, Roles: []Role{prefill, decode}, Slices: inSlices, BoundsEnforced: true, Stable: Workload{Name: "llm"},
		Record: &record.Record{Release: &record.Release{StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing}},
		Policy: record.Policy{Style: pb.Style_STYLE_PARTITION},
	}
	b := Bounds{Stable: "old", Min: map[string]int{}, Update: "new", Exact: map[string]int{}}
	for slice := range inSlices {
		b.Min[Member(slice, prefill.Name)], b.Min[Member(slice, decode.Name)] = prefill.Replicas, decode.Replicas
	}
	return o.afterBounds(b)
}

// Where no role may have another group, or too few may be replaced at a time, the release is refused, and the message says what to change.
func TestShiftRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		prefill, decode Role
		want            string
	}{
		{Role{Replicas: 4, MaxUnavailable: 1}, Role{Replicas: 2, MaxUnavailable: 1}, ""},
		{Role{Replicas: 4, MaxSurge: 1}, Role{Replicas: 2, MaxSurge: 1}, ""},
		{Role{Replicas: 4, MaxUnavailable: 1}, Role{Replicas: 1, MaxUnavailable: 1}, "Raise maxSurge of role decode to 1, or"},
		{Role{Replicas: 1, MaxSurge: 1}, Role{Replicas: 3, MaxSurge: 1}, "Raise maxSurge of role decode to 3, or"},
		{Role{Replicas: 2, MaxUnavailable: 1}, Role{Replicas: 8, MaxUnavailable: 2}, "Raise maxSurge of role decode to 2, or"},
		{Role{Replicas: 1, MaxSurge: 1}, Role{Replicas: 2, MaxUnavailable: 1, MaxSurge: 1}, "Raise maxSurge of role decode to 2, or"}, // its only unit serves
		{Role{Replicas: 3, MaxSurge: 1}, Role{Replicas: 2, MaxSurge: 1}, "Raise maxSurge of role decode to 2, or"},                    // both revisions round up
	} {
		err := shifting(2, tt.prefill, tt.decode).checkShift()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v, %+v: %v, want %q", tt.prefill, tt.decode, err, tt.want)
		}
	}
}

// shiftEnds is canShift by trial: it takes every step of the bounds.
func (o Observation) shiftEnds(roles []Role) bool {
	o.Slices, o.Roles = 1, roles
	last := o.shiftableUnits()
	b := Bounds{Stable: o.stableSide(), Update: "next", Units: last, Min: map[string]int{}, Exact: map[string]int{}}
	for _, r := range o.Roles {
		b.Min[Member(0, r.Name)] = r.Replicas
	}
	o.Record, o.Policy, o.Traffic = &record.Record{Release: &record.Release{
		Phase: record.Progressing, StableRevision: b.Stable, UpdateRevision: "next",
	}}, record.Policy{Style: pb.Style_STYLE_PARTITION}, nil
	for {
		next := o.afterBounds(b)
		if next.unitsOf(func(r Role) int { return b.Exact[Member(0, r.Name)] }) == last && last > 0 {
			return true
		}
		moved := next.withUnits(*next.desiredBounds(), last)
		if sameBounds(moved, b) {
			return false
		}
		b = moved
	}
}

// afterBounds returns the observation once every child has the groups of its bounds, all ready for long.
func (o Observation) afterBounds(b Bounds) Observation {
	o.Bounds, o.Children, o.Added = &b, nil, nil
	o.Stable.Revision = b.Update
	long := o.Now.AddDate(-1, 0, 0)
	add := func(slice int, revision string, role Role, n int) {
		c := Child{Name: revision + "-" + Member(slice, role.Name), Role: role.Name, Revision: revision, Slice: slice, Replicas: n}
		for i := range n {
			c.Groups = append(c.Groups, Group{Index: i, Leader: fmt.Sprintf("%s-%d", c.Name, i), Revision: revision, Ready: true, ReadySince: long, FirstReady: long})
		}
		o.Children = append(o.Children, c)
	}
	for slice := range o.Slices {
		for _, r := range o.Roles {
			add(slice, b.Stable, r, b.Min[Member(slice, r.Name)])
			add(slice, b.Update, r, b.Exact[Member(slice, r.Name)])
		}
	}
	o.formUnits()
	return o
}

// What is accepted is what a trial of every step finds possible.
func TestShiftIsPossible(t *testing.T) {
	t.Parallel()
	var all []Role
	for replicas := range 5 {
		for lacks := range replicas + 1 {
			for surge := range 3 {
				all = append(all, Role{Replicas: replicas, MaxUnavailable: lacks, MaxSurge: surge})
			}
		}
	}
	possible := 0
	check := func(o Observation) {
		got := o.canShift(o.Roles)
		if want := o.shiftEnds(o.Roles); got != want {
			t.Errorf("%+v, which requests enter by %q: %t, and a trial %t", o.Roles, o.EntryRole, got, want)
		}
		if got {
			possible++
		}
	}
	for _, prefill := range all {
		for _, decode := range all {
			check(shifting(1, prefill, decode))
		}
	}
	for range 500 {
		o := shifting(1, all[rand.IntN(len(all))], all[rand.IntN(len(all))])
		for i := range o.Roles {
			o.Roles[i].Replicas += rand.IntN(12)
			o.Roles[i].MaxUnavailable += rand.IntN(4)
		}
		third := all[rand.IntN(len(all))]
		third.Name = "third"
		o.Roles = append(o.Roles, third)
		o.EntryRole = o.Roles[rand.IntN(3)].Name
		check(o)
	}
	if possible < 500 {
		t.Errorf("only %d are possible", possible)
	}
}

// eachMember visits each role of each slice.
func eachMember(o Observation, visit func(r Role, at string)) {
	for slice := range o.Slices {
		for _, r := range o.Roles {
			visit(r, Member(slice, r.Name))
		}
	}
}

// Whatever is not refused ends: every step stays within what the roles may lack and may have in addition, and so do those of the way back.
func TestShiftEnds(t *testing.T) {
	t.Parallel()
	accepted := 0
	for range 1000 {
		random := func() Role {
			r := Role{Replicas: 1 + rand.IntN(9)}
			if r.MaxUnavailable, r.MaxSurge = rand.IntN(r.Replicas+1), rand.IntN(3); r.MaxUnavailable+r.MaxSurge == 0 {
				r.MaxSurge = 1
			}
			return r
		}
		o := shifting(1+rand.IntN(3), random(), random())
		if !o.canShift(o.Roles) {
			continue
		}
		accepted++
		moves := func(units func() int) {
			for {
				next := o.withUnits(*o.desiredBounds(), units())
				if sameBounds(next, *o.Bounds) {
					return
				}
				eachMember(o, func(r Role, at string) {
					if n := next.Exact[at] + o.Bounds.Min[at]; n > r.Replicas+r.MaxSurge {
						t.Fatalf("%+v: %d groups of %s by %+v after %+v", o.Roles, n, at, next, *o.Bounds)
					}
					if n := min(next.Min[at]+o.Bounds.Exact[at], o.Bounds.Min[at]+next.Exact[at]); next.Min[at] == 0 || n < r.Replicas-r.MaxUnavailable {
						t.Fatalf("%+v: %d groups of %s by %+v after %+v", o.Roles, n, at, next, *o.Bounds)
					}
				})
				for slice := range o.Slices {
					entry := Member(slice, "prefill")
					left := next.Exact[entry] + o.unitsOf(func(r Role) int { return o.Bounds.Min[Member(slice, r.Name)] })
					if next.Exact[entry] < o.Bounds.Exact[entry] && left < o.Roles[0].Replicas-o.sliceLacks() {
						t.Fatalf("%+v: %d units are left in slice %d by %+v after %+v", o.Roles, left, slice, next, *o.Bounds)
					}
				}
				o = o.afterBounds(next)
			}
		}
		last := o.shiftableUnits() * o.Slices
		for units := 0; units < last; { // so that slices differ
			units = min(units+1+rand.IntN(4), last)
			moves(func() int { return units })
		}
		eachMember(o, func(r Role, at string) {
			if n := o.roleGroups(r, o.shiftableUnits()); o.Bounds.Exact[at] != n {
				t.Fatalf("%+v: stuck at %+v on the way to %d groups of %s", o.Roles, *o.Bounds, n, at)
			}
		})
		o.Record.Release.Phase = record.RollingBack
		moves(func() int { return o.shiftBackTo() })
		eachMember(o, func(r Role, at string) {
			if o.Bounds.Min[at] != r.Replicas || o.Bounds.Exact[at] != 0 {
				t.Fatalf("%+v: rolled back to %+v", o.Roles, *o.Bounds)
			}
		})
	}
	if accepted < 500 {
		t.Errorf("only %d were accepted", accepted)
	}
}

// While units are replaced, a group of the entry role leaves first, whatever its place in the spec: the others serve it.
func TestEntryRoleLeavesFirst(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"prefill", "decode"} {
		o := rolesObservation(0, 0)
		for i := range o.Roles {
			o.Roles[i].Replicas, o.Roles[i].MaxUnavailable = 2, 1
		}
		o.EntryRole, o.Policy.Style = entry, pb.Style_STYLE_PARTITION
		next := o.afterBounds(Bounds{
			Roles: o.Roles, Stable: "old", Min: map[string]int{"0-prefill": 2, "0-decode": 2}, Update: "new", Units: 1, Exact: map[string]int{"0-prefill": 1, "0-decode": 1},
		})
		want := map[string]int{"0-prefill": 2, "0-decode": 2}
		want[Member(0, entry)] = 1
		if got := next.withUnits(*next.desiredBounds(), 1).Min; !maps.Equal(got, want) {
			t.Errorf("%s is the entry role: the groups that stay are %v, want %v", entry, got, want)
		}
	}
}

// A group of a deleted child exists until its pods are gone: nothing takes its place before.
func TestDeletedChildrenCount(t *testing.T) {
	t.Parallel()
	o := rolesObservation(3, 1)
	o.Policy.Style, o.Record.Release.Phase = pb.Style_STYLE_PARTITION, record.HandingOver
	o.Record.Release.Groups = 4
	o.Bounds = withUpdate(o, "new", 4)
	o.Bounds.Min = map[string]int{"0-prefill": 0, "0-decode": 0}
	o.Bounds.Exact = map[string]int{"0-prefill": 3, "0-decode": 1}
	left := o.Children[1]
	left.Groups = roleGroups(left.Name, 1, 0)
	o.Children = o.Children[2:]
	for terminating, want := range map[bool]int{true: 1, false: 2} {
		o := o
		if terminating {
			o.DeletedChildren = []Child{left}
		}
		b := o.withUnits(*Judge(o).Bounds, 4)
		assert.Equal(t, want, b.Exact["0-decode"], "groups of decode while the last old one is terminating: %t", terminating)
		assert.Equal(t, 4, b.Exact["0-prefill"])
	}
}
