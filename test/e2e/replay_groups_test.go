// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// ownGroups is what the rules of releases in place, and of restarts, have to know of a workload's own groups.
type ownGroups struct {
	// release and stage tell one release, and one stretch of it, from the next.
	release, stage string
	// floor is the partition that the batch means, lowest the lowest one that was in force in this release.
	floor, lowest int
	// allowed is how many groups may have left the stable revision.
	allowed int
	// bound is how many groups may be down, since so many are or were when this stage began.
	bound int
	// up are the groups that have ever been available, arrived those that were so at the revision of this stage, and
	// restarted those that were taken back to the stable revision; by index.
	up, arrived, restarted map[int]bool
	// added are the groups of a scale-up in this release: LWS may recreate one that it has just made.
	added map[int]bool
	// rolled is true once the hold was off in a promotion: LWS may take what it was asked for before a rollback put it back.
	rolled bool
}

func (r *replay) group(name string) *ownGroups {
	if r.own[name] == nil {
		r.own[name] = &ownGroups{}
		r.own[name].reset("")
	}
	return r.own[name]
}

func (g *ownGroups) reset(release string) {
	*g = ownGroups{
		release: release, lowest: holdPartition, up: g.up, arrived: map[int]bool{}, restarted: map[int]bool{}, added: map[int]bool{},
	}
	if g.up == nil {
		g.up = map[int]bool{}
	}
}

// change takes note of a change of the workload.
func (g *ownGroups) update(old, s *lws.LeaderWorkerSet) {
	rec := recordOf(s)
	if rec == nil || rec.Release == nil {
		return
	}
	if rec.Release.ID != g.release {
		g.reset(rec.Release.ID)
	}
	g.rolled = g.rolled || rec.phase() == "Promoting" && rec.rolls(s)
	replicas, partition := int(replicasOf(s)), partitionOf(s)
	planned := rec.Release.Target.planned(replicas)
	g.floor = replicas - planned
	if rec.inPlace() && rec.phase() != "CleaningUp" {
		g.lowest = min(g.lowest, partition)
	}
	switch grown := replicas - int(replicasOf(old)); {
	case old == nil || grown == 0:
		g.allowed = max(g.allowed, planned)
	case partition >= holdPartition:
		g.allowed = max(planned, min(g.allowed, replicas))
	default:
		// Above the partition LWS makes new groups at the new revision, and takes those first.
		g.allowed = max(planned, min(g.allowed+grown, replicas))
	}
	if old != nil {
		for index := int(replicasOf(old)); index < replicas; index++ {
			g.added[index] = true
		}
	}
	for _, known := range []map[int]bool{g.up, g.arrived, g.restarted, g.added} {
		for index := range known {
			if index >= replicas {
				delete(known, index)
			}
		}
	}
}

// standingGroups checks what has to be so at every instant of a workload's own groups.
func (r *replay) checkGroups(s *lws.LeaderWorkerSet, rec *record, canaries []string) {
	g, ready := r.group(s.Name), r.ready(s)
	for index := range ready {
		if index < int(replicasOf(s)) {
			g.up[index] = true
		}
	}
	if rec == nil || rec.Release == nil {
		return
	}
	if rec.inPlace() && rec.phase() == "Progressing" {
		left := r.offStable(s, rec)
		r.check(ruleBatch, left <= g.allowed, "%d groups of %s have left revision %s, %d may", left, s.Name, rec.Release.StableRevision, g.allowed)
	}
	if rec.inPlace() && (rec.moves() || rec.phase() == "Progressing") || rec.phase() == "RollingBack" && isHeld(s) {
		r.checkUnavailable(s, rec, ready)
	} else {
		g.stage = ""
	}
	if rec.blueGreen() {
		limit := 2*max(int(replicasOf(s)), r.before[s.Name]) + scaled(rec.Saved.MaxSurge, int(replicasOf(s)), true)
		if !rec.rolls(s) {
			limit = 2 * max(int(replicasOf(s)), r.before[s.Name])
		}
		total := r.leaders(s.Name)
		for _, name := range canaries {
			total += r.leaders(name)
		}
		r.check(ruleDouble, total <= limit, "%s has %d groups with its second set, %d may be", s.Name, total, limit)
	}
}

