// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"slices"
	"time"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// State is the state of a group in an update.
type State int

const (
	// Absent groups do not exist.
	Absent State = iota
	// Old groups are ready at the old revision.
	Old
	// Updating groups are not ready.
	Updating
	// Updated groups are ready at the new revision.
	Updated
)

// Stage is the state of a set while both controllers wait.
type Stage struct {
	// At is the time since the update began. Zero with an order.
	At time.Duration
	// Partition and Replicas are those of the leader StatefulSet.
	Partition, Replicas int
	// Groups are the states of all groups, by index, as long as the largest stage.
	Groups []State
	// Ready is how many groups are ready, at either revision.
	Ready int
}

// Settings is what an update depends on.
type Settings struct {
	Replicas int
	Rolling  lws.RollingUpdateConfiguration
	// Startup is how long each group takes until it is ready.
	Startup time.Duration
	// Order is the order in which groups become ready, one at a time: of the groups that are not ready the first in
	// Order, else the lowest index. Nil means each after Startup.
	Order    []int
	Parallel bool
}

// Rollout is a complete update.
type Rollout struct {
	Limits
	// Stages begin and end with the set at rest, or held by its partition.
	Stages []Stage
	// Trail is the sequence of parameters of the leader StatefulSet, including those at rest.
	Trail []Parameters
	// Waves is how many times new groups became ready; with an order, each group is a wave.
	Waves int
	// MinReady is the fewest ready groups of all stages, MaxGroups the most existing ones.
	MinReady, MaxGroups int
	// Time is the duration of the update. Zero with an order.
	Time time.Duration
}

// Parameters are a partition and a number of replicas of the leader StatefulSet.
type Parameters struct{ Partition, Replicas int }

// roll is a Rollout in progress.
type roll struct {
	Rollout

	set *Set
	s   Settings
	now time.Duration
	due map[*Group]time.Duration
}

const oldRevision, newRevision = "old", "new"

// Roll takes a set with a changed template through the update. Settings that LWS refuses, such as a maxUnavailable and
// maxSurge that both round to 0, are an error.
func Roll(s Settings) (Rollout, error) {
	limits := LimitsOf(s.Rolling, s.Replicas)
	if s.Replicas > 0 && limits.Batch() == 0 {
		return Rollout{}, fmt.Errorf("maxUnavailable %s and maxSurge %s both round to 0 of %d replicas, which LeaderWorkerSet refuses",
			s.Rolling.MaxUnavailable.String(), s.Rolling.MaxSurge.String(), s.Replicas)
	}
	if s.Replicas < 0 || limits.MaxUnavailable < 0 || limits.MaxSurge < 0 || limits.Partition < 0 {
		return Rollout{}, fmt.Errorf("replicas, partition, maxUnavailable and maxSurge must not be negative")
	}
	r := &roll{set: NewSet(s.Replicas, s.Rolling, oldRevision), s: s, due: map[*Group]time.Duration{}}
	r.set.Parallel = s.Parallel
	r.Limits, r.MinReady = limits, s.Replicas
	r.note()
	r.Trail = []Parameters{{r.set.Partition(), r.set.LeaderReplicas()}}
	r.set.Watch = func(partition, replicas int) { r.Trail = append(r.Trail, Parameters{partition, replicas}) }
	r.set.Template = newRevision
	for {
		r.reconcile()
		if len(r.set.Unready()) == 0 {
			return r.finish(), nil
		}
		r.readyNext()
	}
}

func (r *roll) reconcile() {
	for _, i := range r.set.Reconcile() {
		r.due[r.set.Groups[i]] = r.now + r.s.Startup
	}
	r.note()
}

// readyNext makes the next groups ready.
func (r *roll) readyNext() {
	r.Waves++
	unready := r.set.Unready()
	if r.s.Order != nil {
		r.set.Groups[Next(unready, r.s.Order)].Ready = true
		return
	}
	r.now = r.due[r.set.Groups[slices.MinFunc(unready, func(a, b int) int {
		return int(r.due[r.set.Groups[a]] - r.due[r.set.Groups[b]])
	})]]
	for _, i := range unready {
		if g := r.set.Groups[i]; r.due[g] == r.now {
			g.Ready = true
		}
	}
}

// Next returns the group that becomes ready next in an order.
func Next(unready, order []int) int {
	for _, i := range order {
		if slices.Contains(unready, i) {
			return i
		}
	}
	return unready[0]
}

// note adds a stage.
func (r *roll) note() {
	stage := Stage{At: r.now, Partition: r.set.Partition(), Replicas: r.set.LeaderReplicas(), Ready: r.set.Ready()}
	for i := range r.set.LeaderReplicas() {
		stage.Groups = append(stage.Groups, r.set.stateOf(i))
	}
	r.MinReady, r.MaxGroups = min(r.MinReady, stage.Ready), max(r.MaxGroups, len(stage.Groups))
	r.Stages = append(r.Stages, stage)
}

func (s *Set) stateOf(i int) State {
	switch g := s.Groups[i]; {
	case g == nil:
		return Absent
	case !g.Ready:
		return Updating
	case g.Revision == newRevision:
		return Updated
	default:
		return Old
	}
}

func (r *roll) finish() Rollout {
	for i := range r.Stages {
		for len(r.Stages[i].Groups) < r.MaxGroups {
			r.Stages[i].Groups = append(r.Stages[i].Groups, Absent)
		}
	}
	if r.s.Order == nil {
		r.Time = r.now
	}
	return r.Rollout
}

// Iterations returns how many batches the replicas make. LWS may need more waves, see [Rollout.Waves], since surge groups
// are updated, too.
func (l Limits) Iterations() int {
	return (l.Replicas + l.Batch() - 1) / max(l.Batch(), 1)
}
