// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// The host. Each method is one RPC, by the rules of SPEC.md; a request that the service would refuse does nothing.

// initialize begins a release, unless one is in flight or the groups are at more than one revision.
func (c *cluster) initialize() {
	switch p := c.phase(); {
	case p.Unfinished() || len(c.added) > 0:
		return
	case len(c.stable.revisions()) > 1 || c.stable.revision() == "":
		return
	case !record.SameRolling(c.stable.rolling, c.set):
		return // Adopt repairs the hold first.
	}
	rec := record.Record{Version: 1, Saved: c.stable.rolling}
	if c.record != nil {
		rec.Saved, rec.Workload = c.record.Saved, c.record.Workload
	}
	from := c.stable.leaders.current
	if all := c.stable.revisions(); len(all) == 1 {
		from = all[0]
	}
	rec.Release = &record.Release{
		ID: "r", Phase: record.Progressing, StableRevision: from, UpdateRevision: c.stable.revision(),
		StartedAt: c.now, PhaseAt: c.now,
	}
	if from == c.stable.template {
		rec.Release.Phase = record.Nothing
	}
	c.note("host: initialize %s -> %s", from, c.stable.template)
	c.record, c.requestedTarget, c.mixed = &rec, nil, false
	c.stable.rolling, c.set = record.Hold(), record.Hold()
	c.touch(c.stable)
}

// upgrade requests a batch. A target that would not raise the planned groups changes nothing.
func (c *cluster) upgrade(groups string) {
	if c.phase() != record.Progressing || c.record.Release.UpdateRevision != c.stable.template {
		return
	}
	c.now = c.now.Add(time.Millisecond) // No two requests have the same time.
	next := &record.Target{Groups: groups, At: c.now}
	planned, err := next.Planned(c.stable.replicas)
	if err != nil {
		c.fail("%v", err)
	}
	current := c.observe().Target()
	if had, _ := current.Planned(c.stable.replicas); current != nil && planned <= had {
		return
	}
	c.note("host: upgrade to %s (%d)", groups, planned)
	c.requestedTarget, c.retired = next, false
	c.request(SetTarget{ReleaseID: c.record.Release.ID, Groups: groups})
}

// request is an RPC: the planner's decision, and its write.
func (c *cluster) request(i Intent) {
	o := c.observe()
	d, err := Decide(o, i)
	c.checkMissing(o, i, d)
	if err != nil {
		c.fail("%+v: %v", i, err)
	}
	switch a := d.Action.(type) {
	case nil:
	case SetStable:
		c.write(a)
	default:
		c.apply(decided{action: a, versions: c.versions()})
	}
}

func (c *cluster) finalize(intent record.Phase) {
	back := intent == record.CleaningUp && (c.phase() == record.Promoting || c.phase() == record.Standby)
	if c.phase() != record.Progressing && !back || c.record.Release.UpdateRevision == "" {
		return
	}
	if !record.SameRolling(c.stable.rolling, c.set) {
		return // The hold is repaired first: otherwise the user's settings can't be distinguished from the driver's.
	}
	var i Intent = RollBack{ReleaseID: c.record.Release.ID}
	if intent == record.Promoting {
		if c.record.Release.UpdateRevision != c.stable.revision() {
			return
		}
		i = Promote{ReleaseID: c.record.Release.ID}
	}
	c.note("host: finalize %s", intent)
	c.request(i)
}

// The user.

func (c *cluster) scale(replicas int) {
	if c.next != nil {
		return // changes of an object that is about to be deleted are lost
	}
	c.note("user: scale to %d", replicas)
	if c.requestedReplicas = replicas; c.phase() == record.HandingOver {
		c.requestedReplicas = -1
	}
	c.stable.replicas, c.stable.autoscaled, c.disturbed = replicas, false, true
	c.touch(c.stable)
}

// autoscale scales as the autoscaler does, if its hold allows it. A foreign autoscaler is one that the driver does not
// know, and cannot hold.
func (c *cluster) autoscale(replicas int, foreign bool) {
	s, up := c.scaler, replicas > c.stable.replicas
	known := s.exists && !s.elsewhere && s.of == c.stable.name && (s.hold == autoscaler.HoldNone || s.hold == autoscaler.HoldDown && up)
	if c.next != nil || c.phase() == record.HandingOver || c.stable.replicas == 0 || !known && !foreign {
		return
	}
	c.note("autoscaler: scale to %d", replicas)
	c.requestedReplicas = replicas
	c.stable.replicas, c.stable.autoscaled, c.disturbed = replicas, true, true
	c.touch(c.stable)
}

// edit changes the template; the admission policy sets the hold in the same request.
func (c *cluster) edit(template string) {
	known := record.SameRolling(c.stable.rolling, c.set) || record.SameRolling(c.stable.rolling, record.Hold())
	if c.next != nil || template == c.stable.template || (c.admission && !known) {
		return // The admission policy would overwrite what the user wrote before the driver saw it.
	}
	c.note("user: template %s", template)
	c.stable.template = template
	if c.record != nil && c.admission {
		c.stable.rolling.Partition, c.stable.rolling.MaxSurge = record.Hold().Partition, intstr.FromInt32(0)
		if c.stable.maxUnavailable() == 0 {
			c.stable.rolling.MaxUnavailable = one()
		}
	}
	if c.rolls() {
		c.disturbed = true // LWS rolls anew, or the hold reclaims the surge.
	}
	if c.record == nil {
		c.disturbed = true
	}
	c.touch(c.stable)
}

