// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// ownGroups is the state of a workload's own groups for the rules of in-place releases and restarts.
type ownGroups struct {
	// release and stage identify the release, and the part of it that bound is for.
	release, stage string
	// floor is the partition of the batch, lowest the lowest partition of this release so far.
	floor, lowest int
	// allowed is how many groups may have left the stable revision.
	allowed int
	// bound is how many groups may be down: maxUnavailable, or as many as were down at the start of this stage.
	bound int
	// By index: up has the groups that have ever been available, arrived those that were available at this stage's target
	// revision, and restarted those that were restarted to return to the stable revision.
	up, arrived, restarted map[int]bool
	// added has the groups of a scale-up in this release: LWS may recreate one that it has just created.
	added map[int]bool
	// rolled is true once a promotion has removed the hold: LWS may still replace a group after a rollback restored it.
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

// update follows a change of the workload.
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
		// Above the partition LWS creates new groups at the update revision, and removes those first.
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

// checkGroups checks the invariants of a workload's own groups.
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
		r.check(ruleBatch, left <= g.allowed, "%d groups of %s are off revision %s, want at most %d", left, s.Name, rec.Release.StableRevision, g.allowed)
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
		r.check(ruleDouble, total <= limit, "%s has %d groups with its second set, want at most %d", s.Name, total, limit)
	}
}

// checkUnavailable checks how many groups the release has taken down.
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
	down := 0
	for index := range g.up {
		if _, ok := ready[index]; !ok && !g.arrived[index] {
			down++
		}
	}
	if fresh {
		g.bound = max(most, down)
	}
	g.bound = max(most, g.bound)
	r.check(ruleDown, down <= g.bound, "%d of %d groups of %s are down, want at most %d, maxUnavailable is %s",
		down, replicas, s.Name, g.bound, rec.Saved.MaxUnavailable.String())
	g.bound = max(most, min(g.bound, down))
}

// noteRestart notes a leader that is deleted so that its group is recreated at the stable revision.
func (g *ownGroups) noteRestart(p *corev1.Pod, rec *record) {
	if index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey]); err == nil && p.Labels[lws.WorkerIndexLabelKey] == "0" &&
		p.DeletionTimestamp != nil && revisionOf(p) != rec.Release.StableRevision {
		g.restarted[index] = true
	}
}

// offStable counts the groups below replicas that are off the stable revision.
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

// size returns the number of pods of the group of a pod: its leader's, which has the size of its revision. The spec may have
// another size already.
func (r *replay) size(s *lws.LeaderWorkerSet, p *corev1.Pod) int {
	if leader := r.pods[s.Name+"-"+p.Labels[lws.GroupIndexLabelKey]]; leader != nil {
		if n, err := strconv.Atoi(leader.Annotations[lws.SizeAnnotationKey]); err == nil {
			return n
		}
	}
	return int(ptr.Deref(s.Spec.LeaderWorkerTemplate.Size, 1))
}

// ready returns the revision of each group whose pods are all ready at one revision, by index.
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
		if pods[key]++; pods[key] == r.size(s, p) {
			whole[index] = key.revision
		}
	}
	return whole
}

// partitionOf returns the partition of the spec.
func partitionOf(s *lws.LeaderWorkerSet) int {
	if s == nil || s.Spec.RolloutStrategy.RollingUpdateConfiguration == nil {
		return 0
	}
	return int(ptr.Deref(s.Spec.RolloutStrategy.RollingUpdateConfiguration.Partition, 0))
}

// ruleRoles: while a DisaggregatedSet is adopted, no role has fewer ready groups than its replicas less maxUnavailable. Those of a scale-up
// count once all have been ready, those of the other roles included.
const ruleRoles rule = "ready groups of a role never below its replicas - maxUnavailable"

// ruleRoom: where units of a DisaggregatedSet are replaced, no group of a role starts in a slice that then has more than its replicas and
// maxSurge. A group exists until the last of its pods is gone.
const ruleRoom rule = "groups of a role never above its replicas + maxSurge"

// roleFloor is what a role of a DisaggregatedSet owes its user.
type roleFloor struct {
	replicas, unavailable int
	// surge is how many groups it may have in addition, and replaced is true if the release replaces units. exist has the groups by slice.
	surge    int
	replaced bool
	exist    map[string]int
	// owed is the fewest replicas since all were ready last, and lowered is true until a scale-down is carried out, which the user may have
	// taken back by then.
	owed    int
	lowered bool
}