// standingDown checks how many groups are down that somebody had taken there.
func (r *replay) checkUnavailable(s *lws.LeaderWorkerSet, rec *record, ready map[int]string) {
	g, replicas := r.group(s.Name), int(replicasOf(s))
	edited := asJSON(s.Spec.LeaderWorkerTemplate) != r.released[s.Name]
	goal := func(revision string) bool {
		switch {
		case rec.phase() == "RollingBack":
			return revision == rec.Release.StableRevision
		case edited:
			return revision != rec.Release.StableRevision && revision != rec.Release.UpdateRevision
		}
		return revision == rec.Release.UpdateRevision
	}
	most := max(1, scaled(rec.Saved.MaxUnavailable, replicas, false), scaled(rec.Saved.MaxUnavailable, r.before[s.Name], false), rec.rollbackUnavailable(s))
	stage := rec.phase() + rec.Release.UpdateRevision + strconv.FormatBool(edited)
	fresh := g.stage != stage
	if fresh {
		g.stage, g.arrived = stage, map[int]bool{}
	}
	for index, revision := range ready {
		if goal(revision) {
			g.arrived[index] = true
		}
	}
	down, all := 0, 0
	for index := range g.up {
		if _, ok := ready[index]; ok {
			continue
		}
		if all++; !g.arrived[index] {
			down++
		}
	}
	if fresh {
		g.bound = max(most, down)
	}
	g.bound = max(most, g.bound)
	r.check(ruleDown, down <= g.bound, "%d of %d groups of %s are down, %d may be, maxUnavailable is %s",
		down, replicas, s.Name, g.bound, rec.Saved.MaxUnavailable.String())
	if all > g.bound {
		r.dips++
	}
	g.bound = max(most, min(g.bound, down))
}

// restarts takes note of a leader that goes so that its group comes back at the stable revision.
func (g *ownGroups) noteRestart(p *corev1.Pod, rec *record) {
	if index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey]); err == nil && p.Labels[lws.WorkerIndexLabelKey] == "0" &&
		p.DeletionTimestamp != nil && revisionOf(p) != rec.Release.StableRevision {
		g.restarted[index] = true
	}
}

// strayed counts the groups wanted that are at another revision than the stable one.
func (r *replay) offStable(s *lws.LeaderWorkerSet, rec *record) int {
	n := 0
	for _, p := range r.pods {
		index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
		if err == nil && p.Labels[lws.SetNameLabelKey] == s.Name && p.Labels[lws.WorkerIndexLabelKey] == "0" &&
			index < int(replicasOf(s)) && revisionOf(p) != rec.Release.StableRevision {
			n++
		}
	}
	return n
}

// ready are the groups whose leader and workers are all ready at one revision, and that revision, by index.
func (r *replay) ready(s *lws.LeaderWorkerSet) map[int]string {
	type at struct {
		index    int
		revision string
	}
	pods, whole := map[at]int{}, map[int]string{}
	for _, p := range r.pods {
		if p.Labels[lws.SetNameLabelKey] != s.Name || !podReady(p) {
			continue
		}
		index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
		if err != nil {
			continue
		}
		key := at{index, revisionOf(p)}
		if pods[key]++; pods[key] == int(ptr.Deref(s.Spec.LeaderWorkerTemplate.Size, 1)) {
			whole[index] = key.revision
		}
	}
	return whole
}

// partitionOf is the partition in force.
func partitionOf(s *lws.LeaderWorkerSet) int {
	if s == nil || s.Spec.RolloutStrategy.RollingUpdateConfiguration == nil {
		return 0
	}
	return int(ptr.Deref(s.Spec.RolloutStrategy.RollingUpdateConfiguration.Partition, 0))
}
