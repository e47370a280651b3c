// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// Groups computes each workload's groups from its pods. A pod event marks its group, and an observation recomputes only marked
// groups, so its cost depends on the changes and is small at a thousand groups.
type Groups struct {
	pods informer.Cached // *Pod, by podGroupIndex

	mu   sync.Mutex
	sets map[types.NamespacedName]*groupSet
	// children are the workloads whose pods name a DisaggregatedSet, by the key of the set.
	children map[types.NamespacedName]map[types.NamespacedName]childLabels
}

// groupSet is the groups of one workload.
type groupSet struct {
	entries map[string]*groupEntry // by group-index label
	child   childLabels

	// last is the last result, for these replicas of this size. Nil means that something may have changed since.
	last           []plan.Group
	replicas, size int
	sizes          map[string]int

	// unnumbered is the group-index label of a group that LWS does not number, as of the last observation. Empty means none.
	unnumbered string
}

// groupEntry outlives its pods, so that a group that is recreated repeatedly does not look new each time.
type groupEntry struct {
	label  string
	index  int // -1: LWS does not number it
	dirty  bool
	exists bool // it has pods
	group  plan.Group
	size   int // as LWS noted on its pods; 0: not noted
	built  built
	// brokenSince is when the first of the pods that are not ready stopped being ready, by their conditions. Zero means unknown.
	brokenSince time.Time
	// startup is how long it took from the creation of the first of its pods until all were ready, zero if they are not.
	startup time.Duration

	memory groupMemory
}

// podGroupIndex finds the pods of one group.
const podGroupIndex = "group"

func podGroupKey(set types.NamespacedName, group string) string {
	return set.Namespace + "/" + set.Name + "/" + group
}

// groupKeys returns the group that a pod is part of. A pod with LWS's name label alone is part of none.
func (v *Pod) groupKeys() []string {
	if v.Group == "" {
		return nil
	}
	return []string{podGroupKey(v.Workload(), v.Group)}
}

// podsOf returns the pods of a group. A leader built to be the only one serves alone: LWS adds workers to it once the size in the spec
// grows, and these do not count.
func (g *Groups) podsOf(set types.NamespacedName, group string) []*Pod {
	all := informer.List[*Pod](g.pods, podGroupIndex, podGroupKey(set, group))
	if i := slices.IndexFunc(all, func(p *Pod) bool { return p.leader && p.size == 1 && !p.Terminating }); i >= 0 {
		return all[i : i+1]
	}
	return all
}

// podGroup identifies the group that a pod is part of. label is empty if it is part of none.
type podGroup struct {
	set   types.NamespacedName
	label string
	child unique.Handle[childLabels]
}

func (v *Pod) group() podGroup { return podGroup{v.Workload(), v.Group, v.child} }

// Workload returns the key of the LeaderWorkerSet that the pod belongs to.
func (v *Pod) Workload() types.NamespacedName {
	return types.NamespacedName{Namespace: v.Namespace, Name: v.set}
}

// Invalidate has the group recomputed, since one of its pods changed.
func (g *Groups) Invalidate(set types.NamespacedName, group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		s = &groupSet{entries: map[string]*groupEntry{}}
		if g.sets == nil {
			g.sets = map[types.NamespacedName]*groupSet{}
		}
		g.sets[set] = s
	}
	e := s.entries[group]
	if e == nil {
		e = &groupEntry{label: group, index: groupIndex(group)}
		s.entries[group] = e
	}
	e.dirty, s.last = true, nil
}

// noteChild notes the labels by which the pods of a workload name the DisaggregatedSet that it is a child of: they outlive the workload.
func (g *Groups) noteChild(workload types.NamespacedName, child childLabels) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[workload]
	if s == nil || s.child == child {
		return
	}
	g.dropChild(workload, s)
	s.child = child
	key := child.setKey(workload.Namespace)
	if g.children == nil {
		g.children = map[types.NamespacedName]map[types.NamespacedName]childLabels{}
	}
	if g.children[key] == nil {
		g.children[key] = map[types.NamespacedName]childLabels{}
	}
	g.children[key][workload] = child
}

func (g *Groups) dropChild(workload types.NamespacedName, s *groupSet) {
	key := s.child.setKey(workload.Namespace)
	if delete(g.children[key], workload); len(g.children[key]) == 0 {
		delete(g.children, key)
	}
}

// childrenOf returns the workloads whose pods name a DisaggregatedSet.
func (g *Groups) childrenOf(set types.NamespacedName) map[types.NamespacedName]childLabels {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.children[set])
}

// sorted returns the groups by index, those without one first.
func (s *groupSet) sorted() []*groupEntry {
	return slices.SortedFunc(maps.Values(s.entries), func(a, b *groupEntry) int {
		return cmp.Or(cmp.Compare(a.index, b.index), strings.Compare(a.label, b.label))
	})
}

