// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// apply is the API server: a write whose object changed since the look is refused.
func (c *cluster) apply(d decided) bool {
	c.note("apply %T %s", d.action, d.action)
	switch a := d.action.(type) {
	case SetStable:
		return c.applyStable(a, d.versions)
	case SetTraffic:
		return c.applyTraffic(a, d.versions)
	case HoldAutoscaler, ReleaseAutoscaler:
		return c.applyScaler(a, d.versions)
	case MarkLeader:
		if a.Name == c.stable.name {
			return c.applyMark(a)
		}
	case RestartGroup:
		return c.applyRestart(a, d.versions)
	case LabelGroup:
		return c.applyLabel(a)
	case SetBudget, DeleteBudget:
		return c.applyBudget(a)
	case SaveRevision, DeleteRevision:
		return c.applyHistory(a)
	case TransferHistory, HandOver, DeleteStable:
		return c.applyAdoption(a, d.versions)
	case CreateCanary:
		taken := slices.ContainsFunc(c.added, func(s *set) bool { return s.name == a.Name })
		if taken || d.versions[c.stable.name] != c.stable.version {
			return false
		}
		if a.Revision != c.stable.template {
			c.fail("a canary for %s of template %s", a.Revision, c.stable.template)
		}
		s := &set{
			name: a.Name, replicas: a.Replicas, template: a.Revision + "+", carries: a.Revision,
			rolling: rollingOf(0, "1", "0"), held: true, target: a.Target, groups: map[int]*group{}, ruined: map[int]ruin{},
		}
		if c.adopts() {
			s.template = a.Revision // there is no metadata on its leaders
		}
		s.made = s.template
		c.touch(s)
		s.uid = fmt.Sprint(s.version)
		c.added = append(c.added, s)
		return true
	}
	for _, s := range c.added {
		if version, ok := d.versions[s.name]; ok && version == s.version && c.applyAdded(s, d.action) {
			c.touch(s)
			return true
		}
	}
	return false
}

func (c *cluster) applyAdded(s *set, action Action) bool {
	switch a := action.(type) {
	case ScaleCanary:
		if a.Name != s.name {
			return false
		}
		s.replicas = a.Replicas
		if a.Target != nil {
			s.target = a.Target
		}
		return true
	case MarkLeader:
		for i, g := range s.groups {
			if fmt.Sprintf("%s-%d", s.name, i) == a.Leader {
				g.serving = a.Serves
				return a.Name == s.name
			}
		}
		return false
	case RepairCanary:
		s.template = s.made
		return a.Name == s.name
	case RemoveFinalizer:
		s.held = false
		c.retired = c.retired || c.stable.template != s.carries
		return a.Name == s.name
	case DeleteCanary:
		c.retired = c.retired || c.stable.template != s.carries
		s.deleting, s.foreground = true, true
		return a.Name == s.name
	}
	return false
}

func (c *cluster) applyStable(a SetStable, versions map[string]int) bool {
	if versions[c.stable.name] != c.stable.version {
		return false
	}
	c.checkIntent(a)
	c.checkEmptied(a, versions)
	c.write(a)
	return true
}

// write is what a write of the record, which is not refused, has for effects.
func (c *cluster) write(a SetStable) {
	found, set := c.stable.rolling, c.set
	switch {
	case a.Rolling == nil:
		a.Rolling = &found
	case a.Replicas == nil && !acceptable(*a.Rolling, c.stable.replicas):
		c.fail("LWS refuses %v for %d replicas", *a.Rolling, c.stable.replicas)
	default:
		set = *a.Rolling
	}
	c.checkBatch(a)
	if a.Replicas != nil {
		c.stable.replicas, c.disturbed = *a.Replicas, true
	}
	rec := a.Record
	if c.phase() == record.HandingOver && rec.Release.Phase != record.HandingOver {
		c.passed = nil // garbage collection takes it with the second set
	}
	c.applyTemplate(a, rec.Release)
	if old, next := c.record.Release, rec.Release; old != nil && next != nil && old.UpdateRevision != next.UpdateRevision {
		if old.UpdateRevision != "" {
			c.asked = nil
			for _, s := range c.added {
				if s.carries == next.UpdateRevision {
					c.asked = s.target // It was asked for this very revision, before another one came and went.
				}
			}
		}
	}
	if c.rolls() && record.SameRolling(*a.Rolling, record.Hold()) && !c.stable.whole() {
		c.disturbed = true // The hold reclaims LWS's surge, and what LWS was updating comes back at the old revision.
	}
	if c.stable.rolling.MaxUnavailable == all && !c.stable.whole() {
		c.disturbed = true // They had nothing to do; the second set did.
	}
	if !record.SameRolling(c.stable.rolling, c.set) {
		c.disturbed = true // Somebody had LWS roll; what it took down comes back, and the hold reclaims its surge.
	}
	c.record = &rec
	c.stable.rolling, c.set = *a.Rolling, set
	c.stable.rolling.Partition = ptr.To(ptr.Deref(a.Rolling.Partition, 0))
	c.touch(c.stable)
}