// stepRoleSet notes the replicas of the roles of a DisaggregatedSet.
func (r *replay) stepRoleSet(s *disaggregated.DisaggregatedSet, h clusterEvent) {
	r.lines = append(r.lines, fmt.Sprintf("%d roles of %s deleted=%t record=%s", h.version, s.Name, h.deleted, s.Annotations[recordAnnotation]))
	known := maps.Clone(r.roles)
	maps.DeleteFunc(r.roles, func(key string, _ *roleFloor) bool { return strings.HasPrefix(key, s.Name+"/") })
	if h.deleted || s.DeletionTimestamp != nil || s.Annotations[recordAnnotation] == "" {
		return
	}
	for i := range s.Spec.Roles {
		role, key := &s.Spec.Roles[i], s.Name+"/"+s.Spec.Roles[i].Name
		f := cmp.Or(known[key], &roleFloor{})
		r.roles[key] = f
		f.replicas, f.unavailable, f.surge = int(ptr.Deref(role.Spec.Replicas, 1)), 1, 1
		f.replaced = recordIn(s.Annotations).inPlace()
		if c := role.Spec.RolloutStrategy.RollingUpdateConfiguration; c != nil {
			f.unavailable, f.surge = scaled(c.MaxUnavailable, f.replicas, false), scaled(c.MaxSurge, f.replicas, true)
			if f.unavailable == 0 && c.MaxSurge == intstr.FromInt32(0) {
				f.unavailable, f.surge = 1, 1 // nothing could be replaced
			}
		}
		f.lowered = f.lowered || f.replicas < f.owed
		f.owed = min(f.owed, f.replicas)
		r.lines = append(r.lines, fmt.Sprintf("%d role %s: %d replicas, maxUnavailable %d", h.version, key, f.replicas, f.unavailable))
	}
}

// roleKey returns the key in replay.roles of an object's role.
func roleKey(labels map[string]string) string {
	return labels[disaggregated.SetNameLabelKey] + "/" + labels[disaggregated.RoleLabelKey]
}

// checkRoles checks the ready groups of each role, at whatever revision.
func (r *replay) checkRoles() {
	if len(r.roles) == 0 {
		return
	}
	ready, stay := map[string]int{}, map[string]int{} // by role
	for _, child := range r.sets {
		key, n := roleKey(child.Labels), len(r.ready(child))
		ready[key] += n
		stay[key] += min(n, int(replicasOf(child))) // LeaderWorkerSet is to remove the others
	}
	r.checkRoom()
	whole := map[string]bool{} // by set: a group without its unit serves no requests
	for key, f := range r.roles {
		f.lowered = f.lowered && ready[key] > f.owed
		set, _, _ := strings.Cut(key, "/")
		was, known := whole[set]
		whole[set] = (was || !known) && !f.lowered && stay[key] >= f.replicas
	}
	for key, f := range r.roles {
		if set, _, _ := strings.Cut(key, "/"); whole[set] {
			f.owed = f.replicas
		}
		r.check(ruleRoles, ready[key] >= f.owed-f.unavailable, "%s has %d ready groups of %d, maxUnavailable is %d", key, ready[key], f.owed, f.unavailable)
	}
}

// checkRoom checks the groups of each role in each slice, at whatever revision.
func (r *replay) checkRoom() {
	groups := map[string]map[string]sets.Set[string]{} // by role and slice
	for _, p := range r.pods {
		key, slice := roleKey(p.Labels), p.Labels[sliceLabel]
		if r.roles[key] == nil {
			continue
		}
		if groups[key] == nil {
			groups[key] = map[string]sets.Set[string]{}
		}
		if groups[key][slice] == nil {
			groups[key][slice] = sets.New[string]()
		}
		groups[key][slice].Insert(p.Labels[lws.SetNameLabelKey] + "-" + p.Labels[lws.GroupIndexLabelKey])
	}
	for key, f := range r.roles {
		had := f.exist
		f.exist = map[string]int{}
		for slice, all := range groups[key] {
			n := all.Len()
			f.exist[slice] = n
			r.check(ruleRoom, !f.replaced || n <= max(had[slice], f.replicas+f.surge), "%s has %d groups in slice %q, want at most %d and %d: %v",
				key, n, slice, f.replicas, f.surge, sets.List(all))
		}
	}
}