// editRolling edits the rolling update configuration, as a whole or in part: it is the user's from then on. It happens
// only while the driver's own is in force, since two edits between two observations are indistinguishable.
func (c *cluster) editRolling() {
	s := c.stable
	if !record.SameRolling(s.rolling, c.set) || c.next != nil {
		return
	}
	next := c.drawRolling(rapid.SampledFrom([]int{0, 0, 2}).Draw(c.t, "partition"), "edited")
	if whole := rapid.Bool().Draw(c.t, "whole manifest"); !whole {
		next.Partition, next.MaxSurge = s.rolling.Partition, s.rolling.MaxSurge
	}
	if c.rolls() && ptr.Deref(s.rolling.Partition, 0) == *record.Hold().Partition {
		// Before the promotion's first write only the partition shows what was set.
		next.Partition = s.rolling.Partition
	}
	floor := c.rolls() && next.MaxUnavailable == one() && strings.HasSuffix(c.userRolling.MaxUnavailable.String(), "%")
	if floor || !acceptable(next, s.replicas) {
		return
	}
	c.note("user: rolling %s", describeRolling(next))
	if *next.Partition != *s.rolling.Partition {
		c.userRolling.Partition = next.Partition
	}
	if next.MaxUnavailable != s.rolling.MaxUnavailable {
		c.userRolling.MaxUnavailable = next.MaxUnavailable
	}
	if next.MaxSurge != s.rolling.MaxSurge {
		c.userRolling.MaxSurge = next.MaxSurge
	}
	if c.record == nil {
		c.set = next
	}
	s.rolling, c.disturbed = next, true
	c.touch(s)
}

// editCanary edits a canary by hand.
func (c *cluster) editCanary(how string) {
	if len(c.added) == 0 {
		return
	}
	s := c.added[0]
	c.note("user: %s %s", how, s.name)
	switch how {
	case "scale up":
		if c.phase() == record.HandingOver {
			c.requestedReplicas = -1 // the handover may come first
		}
		s.replicas, s.edited = s.replicas+2, true
	case "scale to 0":
		if c.phase() == record.HandingOver {
			c.requestedReplicas = -1
		}
		s.replicas, s.edited = 0, true
	case "edit template":
		s.template += "!"
	case "delete":
		s.deleting = true
	case "delete in the foreground":
		s.deleting, s.foreground = true, true
	}
	c.touch(s)
}

// injectFault breaks groups, as nodes do.
func (c *cluster) injectFault(how string) {
	if how == "budget" {
		c.note("user: delete the budgets")
		c.budget = nil
		return
	}
	sets := append([]*set{c.stable}, c.added...)
	s := sets[rapid.IntRange(0, len(sets)-1).Draw(c.t, "set")]
	if len(s.groups) == 0 {
		return
	}
	i := rapid.SampledFrom(slices.Sorted(maps.Keys(s.groups))).Draw(c.t, "group")
	c.note("fault: %s %s-%d", how, s.name, i)
	switch g := s.groups[i]; how {
	case "flap":
		g.ready = false
	case "break":
		g.ready, g.broken = false, true
	case "lose":
		delete(s.groups, i)
	case "fail":
		if s == c.stable {
			g.ready, s.failing[i] = false, failure{at: g.revision, leader: rapid.Bool().Draw(c.t, "leader")}
		}
		return
	}
	if s == c.stable {
		c.disturbed = true
	}
}

// repair repairs failing groups, except at a revision that is being replaced.
func (c *cluster) repair() {
	for i, r := range c.stable.failing {
		if p := c.phase(); (p == record.RollingBack || p == record.CleaningUp) && r.at != c.record.Release.StableRevision {
			continue
		}
		c.note("user: repair group %d at %s", i, r.at)
		delete(c.stable.failing, i)
		c.disturbed = true
	}
}

// The driver, and what can go wrong between a decision and its effect.

func (c *cluster) step(how string) {
	if how == "late" {
		if c.pending != nil {
			c.apply(*c.pending)
		}
		c.pending = nil
		return
	}
	d := c.decide()
	if d.Action == nil {
		return
	}
	write := decided{d.Action, c.versions()}
	switch how {
	case "write":
		c.apply(write)
	case "twice":
		if once := c.apply(write); once && c.apply(write) {
			c.fail("%q went through twice", d.Action)
		}
	case "delay":
		c.pending = &write
	case "lose":
		c.note("lost: %s", d.Action)
	}
}

func (c *cluster) pass() {
	if rapid.Bool().Draw(c.t, "gateway follows") {
		c.follow()
	}
	c.tick(time.Duration(rapid.IntRange(1, 90).Draw(c.t, "seconds"))*time.Second, rapid.IntRange(0, 3).Draw(c.t, "warm-up"))
}
