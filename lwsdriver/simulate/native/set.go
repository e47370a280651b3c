// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"maps"
	"slices"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Set is one LeaderWorkerSet, its leader StatefulSet and its groups. The caller changes its spec, which is Replicas,
// Rolling and Template; [Set.Reconcile] does the rest.
type Set struct {
	Replicas int
	Rolling  lws.RollingUpdateConfiguration
	// Template is the revision of the template.
	Template string
	// Groups are the existing groups, by index. The caller makes them ready.
	Groups map[int]*Group
	// Parallel is true if the cluster has the feature gate MaxUnavailableStatefulSet. Without it, which is the default, a
	// StatefulSet updates one group at a time.
	Parallel bool

	leaders         Leaders
	update, current string // revisions of the leader StatefulSet
}

// Group is a leader and its workers.
type Group struct {
	Revision string
	Ready    bool
}

// NewSet returns a set at rest: every group is ready at the template's revision.
func NewSet(replicas int, rolling lws.RollingUpdateConfiguration, template string) *Set {
	s := &Set{Replicas: replicas, Rolling: rolling, Template: template, Groups: map[int]*Group{}}
	for i := range replicas {
		s.Groups[i] = &Group{Revision: template, Ready: true}
	}
	s.leaders = Leaders{Replicas: replicas, Noted: replicas, Partition: s.limits().Partition}
	s.update, s.current = template, template
	return s
}

func (s *Set) limits() Limits { return LimitsOf(s.Rolling, s.Replicas) }

// Partition returns the partition that LWS has set on the leader StatefulSet.
func (s *Set) Partition() int { return s.leaders.Partition }

// LeaderReplicas returns the replicas that LWS has set on the leader StatefulSet: the wanted ones and the surge.
func (s *Set) LeaderReplicas() int { return s.leaders.Replicas }

// Reconcile runs both controllers until they wait for a group or for a change of the spec. It returns the indices of new
// groups, sorted.
func (s *Set) Reconcile() []int {
	before := maps.Clone(s.Groups)
	for s.reconcile() || s.run() {
	}
	var fresh []int
	for i, g := range s.Groups {
		// A group that was recreated at the same index is new, too.
		if before[i] != g {
			fresh = append(fresh, i)
		}
	}
	slices.Sort(fresh)
	return fresh
}

// reconcile is LWS's, as far as it concerns the leader StatefulSet. It reports whether anything changed.
func (s *Set) reconcile() bool {
	before, updated := s.leaders, s.update != s.Template
	s.update = s.Template
	s.leaders = s.limits().Reconcile(before, s.states(), updated)
	return updated || s.leaders != before
}

func (s *Set) states() []ReplicaState {
	states := make([]ReplicaState, s.leaders.Replicas)
	for i := range states {
		if g := s.Groups[i]; g != nil {
			states[i] = ReplicaState{Ready: g.Ready, Updated: g.Revision == s.update}
		}
	}
	return states
}

// run is one pass of the StatefulSet controller. Deleted groups are gone at once: the model has no termination. It
// reports whether anything changed.
func (s *Set) run() bool {
	changed := false
	for _, i := range slices.Sorted(maps.Keys(s.Groups)) {
		if i >= s.leaders.Replicas {
			delete(s.Groups, i)
			changed = true
		}
	}
	for i := range s.leaders.Replicas {
		if s.Groups[i] == nil {
			s.Groups[i] = &Group{Revision: s.of(i)}
			changed = true
		}
	}
	return s.replace() || s.complete() || changed
}

// replace deletes groups, to be recreated at the update revision.
func (s *Set) replace() bool {
	changed, room := false, s.leaders.Unavailable
	for _, g := range s.Groups {
		if !g.Ready {
			room--
		}
	}
	for i := s.leaders.Replicas - 1; i >= s.leaders.Partition; i-- {
		g := s.Groups[i]
		old := g.Revision != s.update
		switch {
		case s.Parallel && old && room > 0:
			// With the feature gate the controller counts groups that are down already against maxUnavailable.
			room--
		case !s.Parallel && old:
		case !s.Parallel && !g.Ready:
			return changed // it waits for each group, from the last to the first
		default:
			continue
		}
		delete(s.Groups, i)
		// Without it the controller deletes one group, and waits until it is ready.
		if changed = true; !s.Parallel {
			return true
		}
	}
	return changed
}

// complete makes the update revision the current one once every group is updated and ready, whatever the partition. It
// reports whether it did.
func (s *Set) complete() bool {
	if s.current == s.update {
		return false
	}
	for i := range s.leaders.Replicas {
		if g := s.Groups[i]; g == nil || !g.Ready || g.Revision != s.update {
			return false
		}
	}
	s.current = s.update
	return true
}

// of returns the revision at which the StatefulSet creates a group.
func (s *Set) of(index int) string {
	if index < s.leaders.Partition {
		return s.current
	}
	return s.update
}

// Unready returns the groups that exist and are not ready, by index.
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

// Ready returns how many groups are ready.
func (s *Set) Ready() int { return len(s.Groups) - len(s.Unready()) }
