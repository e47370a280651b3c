// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// From every moment of a release of a DisaggregatedSet until it is promoted, an abort returns the requests by one write of each route, or of the
// Service that a promotion has given the new units, as long as no stable unit was removed: no other write comes before. Both are written while a
// promotion moves the requests from one to the other. Where units are replaced, a unit that is about to leave first gets its bounds and its label back,
// and those that have left return one after another. Those that a promotion has removed return by their bounds and the stable template. Want are the
// most writes by the number of units that were removed.
func TestWritesOfAbort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		world string
		want  []int
	}{
		{"style=CANARY prefill=4 decode=2", []int{2, 0, 0, 0, 3}},
		{"style=CANARY prefill=2 decode=1 slices=2", []int{2, 0, 3, 0, 5}},
		{"style=CANARY prefill=2 decode=1 unrouted", []int{0, 0, 3}},
		{"style=BLUE_GREEN prefill=1 decode=2", []int{2, 3}},
		{"style=PARTITION prefill=1 decode=2 surge=1/2", []int{2, 3}},
		{"style=PARTITION prefill=3 decode=3 unavailable=1", []int{2, 12, 22, 31}},
		{"style=PARTITION prefill=3 decode=3 surge=2", []int{3, 13, 21, 22}},
		{"style=PARTITION prefill=4 decode=2 surge=1 unrouted", []int{0, 5, 12, 16, 18}},
	} {
		t.Run(tt.world, func(t *testing.T) {
			t.Parallel()
			s := parseRoles(tt.world)
			moments := s.course(append([]string{"the user edits the template to B"}, roleRelease[1:]...)...)
			if i := slices.IndexFunc(moments, func(m roleStep) bool { return strings.HasPrefix(m.by, "host promotes") }); Switches(s.style) {
				moments = append(moments, roleStep{by: "the old units stand by", next: moments[i].next.standby()})
			}
			most := make([]int, len(tt.want))
			for _, moment := range moments {
				s := moment.next
				abort, err := s.step(s.observe(), "host aborts")
				require.NoError(t, err)
				if abort == nil {
					continue // none has begun, or it is promoted
				}
				for _, eager := range []bool{false, true} {
					writes, removed := abort.next.untilReturned(t, eager)
					if removed >= len(most) {
						t.Fatalf("%d units are removed before %q", removed, moment.by)
					}
					most[removed] = max(most[removed], len(writes))
					if len(writes) > tt.want[removed] {
						t.Errorf("aborted after %q, with %d units removed: %q", moment.by, removed, writes)
					}
				}
			}
			assert.True(t, slices.Equal(most, tt.want), "at most %d writes, want %d", most, tt.want)
		})
	}
}

// standby returns the state in which the policy's scale_down_delay keeps the old units.
func (s roleState) standby() roleState {
	rec := records.of(s.record).record
	release := *rec.Release
	release.Phase, rec.Release = record.Standby, &release
	s.record = encodeJSON(rec)
	return s
}

// untilReturned returns the writes of the driver until every stable unit can receive all requests, and how many were missing at most. Eager: the
// driver comes before whatever else happens by itself.
func (s roleState) untilReturned(t *testing.T, eager bool) (writes []string, removed int) {
	t.Helper()
	all := int(s.wanted[0]) * int(s.slices)
	for !s.returned(all) {
		removed = max(removed, all-s.units(1))
		write, err := s.decides(s.observe(), driver)
		require.NoError(t, err)
		step := s.own()
		switch {
		case write != nil && (eager || step == nil):
			writes, step = append(writes, write.by), write
		case step == nil:
			t.Fatal("the requests never return")
		}
		s = step.next
	}
	return writes, removed
}

// returned reports whether all units of revision A are ready, and can receive all requests.
func (s roleState) returned(all int) bool {
	if s.net == nil {
		return s.units(1) >= all
	}
	written, served := s.net.shares(s.objects, s.served)
	return s.units(1) >= all && s.sides(s.selectors)[0] >= all && written == 0 && served == 0
}

// An abort counts on no group that its promotion has let go, although it serves until LeaderWorkerSet removes it: its child is scaled up first.
func TestAbortCountsNoRemovedGroup(t *testing.T) {
	t.Parallel()
	for child, name := range map[int]string{0: "prefill, whose leaders get the requests", 1: "decode"} {
		o := rolesObservation(4, 2)
		o.Record.Release.Phase, o.Now = record.RollingBack, noon
		kept := o.Children[child].Replicas
		o.Children[child].Replicas = 0
		d := must(Decide(Judge(o), nil))
		scale, ok := d.Action.(ScaleChild)
		assert.True(t, ok && scale.Replicas == kept && scale.Name == o.Children[child].Name, "%s: %#v, %s", name, d.Action, d.Message)

		o.Children[child].Replicas, o.Children[child].Unobserved = kept, true
		d = must(Decide(Judge(o), nil))
		assert.Nil(t, d.Action, "%s: LeaderWorkerSet has not observed that: %s", name, d.Message)
	}
}
