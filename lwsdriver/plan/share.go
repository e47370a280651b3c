// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// A share follows capacity: the update revision receives what was requested only while enough of its groups are ready.
// With fewer, the share is capped in tenths, and below half of the groups the stable side receives everything, as long as
// it is whole. If it is not, the share is at least what the numbers of ready groups on both sides say, so that a broken
// stable side does not receive more than it can carry.

// ReasonCapacityBelowShare is why a requested weight is not in force: too few updated groups are ready.
const ReasonCapacityBelowShare = "CapacityBelowShare"

// lossGrace is how long one group may be lost before the share follows. It is also how long the group must be ready
// before it counts again, unless minReady is longer.
const lossGrace = 10 * time.Second

// capacity is what limits a share.
type capacity struct {
	// groups is the number of groups that the weight was requested for; tolerated of them may be lost.
	groups, tolerated int
	// steady is the number of updated groups that count: they are ready, and were not lost recently.
	steady int
	// updated and stable are the numbers of ready groups of both sides at this moment.
	updated, stable int
	// whole: the stable side can carry all requests.
	whole bool
	// units is how many units carry all requests while units are replaced, otherwise 0: each new one takes the share of an old one.
	units int
}

// limit returns the share of a requested weight that the groups can carry.
func (c capacity) limit(weight int) int {
	switch {
	case c.updated == 0:
		return 0
	case c.steady >= c.groups-c.tolerated:
		return weight
	case c.units > 0:
		return min(weight, 100*c.steady/c.units) //nolint:mnd // percent
	}
	// In tenths, so that a group that comes and goes does not move routes each time.
	capped := weight * (10 * c.steady / c.groups) / 10
	switch {
	// Neither side carries all: each gets what it has groups for.
	case !c.whole:
		return max(capped, min(weight, 10*(10*c.updated/(c.updated+c.stable))))
	case 2*c.steady < c.groups:
		return 0
	}
	return capped
}

// share is a requested weight, and what of it the updated groups can carry.
type share struct {
	requested, effective int
	// of is what limits it.
	of capacity
	// recheck is when time alone may change it. Zero means never.
	recheck time.Duration
}

// capped reports whether some updated groups are ready, but too few for the requested weight.
func (s share) capped() bool { return s.of.updated > 0 && s.effective < s.requested }

// message explains a capped share.
func (s share) message(o Observation) string {
	ready := "are ready"
	if s.effective > s.requested {
		return fmt.Sprintf("%d of %d old units are left, so %d %% of the requests instead of %d %% stay with revision %s",
			s.of.stable, s.of.units, s.effective, s.requested, o.Record.Release.UpdateRevision)
	}
	if s.of.steady < min(s.of.updated, s.of.groups) {
		ready = fmt.Sprintf("have been ready for %s", max(o.Policy.MinReady, lossGrace))
	}
	return fmt.Sprintf("%d of %d groups %s, so %d %% of the requests instead of %d %% go to revision %s; the rest stays with the stable groups",
		s.of.steady, s.of.groups, ready, s.effective, s.requested, o.Record.Release.UpdateRevision)
}