// checkIntent: a release never changes its way, but for a new template.
func (c *cluster) checkIntent(a SetStable) {
	before, after := c.phase(), record.Phase("")
	if a.Record.Release != nil {
		after = a.Record.Release.Phase
	}
	renewed := c.record.Release != nil && c.stable.template != c.record.Release.UpdateRevision
	// Somebody had LWS roll groups that an adoption leaves alone, or they came at the new template in a scale-up from none.
	strayed := renewed && (c.mixed || c.disturbed || !c.stable.at(c.record.Release.StableRevision))
	ok := before == after
	if c.inPlace() && before == record.Progressing && after == record.RollingBack {
		ok = c.stable.template == c.record.Release.StableRevision
	}
	switch before {
	case record.Promoting:
		if c.adopts() {
			ok = ok || after == record.Standby || after == record.HandingOver || (after == record.CleaningUp || after == record.Progressing) && renewed
			ok = ok || after == record.RollingBack && strayed
			break
		}
		ok = ok || after == record.Promoted || ((after == record.Progressing || after == record.RollingBack) && renewed)
	case record.Standby:
		ok = ok || after == record.HandingOver || (after == record.Progressing || after == record.CleaningUp) && renewed || after == record.RollingBack && strayed
	case record.HandingOver:
		ok = ok || after == record.Promoting && (c.canary() == nil || c.canary().deleting)
	case record.CleaningUp:
		ok = ok || after == record.RollingBack
	case record.RollingBack:
		ok = ok || after == record.CleaningUp
	case record.Progressing:
		ok = ok || ((after == record.CleaningUp || after == record.Nothing) && renewed)
	default:
	}
	if stood := c.now.Sub(c.record.Release.PhaseAt); after == record.HandingOver && before != after && c.policy.ScaleDownDelay > 0 &&
		(before != record.Standby || stood < c.policy.ScaleDownDelay) {
		c.fail("adopted from phase %q after %s of %s", before, stood, c.policy.ScaleDownDelay)
	}
	if !ok {
		c.fail("phase %q became %q", before, after)
	}
	batch := c.inPlace() && after == record.Progressing && !renewed
	if a.Rolling == nil {
		return
	}
	if c.adopts() && after != record.RollingBack && !record.SameRolling(*a.Rolling, record.Hold()) {
		c.fail("the hold goes in an adoption, in phase %q", after)
	}
	if !record.SameRolling(*a.Rolling, record.Hold()) && after != record.Promoting && after != record.RollingBack && !batch {
		c.fail("the hold goes in phase %q", after)
	}
	if before == record.Promoting && after == record.Promoted && !c.stable.at(a.Record.Release.UpdateRevision) {
		c.fail("promoted, but the groups are at %v", c.stable.revisions())
	}
}

// checkIdle: all stable groups go at once only where the second set had the requests when that was decided.
func (c *cluster) checkIdle(action Action) {
	a, ok := action.(SetStable)
	if !ok || a.Rolling == nil || a.Rolling.MaxUnavailable != all || record.SameRolling(*a.Rolling, Pace(a.Record.Saved, c.stable.replicas)) {
		return
	}
	if w := c.canary(); w == nil || w.ready() < c.stable.replicas-c.policy.Threshold(c.stable.replicas) || c.traffic.seen != 100 {
		c.fail("all stable groups go at once, and the second set does not have the requests")
	}
}

// servingAt counts the groups of a revision that stay and have been ready for long enough.
func (c *cluster) servingAt(s *set, revision string) int {
	n := 0
	for i, g := range s.groups {
		if i < s.replicas && g.ready && g.revision == revision && c.now.Sub(g.since) >= c.policy.MinReady {
			n++
		}
	}
	return n
}

// at says that every group is at a revision.
func (s *set) at(revision string) bool {
	for _, r := range s.revisions() {
		if r != revision {
			return false
		}
	}
	return true
}

// applyRestart deletes a leader that is as it was seen. A pod that came in its place meanwhile is another one.
func (c *cluster) applyRestart(a RestartGroup, versions map[string]int) bool {
	for i, g := range c.stable.groups {
		if leaderName(c.stable, i) != a.Leader || g.version() != versions[a.Leader] || g.revision == c.record.Release.StableRevision {
			continue
		}
		r := c.restarts[i]
		if r.at != g.revision {
			r = restarts{at: g.revision}
		}
		r.n++
		c.restarts[i] = r
		if versions["restarted"] != c.restarted {
			c.disturbed = true // Two drivers were at work, and each took one.
		}
		c.restarted++
		delete(c.stable.groups, i)
		return true
	}
	return false
}

// applyMark labels a leader of the user's own workload.
func (c *cluster) applyMark(a MarkLeader) bool {
	for i, g := range c.stable.groups {
		if leaderName(c.stable, i) == a.Leader {
			changed := g.serving != a.Serves && (g.ready || !a.Serves) // another pod by now
			if changed {
				g.serving = a.Serves
			}
			return changed
		}
	}
	return false
}

// applyTemplate is what a write of the record does with the stable template.
func (c *cluster) applyTemplate(a SetStable, r *record.Release) {
	switch {
	case a.SaveTemplate:
		c.template = r.StableRevision
		r.StableTemplate = &record.Template{}
	case a.RestoreTemplate:
		if c.template != r.StableRevision {
			c.fail("the template of %s is restored for that of %s", c.template, r.StableRevision)
		}
		c.stable.template = c.template
	}
}
