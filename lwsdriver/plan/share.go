// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
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

// shareLimits is what limits a share.
type shareLimits struct {
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
	// broken is why requests to the updated groups fail, empty if they do not.
	broken string
}

// carried returns how much of a requested weight the groups can carry.
func (l shareLimits) carried(weight int) int {
	switch {
	case l.updated == 0, l.broken != "":
		return 0
	case l.steady >= l.groups-l.tolerated:
		return weight
	case l.units > 0:
		return min(weight, 100*l.steady/l.units) //nolint:mnd // percent
	}
	// In tenths, so that a group that comes and goes does not move routes each time.
	tenths := func(n, of int) int { return 10 * n / of }
	capped := weight * tenths(l.steady, l.groups) / 10
	if !l.whole { // neither side carries all: each gets what it has groups for
		ready := 10 * tenths(l.updated, l.updated+l.stable)
		return max(capped, min(weight, ready))
	}
	if 2*l.steady < l.groups {
		return 0
	}
	return capped
}

// share is a requested weight, and what of it the updated groups can carry.
type share struct {
	requested, effective int
	limits               shareLimits
	// recheck is when time alone may change it. Zero means never.
	recheck time.Duration
}

// isCapped reports whether some updated groups are ready, but too few for the requested weight.
func (s share) isCapped() bool { return s.limits.updated > 0 && s.effective < s.requested }

// capReason is the reason of a capped share.
func (s share) capReason() string {
	if s.limits.broken != "" {
		return traffic.ReasonNoPicker
	}
	return ReasonCapacityBelowShare
}

// capMessage explains a capped share.
func (s share) capMessage(o Observation) string {
	ready := "are ready"
	if s.effective > s.requested {
		return fmt.Sprintf("%d of %d old units are left, so %d %% of the requests instead of %d %% stay with revision %s",
			s.limits.stable, s.limits.units, s.effective, s.requested, o.Record.Release.UpdateRevision)
	}
	if s.limits.steady < min(s.limits.updated, s.limits.groups) {
		ready = fmt.Sprintf("have been ready for %s", max(o.Policy.MinReady, lossGrace))
	}
	why := cmp.Or(s.limits.broken, fmt.Sprintf("%d of %d groups %s", s.limits.steady, s.limits.groups, ready))
	return fmt.Sprintf("%s, so %d %% of the requests instead of %d %% go to revision %s; the rest stays with the stable groups",
		why, s.effective, s.requested, o.Record.Release.UpdateRevision)
}

// shareFor returns the share of the update revision while a number of its groups is planned. A promotion that moves all
// requests needs all of them, and a weight of the host the groups that it was requested for: the next batch does not lower
// the share.
func (o Observation) shareFor(planned int) share {
	s := o.requestedShare(planned)
	if o.Traffic == nil || s.requested == 0 && !o.replacesUnits() {
		s.effective = s.requested
		return s
	}
	updated, stable := o.updatedCapacity(planned), o.stableCapacity(planned)
	s.limits.steady, s.limits.updated, s.limits.stable = updated.steady, updated.ready, stable.ready
	n := o.batchReplicas()
	s.limits.whole = stable.ready > 0 && stable.steady+stable.sparedGroups() >= n-o.Policy.Threshold(n)
	if o.stableRolls() {
		// The groups that LWS replaces next don't count: otherwise the share would change with each of them.
		s.limits.whole, s.limits.stable = false, min(stable.ready, max(n-o.mayBeUnavailable(), 0))
	}
	if s.limits.broken = o.canaryBroken(); s.limits.broken != "" {
		return s
	}
	s.recheck = earliest(updated.recheck, stable.recheck)
	s.effective = s.limits.carried(s.requested)
	// A single flap keeps the share that is in force, and never raises it.
	if updated.sparedGroups() > 0 {
		with := s.limits
		with.steady++
		s.effective = max(s.effective, min(with.carried(s.requested), o.Traffic.Facts().Weight))
	}
	if o.replacesUnits() { // old units that may go don't carry their share again
		s.limits.stable = min(stable.ready, o.stayingUnits())
		stableCarries := 100 * s.limits.stable / max(n, 1)
		s.effective = max(s.effective, min(o.canaryWeight(), 100-stableCarries))
	}
	// Blue-green promises that two revisions never serve together.
	if o.oneSetServes() && s.effective < s.requested {
		s.effective = o.oneSidedShare(s, updated, stable)
	}
	return s
}