// shareFor returns the share of the update revision while a number of its groups is planned. A promotion that moves all
// requests needs all of them, and a weight of the host the groups that it was requested for: the next batch does not lower
// the share.
func (o Observation) shareFor(planned int) share {
	requested := o.Record.Release.Traffic
	s := share{requested: requested.RequestedWeight(), of: capacity{groups: planned}}
	switch groups := o.requestedGroups(); {
	case groups == 0:
	case o.Record.Release.Phase == record.Progressing:
		s.of.groups = min(groups, planned)
	default:
		s.of.groups = groups
	}
	if o.shifts() {
		s.of.units = o.batchReplicas()
	}
	// No weight was asked for, and each new unit stands in the place of an old one.
	if o.shifts() && o.Traffic != nil && (requested == nil || o.shiftsBack()) {
		s.requested, s.of.groups = o.shiftedShare(planned), planned
	}
	if o.movesAllRequests() {
		s.requested, s.of.groups = 100, planned
	}
	s.of.tolerated = o.Policy.Threshold(s.of.groups)
	if o.shifts() && o.movesAllRequests() { // the last units, which follow in the place of old ones, are missing already
		s.of.tolerated = max(min(s.of.tolerated, o.mayLack()-s.of.units+planned), 0)
	}
	if o.Traffic == nil || s.requested == 0 && !o.shifts() {
		s.effective = s.requested
		return s
	}
	updated, stable := o.updatedCapacity(planned), o.stableCapacity(planned)
	s.of.steady, s.of.updated, s.of.stable = updated.steady, updated.ready, stable.ready
	n := o.batchReplicas()
	s.of.whole = stable.ready > 0 && stable.steady+stable.spared() >= n-o.Policy.Threshold(n)
	if o.stableRolls() {
		// The groups that LWS replaces next don't count: otherwise the share would change with each of them.
		s.of.whole, s.of.stable = false, min(stable.ready, max(n-o.mayBeUnavailable(), 0))
	}
	s.recheck = earliest(updated.recheck, stable.recheck)
	s.effective = s.of.limit(s.requested)
	// A single flap keeps the share that is in force, and never raises it.
	if updated.spared() > 0 {
		with := s.of
		with.steady++
		s.effective = max(s.effective, min(with.limit(s.requested), o.Traffic.Facts().Weight))
	}
	if o.shifts() { // old units that may go don't carry their share again
		s.of.stable = min(stable.ready, o.stayingUnits())
		s.effective = max(s.effective, min(o.Traffic.Facts().Weight, 100-100*s.of.stable/max(n, 1)))
	}
	// Blue-green promises that two revisions never serve together.
	if o.oneSetServes() && s.effective < s.requested {
		s.effective = o.oneOf(s, updated, stable)
	}
	return s
}

// requestedGroups returns how many groups the requested weight needs: those that it was requested for, and after a scale-up as many as the weight
// is of all groups, at most the batch's, unless the host asked for a larger share than they were of all. 0 means unknown.
func (o Observation) requestedGroups() int {
	r := o.release()
	if r == nil || r.Traffic.RequestedWeight() == 0 {
		return 0
	}
	had, need := r.Traffic.Groups, groupsFor(r.Traffic.Weight, o.batchReplicas())
	if had == 0 || had < groupsFor(r.Traffic.Weight, r.Replicas) {
		return had
	}
	if r.Phase == record.Progressing {
		need = min(need, o.planned())
	}
	return max(had, need)
}

// groupsFor returns how many of a number of groups carry a weight in percent, rounded up.
func groupsFor(weight, groups int) int { return (groups*weight + 99) / 100 } //nolint:mnd // percent

// oneOf returns a share at which only one of two sets serves: the one that is in force, none before the second set is complete, unless the
// user's own groups can carry more of the requests.
func (o Observation) oneOf(s share, updated, stable capacityOf) int {
	f, now := traffic.Facts{StableEndpoints: stable.ready, CanaryEndpoints: updated.ready + updated.spared()}, o.Traffic.Facts().Weight
	if updated.ready > 0 && o.lacks(f, now) <= max(o.mayLack(), o.lacks(f, 0)) {
		return min(now, s.requested)
	}
	return 0
}

// currentShare returns the share of the update revision, zero if at present it has none.
func (o Observation) currentShare() share {
	r, c := o.release(), o.canary()
	switch {
	case o.Traffic == nil || r == nil || !takesShare(r.Phase):
		return share{}
	case o.routesInPlace() && (r.Phase != record.Progressing || o.splitEnded() || r.UpdateRevision != o.Stable.Revision || len(o.abandoned()) > 0):
		return share{}
	case o.routesInPlace():
		return o.shareFor(o.planned())
	case c == nil || c.Deleting || RemovesAdded(o):
		return share{}
	}
	return o.shareFor(o.routedGroups())
}

// routedGroups returns how many groups of the canary get requests: those of the batch, or of the second set until it is complete, and
// then all.
func (o Observation) routedGroups() int {
	if o.Record.Release.Phase == record.Progressing || o.completesSecondSet() || o.shiftsBack() {
		return o.planned()
	}
	return o.capacity()
}

// planned returns how many groups are planned.
func (o Observation) planned() int {
	s := Progress{}
	s.planned(o)
	return s.Planned
}

// movesAllRequests reports whether a promotion, and not the host, sets the share.
func (o Observation) movesAllRequests() bool {
	p := o.Record.Release.Phase
	return o.switches() && (p == record.Promoting || p == record.Standby)
}

