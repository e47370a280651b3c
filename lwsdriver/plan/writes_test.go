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
		return c.applyHandover(a, d.versions)
	case CreateCanary:
		exists := slices.ContainsFunc(c.added, func(s *set) bool { return s.name == a.Name })
		if exists || d.versions[c.stable.name] != c.stable.version {
			return false
		}
		if a.Revision != c.stable.template {
			c.fail("a canary for %s of template %s", a.Revision, c.stable.template)
		}
		s := &set{
			name: a.Name, replicas: a.Replicas, template: a.Revision + "+", carries: a.Revision,
			rolling: rollingOf(0, "1", "0"), held: true, target: a.Target, groups: map[int]*group{}, failing: map[int]failure{},
		}
		if c.handsOver() {
			s.template = a.Revision // its leaders have no extra metadata
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
		if c.stable.autoscaled && !s.edited && a.Replicas < s.replicas && c.phase() == record.Progressing && c.share() > 0 && s.replicas <= c.allowed(s) {
			c.fail("%s, which has %d groups and %d %% of the requests, since an autoscaler removed groups", a, s.replicas, c.share())
		}
		s.replicas, s.edited = a.Replicas, false
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
	c.checkScaledToZero(a, versions)
	c.write(a)
	return true
}

// write applies a write of the record that is not refused.
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
		c.transferred = nil // garbage collection deletes it with the second set
	}
	c.applyTemplate(a, rec.Release)
	if old, next := c.record.Release, rec.Release; old != nil && next != nil && old.UpdateRevision != next.UpdateRevision {
		if old.UpdateRevision != "" {
			c.requestedTarget = nil
			for _, s := range c.added {
				if s.carries == next.UpdateRevision {
					c.requestedTarget = s.target // It was requested for this revision, before another one.
				}
			}
		}
	}
	if c.rolls() && record.SameRolling(*a.Rolling, record.Hold()) && !c.stable.allReady() {
		c.disturbed = true // The hold reclaims LWS's surge, and groups being updated are recreated at the old revision.
	}
	if c.stable.rolling.MaxUnavailable == all && !c.stable.allReady() {
		c.disturbed = true // They received no requests; the second set did.
	}
	if !record.SameRolling(c.stable.rolling, c.set) {
		c.disturbed = true // Another client had LWS roll; deleted groups are recreated, and the hold reclaims the surge.
	}
	c.record = &rec
	c.stable.rolling, c.set = *a.Rolling, set
	c.stable.rolling.Partition = ptr.To(ptr.Deref(a.Rolling.Partition, 0))
	c.touch(c.stable)
}

// checkIntent: a release never changes direction except for a new template.
func (c *cluster) checkIntent(a SetStable) {
	before, after := c.phase(), record.Phase("")
	if a.Record.Release != nil {
		after = a.Record.Release.Phase
	}
	renewed := c.record.Release != nil && c.stable.template != c.record.Release.UpdateRevision
	// Another client had LWS roll groups that a handover leaves alone, or they were created at the new template in a
	// scale-up from 0.
	offRevision := renewed && (c.mixed || c.disturbed || !c.stable.at(c.record.Release.StableRevision))
	ok := before == after
	if c.inPlace() && before == record.Progressing && after == record.RollingBack {
		ok = c.stable.template == c.record.Release.StableRevision
	}
	switch before {
	case record.Promoting:
		if c.handsOver() {
			ok = ok || after == record.Standby || after == record.HandingOver || (after == record.CleaningUp || after == record.Progressing) && renewed
			ok = ok || after == record.RollingBack && offRevision
			break
		}
		ok = ok || after == record.Promoted || ((after == record.Progressing || after == record.RollingBack) && renewed)
	case record.Standby:
		ok = ok || after == record.HandingOver || (after == record.Progressing || after == record.CleaningUp) && renewed || after == record.RollingBack && offRevision
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
		c.fail("handed over from phase %q after %s of %s", before, stood, c.policy.ScaleDownDelay)
	}
	if !ok {
		c.fail("phase %q became %q", before, after)
	}
	batch := c.inPlace() && after == record.Progressing && !renewed
	if a.Rolling == nil {
		return
	}
	if c.handsOver() && after != record.RollingBack && !record.SameRolling(*a.Rolling, record.Hold()) {
		c.fail("the hold is released in a handover, in phase %q", after)
	}
	if !record.SameRolling(*a.Rolling, record.Hold()) && after != record.Promoting && after != record.RollingBack && !batch {
		c.fail("the hold is released in phase %q", after)
	}
	if before == record.Promoting && after == record.Promoted && !c.stable.at(a.Record.Release.UpdateRevision) {
		c.fail("promoted, but the groups are at %v", c.stable.revisions())
	}
}

// checkReplaceAll: all stable groups are replaced at once only if the second set received the requests when that was
// decided.
func (c *cluster) checkReplaceAll(action Action) {
	a, ok := action.(SetStable)
	if !ok || a.Rolling == nil || a.Rolling.MaxUnavailable != all || record.SameRolling(*a.Rolling, Pace(a.Record.Saved, c.stable.replicas)) {
		return
	}
	if w := c.canary(); w == nil || w.ready() < c.stable.replicas-c.policy.Threshold(c.stable.replicas) || c.traffic.seen != 100 {
		c.fail("all stable groups are replaced at once, but the second set does not receive the requests")
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

// at reports whether every group is at a revision.
func (s *set) at(revision string) bool {
	for _, r := range s.revisions() {
		if r != revision {
			return false
		}
	}
	return true
}

// applyRestart deletes a leader if it is still the observed pod.
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
			c.disturbed = true // Two drivers each restarted one.
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

// applyTemplate saves or restores the stable template with a write of the record.
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
