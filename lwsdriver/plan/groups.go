// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"iter"
	"slices"
)

// Replicas is a number that any editor of the spec may set to a million. So groups without pods are not objects: all that counts groups
// counts runs of missing ones at once.

// Reasons of a group that lacks pods, or its leader.
const (
	ReasonPodMissing    = "PodMissing"
	ReasonLeaderMissing = "LeaderMissing"
)

// ReasonWorkerLeftOver is the reason of a group with a worker of an earlier leader.
const ReasonWorkerLeftOver = "WorkerLeftOver"

// Wanted yields the groups below replicas, from an index on and in order. Of each run of missing groups that [Workload.Groups] leaves
// out, it yields the first with the length of the run; for every other group the number is 1.
func (w Workload) Wanted(from int) iter.Seq2[Group, int] {
	return func(yield func(Group, int) bool) {
		next := max(from, 0)
		for _, g := range w.Groups {
			if g.Index < from || g.Index >= w.Replicas {
				continue
			}
			if n := g.Index - next; n > 0 && !yield(w.MissingGroup(next), n) {
				return
			}
			if !yield(g, 1) {
				return
			}
			next = max(next, g.Index+1)
		}
		if n := w.Replicas - next; n > 0 {
			yield(w.MissingGroup(next), n)
		}
	}
}

// All yields what Wanted(0) does, and the groups above replicas after them.
func (w Workload) All() iter.Seq2[Group, int] {
	return func(yield func(Group, int) bool) {
		for g, n := range w.Wanted(0) {
			if !yield(g, n) {
				return
			}
		}
		for _, g := range w.Groups {
			if g.Index >= w.Replicas && !yield(g, 1) {
				return
			}
		}
	}
}

// hasSurge reports whether there are groups above replicas.
func (w Workload) hasSurge() bool {
	return slices.ContainsFunc(w.Groups, func(g Group) bool { return g.Index >= w.Replicas })
}

// Awaited yields what All does, but not the units that units of the update revision have replaced: nothing creates them unless the release is
// rolled back.
func (o Observation) Awaited(w Workload) iter.Seq2[Group, int] {
	if w.Name == o.Stable.Name && o.replacesUnits() && !o.shiftsBack() {
		return onePerGroup(w.Groups)
	}
	return w.All()
}

// MissingGroup returns a group of which no pod exists. In a DisaggregatedSet it is one of a child, if that exists.
func (w Workload) MissingGroup(index int) Group {
	at := index
	for _, p := range w.Parts {
		if at >= p.Groups {
			at -= p.Groups
			continue
		}
		if p.Child != "" {
			g := MissingGroup(p.Child, at, w.Size)
			g.Index = index
			return g
		}
		break
	}
	return MissingGroup(w.Name, index, w.Size)
}

// MissingGroup returns a group of a workload of which no pod exists.
func MissingGroup(workload string, index, size int) Group {
	leader := fmt.Sprintf("%s-%d", workload, index)
	return Group{Index: index, Leader: leader, Pods: size, Pod: leader, Reason: ReasonPodMissing, Message: "has not been created yet"}
}

// onePerGroup yields each group with the number 1.
func onePerGroup(groups []Group) iter.Seq2[Group, int] {
	return func(yield func(Group, int) bool) {
		for _, g := range groups {
			if !yield(g, 1) {
				return
			}
		}
	}
}