// stableRolls reports whether a promotion has LWS replace the user's own groups.
func (o Observation) stableRolls() bool {
	return o.Record.Release.Phase == record.Promoting && !record.SameRolling(o.Stable.Rolling, record.Hold())
}

// capacityOf is a count of the groups that serve one revision.
type capacityOf struct {
	// ready is the number of ready groups, steady without those that were lost recently.
	ready, steady int
	// lost is the number of groups that were lost within lossGrace, whether or not they are ready again.
	lost int
	// recheck is when time alone changes these numbers. Zero means never.
	recheck time.Duration
}

// spared returns 1 if a single group was lost a short time ago, so that the share does not follow yet. Two or more lost
// groups count at once.
func (c capacityOf) spared() int {
	if c.lost == 1 {
		return 1
	}
	return 0
}

// count adds a group.
func (c *capacityOf) count(o Observation, g Group, minReady time.Duration) {
	returned := g.returned(o.Policy.MinReady)
	until := func(at time.Time) bool {
		left := at.Sub(o.Now)
		if left > 0 {
			c.recheck = earliest(c.recheck, left)
		}
		return left > 0
	}
	switch {
	case !g.Ready && g.LostAt.IsZero(), !g.Ready && g.Revision != "" && g.FirstReady.IsZero():
		// It was never available.
	// Within the grace it counts as lost a short time ago: a single one keeps its share.
	case !g.Ready:
		if until(g.LostAt.Add(lossGrace)) {
			c.lost++
		}
	case returned:
		c.ready++
		until(g.ReadySince.Add(max(o.Policy.MinReady, lossGrace)))
		if g.ReadySince.Sub(g.LostAt) < lossGrace {
			c.lost++
		}
	default:
		c.ready++
		if !until(g.ReadySince.Add(minReady)) {
			c.steady++
		}
	}
}

// returned reports whether a group that was available before is ready again, but not for long.
func (g Group) returned(minReady time.Duration) bool {
	return g.Ready && !g.LostAt.IsZero() && !g.FirstReady.IsZero() && g.ReadySince.Add(minReady).After(g.FirstReady)
}

// updatedCapacity counts the groups at the update revision that may receive requests.
func (o Observation) updatedCapacity(planned int) capacityOf {
	var c capacityOf
	if o.inPlace() {
		for g := range o.Stable.Wanted(0) {
			missing := g.Revision == "" && g.Index >= o.Stable.Replicas-planned
			if missing || g.at(o.Record.Release.UpdateRevision) {
				c.count(o, g, o.Policy.MinReady)
			}
		}
		return c
	}
	if w := o.canary(); w != nil {
		for _, g := range w.Groups {
			if g.Index < planned {
				c.count(o, g, o.Policy.MinReady)
			}
		}
	}
	return c
}

// stableCapacity counts the groups that serve the requests that the update revision does not receive. minReady does not
// apply to them.
func (o Observation) stableCapacity(planned int) capacityOf {
	var c capacityOf
	for g := range o.Stable.Wanted(0) {
		missing := g.Revision == "" && g.Index < o.Stable.Replicas-planned
		if !o.inPlace() || missing || g.at(o.Record.Release.StableRevision) {
			c.count(o, g, 0)
		}
	}
	return c
}

// earliest returns the earlier of two times to recheck, of which zero means never.
func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// explainShare adds to a decision that the share is capped, and when time alone may change that.
func explainShare(o Observation, d Decision) Decision {
	s := o.currentShare()
	d.Recheck = earliest(d.Recheck, s.recheck)
	if s.effective > s.requested || s.capped() && !o.awaitsSecondSet() {
		d.Message += "; " + s.message(o)
	}
	return d
}

// checkShare: no write raises the share of the update revision above what its groups can carry.
func checkShare(o Observation, a SetTraffic) error {
	if o.Traffic == nil || o.Stable.Deleting || a.Desired.Weight <= o.Traffic.Facts().Weight {
		return nil
	}
	if s := o.currentShare(); a.Desired.Weight > s.of.limit(s.requested) {
		return fmt.Errorf("the share is raised to %d %%, and %d of %d groups can carry %d %%",
			a.Desired.Weight, s.of.steady, s.of.groups, s.of.limit(s.requested))
	}
	return nil
}