// CountRestart counts a restart of a group by the driver to get it off this revision.
func (g *Groups) CountRestart(set types.NamespacedName, group, revision string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		return
	}
	if e := s.entries[group]; e != nil {
		e.memory.countRestart(revision)
		s.last = nil
	}
}

// forget drops the groups of a deleted workload. Groups with pods stay until these are deleted.
func (g *Groups) forget(set types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		return
	}
	s.last = nil
	for label, e := range s.entries {
		e.memory = groupMemory{}
		// A pod event may be newer than the last observation, and a group with pods must stay.
		if e.dirty {
			g.recompute(set, e)
		}
		if !e.exists {
			delete(s.entries, label)
		}
	}
	if len(s.entries) == 0 {
		g.dropChild(set, s)
		delete(g.sets, set)
	}
}

// groupsOf returns a workload's groups by index: those that exist, and a placeholder for each that existed before. A group that has been
// ready for minReady is remembered as having been ready once. sizes are the numbers of pods of a group by revision; size is that of
// the template in the spec. The result is shared and must not be modified.
func (g *Groups) groupsOf(set types.NamespacedName, replicas, size int, sizes map[string]int, now time.Time, minReady time.Duration) []plan.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		return nil
	}
	// The last result holds at any later time: it is kept only if no group's state depends on the time.
	if s.last != nil && s.replicas == replicas && s.size == size && maps.Equal(s.sizes, sizes) {
		return s.last
	}
	all := make([]plan.Group, 0, len(s.entries))
	final := true
	s.unnumbered = ""
	for _, e := range s.sorted() {
		if e.dirty {
			g.recompute(set, e)
		}
		numbered, surplus := e.index >= 0, e.index >= replicas
		if surplus || !numbered && !e.exists {
			// A scale-down or the end of a surge deletes it, or it has no number to be recreated under.
			e.memory = groupMemory{}
		}
		switch {
		case e.exists:
			out := e.groupOfSize(size, sizes)
			if !surplus {
				settled := e.memory.update(&out, e.brokenSince, now, minReady)
				final = final && settled
			}
			if !numbered {
				s.unnumbered = e.label
			}
			all = append(all, out)
		case numbered && !surplus:
			out := plan.MissingGroup(set.Name, e.index, size)
			e.memory.update(&out, e.brokenSince, now, minReady)
			all = append(all, out)
		default:
			// No pod is left, and no number below replicas: LWS does not recreate it.
			delete(s.entries, e.label)
		}
	}
	// LWS numbers either all groups of a workload or none (groupIdentity Hash). These are numbered in the order of their labels.
	if s.unnumbered != "" {
		for i := range all {
			all[i].Index = i
		}
	}
	if final {
		s.last, s.replicas, s.size, s.sizes = all, replicas, size, sizes
	}
	return all
}

// unnumbered returns the group-index label of a group of the workload that LWS does not number, as of the last observation, ""
// if there is none.
func (g *Groups) unnumbered(set types.NamespacedName) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		return ""
	}
	return s.unnumbered
}

// groupOfSize returns the group as it is in a workload whose spec has groups of size.
func (e *groupEntry) groupOfSize(size int, sizes map[string]int) plan.Group {
	out := e.group
	// Without LWS's annotation on a pod the size in the spec is the best that is known.
	out.Pods = cmp.Or(e.size, size)
	e.built.checkBuilt(&out, sizes, size)
	setComplete(&out)
	return out
}

// recompute derives a group from its pods.
func (g *Groups) recompute(set types.NamespacedName, e *groupEntry) {
	e.dirty = false
	pods := g.podsOf(set, e.label)
	if len(pods) == 0 {
		// The memory stays: it tells since when the group has been lost.
		e.exists, e.brokenSince, e.startup = false, time.Time{}, 0
		return
	}
	// LWS names leaders by index, so the name is known while the leader is missing.
	next := plan.Group{Index: e.index, Leader: set.Name + "-" + e.label}
	var leader *Pod
	size, ready := 0, 0
	sameRevision := true
	var lastReady, firstUnready time.Time
	created := pods[0].CreationTimestamp.Time
	for _, pod := range pods {
		if pod.leader {
			leader = pod
		}
		if pod.CreationTimestamp.Time.Before(created) {
			created = pod.CreationTimestamp.Time
		}
		e.memory.recordExit(pod.exit)
		size = max(size, pod.size)
		if pod.ready {
			ready++
			if pod.since.After(lastReady) {
				lastReady = pod.since
			}
		} else if firstUnready.IsZero() || pod.since.Before(firstUnready) {
			firstUnready = pod.since
		}
		sameRevision = sameRevision && pod.Revision == pods[0].Revision
		next.TerminatingReady = next.TerminatingReady || pod.terminatingReady
	}
	next.ReadyPods = ready
	next.ReadySince = lastReady
	if leader != nil {
		next.Revision, next.Leader, next.Serving = leader.Revision, leader.Name, leader.Serving
		next.Terminating = leader.Terminating
	}
	next.Rollouts = distinctLabels(pods, next.Revision)
	next.Pod, next.Reason, next.Message = groupObstacle(pods, leader, sameRevision)
	e.exists, e.size, e.group = true, size, next
	e.built = builtFor(pods, next.Revision)
	e.brokenSince, e.startup = firstUnready, 0
	if ready == len(pods) {
		e.startup = max(lastReady.Sub(created), time.Second) // the API's times are whole seconds
	}
}

