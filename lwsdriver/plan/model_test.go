// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// set is one LeaderWorkerSet of the model, with its leader StatefulSet and its groups. A template is a letter, and its
// revision hash the same letter; LWS records it when it next reconciles.
type set struct {
	name, uid string
	version   int // metadata.resourceVersion
	observed  int // the version that LWS acted on last

	replicas int
	template string
	rolling  rolling
	deleting bool
	// autoscaled: an autoscaler wrote replicas last. edited: another client than the driver did.
	autoscaled, edited bool

	// Of an added one.
	carries, made string
	held          bool
	foreground    bool
	target        *record.Target

	leaders statefulSet
	groups  map[int]*group

	// failing are the groups that never become ready at a revision, by index, until they are ready at another one.
	failing map[int]failure
}

// failure is why a group never becomes ready at a revision: its leader does not, or only its workers.
type failure struct {
	at     string
	leader bool
}

// statefulSet is what LWS has asked of the leader StatefulSet.
type statefulSet struct {
	exists              bool
	replicas, partition int
	unavailable         int
	noted               int    // the replicas annotation
	update, current     string // revisions
}

// group is a leader and its workers, seen as one.
type group struct {
	revision string
	ready    bool
	since    time.Time
	warmUp   int  // ticks until it is ready
	broken   bool // it does not become ready before faults stop
	serving  bool // its leader is marked
	mark     RolloutMark
}

// version changes with the leader's status.
func (g *group) version() int {
	v := 2 * int(g.since.Unix())
	if g.ready {
		v++
	}
	return v
}

func leaderName(s *set, i int) string { return fmt.Sprintf("%s-%d", s.name, i) }

// revision returns what observe finds: the hash once LWS has recorded the template.
func (s *set) revision() string {
	if s.leaders.exists && s.leaders.update == s.template {
		return s.template
	}
	return ""
}

func (s *set) states() []replicaState {
	states := make([]replicaState, s.leaders.replicas)
	for i := range states {
		if g := s.groups[i]; g != nil {
			states[i] = replicaState{ready: g.ready, updated: g.revision == s.leaders.update}
		}
	}
	return states
}

type replicaState struct{ ready, updated bool }

// reconcile is LWS v0.9.0's Reconcile, as far as it decides about the leader StatefulSet.
func (s *set) reconcile() {
	if s.deleting {
		return
	}
	s.observed = s.version
	l := &s.leaders
	if !l.exists {
		*l = statefulSet{exists: true, current: s.template, update: s.template}
		l.partition, l.replicas = int(ptr.Deref(s.rolling.Partition, 0)), s.replicas
	} else {
		updated := l.update != s.template
		l.update = s.template
		partition, replicas := s.rollingUpdateParameters(updated)
		l.partition, l.replicas = max(partition, int(ptr.Deref(s.rolling.Partition, 0))), replicas
	}
	l.noted = s.replicas
	l.unavailable = max(s.maxUnavailable()+s.maxSurge(), 1)
}

func (s *set) maxUnavailable() int { return scaled(s.rolling.MaxUnavailable, s.replicas, false) }

func (s *set) maxSurge() int { return min(scaled(s.rolling.MaxSurge, s.replicas, true), s.replicas) }

// rollingUpdateParameters is LWS's function of this name, case by case, for a StatefulSet that exists.
func (s *set) rollingUpdateParameters(updated bool) (partition, replicas int) {
	l, surge, unavailable := &s.leaders, s.maxSurge(), s.maxUnavailable()
	want := func(unready int) int {
		if unready <= surge {
			return s.replicas + max(unready-unavailable, 0)
		}
		return s.replicas + surge
	}
	if updated {
		if l.replicas < s.replicas {
			return min(s.replicas, l.replicas), s.replicas
		}
		return min(s.replicas, l.replicas), want(s.replicas)
	}
	if l.partition == 0 && l.replicas == s.replicas {
		return 0, s.replicas
	}
	if l.replicas < s.replicas {
		return l.partition, s.replicas
	}
	states := s.states()
	unready := 0
	for i := range s.replicas {
		if i >= len(states) || !states[i].ready || !states[i].updated {
			unready++
		}
	}
	if l.noted != s.replicas {
		return min(l.partition, s.replicas+surge), want(unready)
	}
	step := unavailable + surge - (s.replicas + surge - l.replicas)
	return rollingUpdatePartition(states, l.replicas, step, l.partition), want(unready)
}

// rollingUpdatePartition is LWS's function of this name.
func rollingUpdatePartition(states []replicaState, replicas, step, current int) int {
	done := 0
	for i := len(states) - 1; i >= 0 && states[i].ready && states[i].updated; i-- {
		done++
	}
	floor := max(replicas-done-step, 0)
	partition := floor
	for i := range floor {
		if !states[i].ready {
			partition++
		}
	}
	for i := min(partition, replicas-1); i >= floor; i-- {
		if states[i].ready && !states[i].updated {
			break
		}
		partition = i
	}
	return min(partition, current)
}

