// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"maps"
	"slices"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Set is one LeaderWorkerSet, its leader StatefulSet and its groups. Replicas, Rolling and Template are its spec, which the
// caller changes; the rest follows with [Set.Settle].
type Set struct {
	Replicas int
	Rolling  lws.RollingUpdateConfiguration
	// Template is the revision of the template.
	Template string
	// Groups exist, by index. The caller makes them ready.
	Groups map[int]*Group
	// Parallel: the cluster has the feature gate MaxUnavailableStatefulSet. Without it, as by default, a StatefulSet
	// updates one group after the other.
	Parallel bool
	// Reclaim is the rule for surge groups.
	Reclaim Reclaim
	// Watch is told what LWS asks of the leader StatefulSet, each time that it changes. May be nil.
	Watch func(partition, replicas int)

	leaders leaders
}

// Group is a leader and its workers.
type Group struct {
	Revision string
	Ready    bool
}

// NewSet is a set at rest: every group is there, at the template's revision and ready.
func NewSet(replicas int, rolling lws.RollingUpdateConfiguration, template string) *Set {
	s := &Set{Replicas: replicas, Rolling: rolling, Template: template, Groups: map[int]*Group{}}
	for i := range replicas {
		s.Groups[i] = &Group{Revision: template, Ready: true}
	}
	s.leaders = leaders{replicas: replicas, noted: replicas, update: template, current: template}
	s.leaders.partition = s.limits().Partition
	return s
}

func (s *Set) limits() Limits { return LimitsOf(s.Rolling, s.Replicas) }

// Partition is what LWS has set on the leader StatefulSet.
func (s *Set) Partition() int { return s.leaders.partition }

// LeaderReplicas are the replicas that LWS has set on the leader StatefulSet: the wanted ones, and the surge.
func (s *Set) LeaderReplicas() int { return s.leaders.replicas }

// Settle has both controllers work until they wait for a group or for a change of the spec. It returns the indices of groups
// that are new since, sorted.
func (s *Set) Settle() []int {
	before := maps.Clone(s.Groups)
	for s.reconcile() || s.run() {
	}
	var fresh []int
	for i, g := range s.Groups {
		if before[i] != g {
			fresh = append(fresh, i)
		}
	}
	slices.Sort(fresh)
	return fresh
}

// reconcile is LWS's, as far as it decides about the leader StatefulSet. It says whether anything changed.
func (s *Set) reconcile() bool {
	l, before := s.limits(), s.leaders
	updated := s.leaders.update != s.Template
	s.leaders.update = s.Template
	partition, replicas := l.parameters(s.leaders, s.states(), updated, s.Reclaim)
	s.leaders.partition, s.leaders.replicas = max(partition, l.Partition), replicas
	s.leaders.noted, s.leaders.unavailable = s.Replicas, max(l.Batch(), 1)
	if s.Watch != nil && (s.leaders.partition != before.partition || s.leaders.replicas != before.replicas) {
		s.Watch(s.leaders.partition, s.leaders.replicas)
	}
	return s.leaders != before
}

func (s *Set) states() []state {
	states := make([]state, s.leaders.replicas)
	for i := range states {
		if g := s.Groups[i]; g != nil {
			states[i] = state{ready: g.Ready, updated: g.Revision == s.leaders.update}
		}
	}
	return states
}

// run is one pass of the StatefulSet controller. What is deleted is gone at once: how long a group takes to end is not
// part of the model. It says whether anything changed.
func (s *Set) run() bool {
	changed := false
	for _, i := range slices.Sorted(maps.Keys(s.Groups)) {
		if i >= s.leaders.replicas {
			delete(s.Groups, i)
			changed = true
		}
	}
	for i := range s.leaders.replicas {
		if s.Groups[i] == nil {
			s.Groups[i] = &Group{Revision: s.leaders.of(i)}
			changed = true
		}
	}
	if s.update() {
		return true
	}
	return s.complete() || changed
}

// update deletes groups that are to come back at the update revision.
func (s *Set) update() bool {
	changed, room := false, s.leaders.unavailable
	for _, g := range s.Groups {
		if !g.Ready {
			room--
		}
	}
	for i := s.leaders.replicas - 1; i >= s.leaders.partition; i-- {
		g := s.Groups[i]
		old := g.Revision != s.leaders.update
		switch {
		case s.Parallel && old && room > 0:
			room--
		case !s.Parallel && old:
		case !s.Parallel && !g.Ready:
			return changed // it waits for each group, from the last to the first
		default:
			continue
		}
		delete(s.Groups, i)
		if changed = true; !s.Parallel {
			return true
		}
	}
	return changed
}

// complete: once every group is updated and ready the update revision is the current one, whatever the partition.
func (s *Set) complete() bool {
	if s.leaders.current == s.leaders.update {
		return false
	}
	for i := range s.leaders.replicas {
		if g := s.Groups[i]; g == nil || !g.Ready || g.Revision != s.leaders.update {
			return false
		}
	}
	s.leaders.current = s.leaders.update
	return true
}

// of is the revision at which the StatefulSet makes a group.
func (l leaders) of(index int) string {
	if index < l.partition {
		return l.current
	}
	return l.update
}

// Unready are the groups that exist and are not ready, by index.
func (s *Set) Unready() []int {
	var out []int
	for i, g := range s.Groups {
		if !g.Ready {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return out
}

// Ready is how many groups are.
func (s *Set) Ready() int { return len(s.Groups) - len(s.Unready()) }

// Updated says whether every group that is wanted is at the template's revision and ready, and there is no other.
func (s *Set) Updated() bool {
	return len(s.Groups) == s.Replicas && s.UpdatedReady() == s.Replicas
}

// UpdatedReady is how many groups are ready at the template's revision.
func (s *Set) UpdatedReady() int {
	n := 0
	for _, g := range s.Groups {
		if g.Ready && g.Revision == s.Template {
			n++
		}
	}
	return n
}