// setComplete decides whether the group is complete, now that its size is known.
func setComplete(g *plan.Group) {
	if g.Reason == "" && g.ReadyPods < g.Pods { // no pod is unready, so the others do not exist
		g.Reason, g.Pod = plan.ReasonPodMissing, g.Leader
		g.Message = fmt.Sprintf("only %d of the group's %d pods exist", g.ReadyPods, g.Pods)
	}
	g.Ready = g.Reason == ""
	if !g.Ready {
		g.ReadySince = time.Time{}
	}
}

func groupIndex(label string) int {
	i, err := strconv.Atoi(label)
	// Atoi accepts "+7" and "07", which would be a second group 7.
	if err != nil || i < 0 || strconv.Itoa(i) != label {
		return -1
	}
	return i
}

// groupObstacle returns the pod that keeps the group from being ready: the leader first, since workers may wait for it, then the pod
// with the lowest name. All are empty if every existing pod is ready.
func groupObstacle(pods []*Pod, leader *Pod, sameRevision bool) (pod, reason, message string) {
	leaderEnded := leader != nil && leader.Terminating && leader.address == "" // its containers have ended
	if leader == nil || leaderEnded {
		if worker := terminatingWorker(pods); worker != nil {
			return worker.Name, worker.reason, worker.message
		}
	}
	if leader == nil {
		return "", plan.ReasonLeaderMissing, "the leader pod has not been created yet"
	}
	worst := leader
	// Workers wait for the leader, so its reason comes before theirs.
	if leader.ready {
		worst = firstByName(pods, func(p *Pod) bool { return !p.ready })
	}
	switch {
	case worst != nil:
		return worst.Name, worst.reason, worst.message
	case !sameRevision:
		return leader.Name, plan.ReasonMixedRevisions, "its pods are at different revisions; the group is being replaced"
	}
	if left := leftOverWorker(pods, leader); left != nil {
		return left.Name, plan.ReasonWorkerLeftOver, "it belonged to an earlier leader of the group, and is about to be deleted"
	}
	return "", "", ""
}

// leftOverWorker returns a worker that is older than its leader. LWS creates workers after their leader, so such a worker belongs to an
// earlier one, and is deleted with its StatefulSet when the garbage collector gets to it. Nil means that there is none.
func leftOverWorker(pods []*Pod, leader *Pod) *Pod {
	return firstByName(pods, func(p *Pod) bool { return leader.CreationTimestamp.Sub(p.CreationTimestamp.Time) > clockSkew })
}

// firstByName returns the pod with the lowest name among those that match, nil if none does.
func firstByName(pods []*Pod, match func(*Pod) bool) (first *Pod) {
	for _, p := range pods {
		if match(p) && (first == nil || p.Name < first.Name) {
			first = p
		}
	}
	return first
}

// clockSkew is how far the clocks of API servers, which set the times of creation, may be apart.
const clockSkew = 5 * time.Second

// terminatingWorker returns a worker that is being deleted. A new leader may be waiting for it, or the deletion of the present leader. Nil means
// that none is.
func terminatingWorker(pods []*Pod) *Pod {
	return firstByName(pods, func(p *Pod) bool { return !p.leader && p.Terminating })
}

// Startup returns the median time from the creation of a group's first pod until all its pods were ready, and the number of
// groups. The median is robust against one group that waited for a node. Zero means that none is ready.
func (g *Groups) Startup(set types.NamespacedName, replicas int) (time.Duration, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sets[set]
	if s == nil {
		return 0, 0
	}
	var all []time.Duration
	for _, e := range s.entries {
		if e.dirty {
			g.recompute(set, e)
		}
		if e.index >= 0 && e.index < replicas && e.startup > 0 {
			all = append(all, e.startup)
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2], len(all)
}

// UnreadyWorker returns a worker that keeps the group of a ready leader from being ready, or nil if there is none, or the group lacks a pod
// anyway.
func (g *Groups) UnreadyWorker(leader *Pod) *Pod {
	pods := g.podsOf(leader.Workload(), leader.Group)
	// A pod that is missing or terminating is recreated anyway.
	if !leader.ready || len(pods) < leader.size || slices.ContainsFunc(pods, func(p *Pod) bool { return p.Terminating }) {
		return nil
	}
	return firstByName(pods, func(p *Pod) bool { return !p.ready })
}