// run is one pass of the StatefulSet controller (parallel pod management, maxUnavailable honoured) and of the kubelets.
// It returns the ready groups that it deleted in order to update them.
func (s *set) run(now time.Time, warmUp int, faults bool) (deleted []int) {
	l := &s.leaders
	if s.deleting && s.foreground {
		for _, i := range slices.Sorted(maps.Keys(s.groups)) {
			delete(s.groups, i)
			break // one a tick
		}
		return nil
	}
	for i := range s.groups {
		if i >= l.replicas {
			delete(s.groups, i)
		}
	}
	unavailable := 0
	for i := range l.replicas {
		g := s.groups[i]
		switch {
		case g == nil:
			s.groups[i] = &group{revision: l.of(i), warmUp: warmUp}
		case !g.ready && (g.broken && faults || s.failing[i].at == g.revision):
		case !g.ready && g.warmUp > 0:
			g.warmUp--
		case !g.ready:
			g.ready, g.since, g.broken = true, now, false
			delete(s.failing, i)
		}
		if !s.leaderReady(i) {
			unavailable++
		}
	}
	for i := l.replicas - 1; i >= l.partition; i-- {
		switch g := s.groups[i]; {
		case g.revision == l.update:
		case !s.leaderReady(i):
			delete(s.groups, i)
		case unavailable < l.unavailable:
			unavailable++
			if g.ready {
				deleted = append(deleted, i)
			}
			delete(s.groups, i)
		}
	}
	s.complete()
	return deleted
}

// of returns the revision at which the StatefulSet creates an ordinal.
func (l *statefulSet) of(ordinal int) string {
	if ordinal < l.partition {
		return l.current
	}
	return l.update
}

// leaderReady reports whether a group's leader is ready, which is all that the StatefulSet observes.
func (s *set) leaderReady(i int) bool {
	g := s.groups[i]
	return g != nil && (g.ready || s.failing[i].at == g.revision && !s.failing[i].leader)
}

// complete: once every replica is updated and ready the update revision is the current one, whatever the partition.
func (s *set) complete() {
	for i := range s.leaders.replicas {
		if g := s.groups[i]; !s.leaderReady(i) || g.revision != s.leaders.update {
			return
		}
	}
	s.leaders.current = s.leaders.update
}

func (s *set) ready() int {
	n := 0
	for _, g := range s.groups {
		if g.ready {
			n++
		}
	}
	return n
}

// allReady reports whether every wanted group is ready and no other exists.
func (s *set) allReady() bool {
	for i := range s.replicas {
		if g := s.groups[i]; g == nil || !g.ready {
			return false
		}
	}
	return len(s.groups) == s.replicas
}

func (s *set) revisions() []string {
	var all []string
	for _, g := range s.groups {
		if !slices.Contains(all, g.revision) {
			all = append(all, g.revision)
		}
	}
	return all
}

// observeSet describes a set as lwsdriver's observer does.
func (c *cluster) observeSet(s *set) Workload {
	w := Workload{
		Name: s.name, Replicas: s.replicas, Size: 2, Revision: s.revision(), Rolling: s.rolling, Deleting: s.deleting,
		ScaledBy: s.scaledBy(), Autoscaled: s.autoscaled,
		Observed: s.observed == s.version, Carries: s.carries, HasFinalizer: s.held, Target: s.target, Drifted: s.carries == c.stable.template && s.template != s.made,
	}
	last := s.replicas
	for i := range s.groups {
		last = max(last, i+1)
	}
	for i := range last {
		view := MissingGroup(s.name, i, 2)
		if g := s.groups[i]; g != nil {
			view.Revision, view.Serving = g.revision, g.serving
			if r := c.restarts[i]; s == c.stable && r.at == g.revision {
				view.Restarts = r.n
			}
			if g.mark != (RolloutMark{}) {
				view.Marks = []RolloutMark{g.mark}
			}
			view.FirstReady = c.firstReady(s, i, g)
			view.LostAt = c.lostAt(s, i, g.ready, g.since)
			if g.ready {
				view.Ready, view.ReadySince, view.ReadyPods = true, g.since, 2
				view.Pod, view.Reason, view.Message = "", "", ""
			}
		} else if i >= s.replicas {
			continue
		} else if view.LostAt = c.lostAt(s, i, false, time.Time{}); view.LostAt.IsZero() {
			continue // it was never observed
		}
		w.Groups = append(w.Groups, view)
	}
	return w
}

func (s *set) scaledBy() string {
	switch {
	case s.autoscaled:
		return "kube-controller-manager"
	case s.carries != "" && !s.edited:
		return record.FieldManager
	}
	return "kubectl"
}

// firstReady is the observer's memory of when a group was first ready for minReady at its revision.
func (c *cluster) firstReady(s *set, index int, g *group) time.Time {
	key := fmt.Sprintf("%s/%d/%s", s.uid, index, g.revision)
	if _, known := c.seen[key]; !known && g.ready && c.now.Sub(g.since) >= c.policy.MinReady {
		c.seen[key] = g.since.Add(c.policy.MinReady)
	}
	return c.seen[key]
}

// lostAt is the observer's memory of since when a group has not been ready.
func (c *cluster) lostAt(s *set, index int, ready bool, since time.Time) time.Time {
	key := fmt.Sprintf("%s/%d", s.uid, index)
	switch _, known := c.lost[key]; {
	case ready && c.now.Sub(since) >= max(c.policy.MinReady, 10*time.Second):
		delete(c.lost, key)
	case !ready && !known && s.groups[index] != nil:
		c.lost[key] = c.now
	}
	return c.lost[key]
}

// acceptable reports whether LWS's validating webhook accepts a rolling update configuration.
func acceptable(r rolling, replicas int) bool {
	return replicas == 0 || scaled(r.MaxUnavailable, replicas, false) > 0 || scaled(r.MaxSurge, replicas, true) > 0
}

func rollingOf(partition int, unavailable, surge string) rolling {
	return rolling{
		Partition: ptr.To(int32(partition)), MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge),
	}
}