// requestedShare returns the share that is asked for, and the number of groups that have to carry it.
func (o Observation) requestedShare(planned int) share {
	asked := o.Record.Release.Traffic // nil: the host has asked for no weight
	s := share{requested: asked.RequestedWeight(), limits: shareLimits{groups: planned}}
	if groups := o.requestedGroups(); groups > 0 {
		s.limits.groups = groups
		if o.Record.Release.Phase == record.Progressing {
			s.limits.groups = min(groups, planned)
		}
	}
	if o.replacesUnits() {
		s.limits.units = o.batchReplicas()
		if o.Traffic != nil && (asked == nil || o.shiftsBack()) { // each new unit stands in the place of an old one
			s.requested, s.limits.groups = o.shiftedShare(planned), planned
		}
	}
	if o.movesAllRequests() {
		s.requested, s.limits.groups = 100, planned
	}
	s.limits.tolerated = o.Policy.Threshold(s.limits.groups)
	if o.replacesUnits() && o.movesAllRequests() {
		missing := s.limits.units - planned // the last units, which follow in the place of old ones
		s.limits.tolerated = max(min(s.limits.tolerated, o.mayLack()-missing), 0)
	}
	return s
}

// requestedGroups returns how many updated groups the requested weight needs: those that it was requested for, and more after a scale-up. 0
// means unknown.
func (o Observation) requestedGroups() int {
	r := o.release()
	if r == nil || r.Traffic.RequestedWeight() == 0 {
		return 0
	}
	had := r.Traffic.Groups
	if had == 0 || had < groupsFor(r.Traffic.Weight, r.Replicas) {
		return had // in the second case the host asked for a larger share than they were of all groups: these are enough
	}
	need := groupsFor(r.Traffic.Weight, o.batchReplicas())
	if r.Phase == record.Progressing {
		need = min(need, o.plannedGroups())
	}
	return max(had, need)
}

// groupsFor returns how many of a number of groups carry a weight in percent, rounded up.
func groupsFor(weight, groups int) int { return (groups*weight + 99) / 100 } //nolint:mnd // percent

// oneSidedShare returns a share at which only one of two sets serves: the one that is in force, none before the second set is complete, unless
// the user's own groups can carry more of the requests.
func (o Observation) oneSidedShare(s share, updated, stable sideCount) int {
	inForce := o.Traffic.Facts().Weight
	ready := traffic.Facts{StableEndpoints: stable.ready, CanaryEndpoints: updated.ready + updated.sparedGroups()}
	if updated.ready > 0 && o.lackingGroups(ready, inForce) <= max(o.mayLack(), o.lackingGroups(ready, 0)) {
		return min(inForce, s.requested)
	}
	return 0
}

// currentShare returns the share of the update revision, zero if at present it has none.
func (o Observation) currentShare() share {
	r, c := o.release(), o.canary()
	switch {
	case o.Traffic == nil || r == nil || !takesShare(r.Phase):
		return share{}
	case o.routesInPlace():
		splits := r.Phase == record.Progressing && !o.splitEnded() && r.UpdateRevision == o.Stable.Revision && len(o.abandonedGroups()) == 0
		if !splits {
			return share{}
		}
		return o.shareFor(o.plannedGroups())
	case c == nil || c.Deleting || RemovesAdded(o):
		return share{}
	}
	return o.shareFor(o.routedGroups())
}

// routedGroups returns how many groups of the canary get requests: those of the batch, or of the second set until it is complete, and
// then all.
func (o Observation) routedGroups() int {
	if o.Record.Release.Phase == record.Progressing || o.completesSecondSet() || o.shiftsBack() {
		return o.plannedGroups()
	}
	return o.canaryCapacity()
}

// plannedGroups returns how many groups are planned.
func (o Observation) plannedGroups() int {
	s := Progress{}
	s.setPlanned(o)
	return s.Planned
}

