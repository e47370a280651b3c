// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// shifting is a DisaggregatedSet of two roles whose units are about to be replaced.
func shifting(prefill, decode Role) Observation {
	prefill.Name, decode.Name, prefill.Size, decode.Size = "prefill", "decode", 1, 1
	o := Observation{
		Now: noon, Roles: []Role{prefill, decode}, Slices: 1, BoundsEnforced: true, Stable: Workload{Name: "llm"},
		Record: &record.Record{Release: &record.Release{StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing}},
		Policy: record.Policy{Style: pb.Style_STYLE_PARTITION},
	}
	return o.settled(Bounds{
		Stable: "old", Min: map[string]int{"prefill": prefill.Replicas, "decode": decode.Replicas},
		Update: "new", Exact: map[string]int{},
	})
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
		{Role{Replicas: 4, MaxUnavailable: 1}, Role{Replicas: 1, MaxUnavailable: 1}, "Set its maxSurge to 1"},
		{Role{Replicas: 1, MaxSurge: 1}, Role{Replicas: 3, MaxSurge: 1}, "Set its maxSurge to 3"},
		{Role{Replicas: 2, MaxUnavailable: 1}, Role{Replicas: 8, MaxUnavailable: 2}, "Set its maxSurge to 4"},
	} {
		err := shifting(tt.prefill, tt.decode).checkShift()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v, %+v: %v, want %q", tt.prefill, tt.decode, err, tt.want)
		}
	}
}

// Whatever is not refused ends: every step stays within what the roles may lack and may have in addition, and so do those of the way back.
func TestShiftEnds(t *testing.T) {
	t.Parallel()
	accepted := 0
	for range 3000 {
		random := func() Role {
			r := Role{Replicas: 1 + rand.IntN(9)}
			if r.MaxUnavailable, r.MaxSurge = rand.IntN(r.Replicas+1), rand.IntN(3); r.MaxUnavailable+r.MaxSurge == 0 {
				r.MaxSurge = 1
			}
			return r
		}
		o := shifting(random(), random())
		if o.checkShift() != nil {
			continue
		}
		accepted++
		moves := func(units func() int) {
			for {
				next := o.withUnits(*o.bounds(), units())
				if sameBounds(next, *o.Bounds) {
					return
				}
				for _, r := range o.Roles {
					if n := next.Exact[r.Name] + o.Bounds.Min[r.Name]; n > r.Replicas+r.MaxSurge {
						t.Fatalf("%+v: %d groups of %s by %+v after %+v", o.Roles, n, r.Name, next, *o.Bounds)
					}
					if n := next.Min[r.Name] + o.Bounds.Exact[r.Name]; next.Min[r.Name] == 0 || n < r.Replicas-r.MaxUnavailable {
						t.Fatalf("%+v: %d groups of %s by %+v after %+v", o.Roles, n, r.Name, next, *o.Bounds)
					}
				}
				o = o.settled(next)
			}
		}
		last := o.shiftable()
		moves(func() int { return last })
		if units := o.unitsOf(func(r Role) int { return o.Bounds.Exact[r.Name] }); units != last {
			t.Fatalf("%+v: stuck at %+v on the way to %d units", o.Roles, *o.Bounds, last)
		}
		o.Record.Release.Phase = record.RollingBack
		moves(func() int { return o.shiftBackTo() })
		for _, r := range o.Roles {
			if o.Bounds.Min[r.Name] != r.Replicas || o.Bounds.Exact[r.Name] != 0 {
				t.Fatalf("%+v: rolled back to %+v", o.Roles, *o.Bounds)
			}
		}
	}
	if accepted < 500 {
		t.Errorf("only %d were accepted", accepted)
	}
}