// movesAllRequests reports whether a promotion, and not the host, sets the share.
func (o Observation) movesAllRequests() bool {
	p := o.Record.Release.Phase
	return o.switchesSets() && (p == record.Promoting || p == record.Standby)
}

// stableRolls reports whether a promotion has LWS replace the user's own groups.
func (o Observation) stableRolls() bool {
	return o.Record.Release.Phase == record.Promoting && !isHold(o.Stable.Rolling)
}

// sideCount is a count of the groups that serve one revision.
type sideCount struct {
	// ready is the number of ready groups, steady without those that were lost recently.
	ready, steady int
	// lost is the number of groups that were lost within lossGrace, whether or not they are ready again.
	lost int
	// recheck is when time alone changes these numbers. Zero means never.
	recheck time.Duration
}

// sparedGroups returns 1 if a single group was lost a short time ago, so that the share does not follow yet. Two or more lost
// groups count at once.
func (c sideCount) sparedGroups() int {
	if c.lost == 1 {
		return 1
	}
	return 0
}

// count adds a group.
func (c *sideCount) count(o Observation, g Group, minReady time.Duration) {
	// pending reports whether a time is still to come, and then has the share rechecked at it.
	pending := func(at time.Time) bool {
		left := at.Sub(o.Now)
		if left > 0 {
			c.recheck = earliest(c.recheck, left)
		}
		return left > 0
	}
	// Of a missing group, which has no revision, only the loss is known.
	neverAvailable := g.LostAt.IsZero() || g.Revision != "" && g.FirstReady.IsZero()
	switch {
	case !g.Ready && neverAvailable: // so it can't have been lost
	case !g.Ready:
		if pending(g.LostAt.Add(lossGrace)) {
			c.lost++ // a short time ago: a single one keeps its share
		}
	case g.justReturned(o.Policy.MinReady):
		c.ready++
		pending(g.ReadySince.Add(max(o.Policy.MinReady, lossGrace))) // only for the recheck
		if g.ReadySince.Sub(g.LostAt) < lossGrace {
			c.lost++
		}
	default:
		c.ready++
		if !pending(g.ReadySince.Add(minReady)) {
			c.steady++
		}
	}
}

// justReturned reports whether a group that was available before is ready again, but not for long.
func (g Group) justReturned(minReady time.Duration) bool {
	return g.Ready && !g.LostAt.IsZero() && !g.FirstReady.IsZero() && g.ReadySince.Add(minReady).After(g.FirstReady)
}

// updatedCapacity counts the groups at the update revision that may receive requests.
func (o Observation) updatedCapacity(planned int) sideCount {
	var c sideCount
	if o.inPlace() {
		for g := range o.Stable.Wanted(0) {
			// LWS updates the highest indices first, so the index says at which revision a missing group returns.
			missing := g.Revision == "" && g.Index >= o.Stable.Replicas-planned
			if missing || g.atRevision(o.Record.Release.UpdateRevision) {
				c.count(o, g, o.Policy.MinReady)
			}
		}
		return c
	}
	for _, g := range o.canary().Groups {
		if g.Index < planned {
			c.count(o, g, o.Policy.MinReady)
		}
	}
	return c
}

// stableCapacity counts the groups that serve the requests that the update revision does not receive. minReady does not
// apply to them.
func (o Observation) stableCapacity(planned int) sideCount {
	var c sideCount
	for g := range o.Stable.Wanted(0) {
		missing := g.Revision == "" && g.Index < o.Stable.Replicas-planned
		if !o.inPlace() || missing || g.atRevision(o.Record.Release.StableRevision) {
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
	if s.effective > s.requested || s.isCapped() && !o.awaitsSecondSet() {
		d.Message += "; " + s.capMessage(o)
	}
	return d
}

// checkShare: no write raises the share of the update revision above what its groups can carry.
func checkShare(o Observation, a SetTraffic) error {
	if a.Desired.Weight <= o.canaryWeight() {
		return nil
	}
	s := o.currentShare()
	if carried := s.limits.carried(s.requested); a.Desired.Weight > carried {
		return fmt.Errorf("the share is raised to %d %%, and %d of %d groups can carry %d %%", a.Desired.Weight, s.limits.steady, s.limits.groups, carried)
	}
	return nil
}
