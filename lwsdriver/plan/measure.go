// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

type rolling = lws.RollingUpdateConfiguration

// revisions are the distinct revisions of the groups that exist, sorted.
func (w Workload) revisions() []string {
	var all []string
	for _, g := range w.Groups {
		if g.Revision != "" && !slices.Contains(all, g.Revision) {
			all = append(all, g.Revision)
		}
	}
	slices.Sort(all)
	return all
}

// existing is how many groups there are, at any revision.
func (w Workload) existing() int {
	n := 0
	for _, g := range w.Groups {
		if g.Revision != "" {
			n++
		}
	}
	return n
}

// StableRevisions are the revisions at which the workload's groups are. More than one: LWS had begun to roll before it
// was held.
func (o Observation) StableRevisions() []string { return o.Stable.revisions() }

// measure counts. It never fails: what can't be read counts as nothing and is reported by who decides.
func measure(o Observation) Standing {
	s := Standing{}
	var update string
	if o.Record != nil && o.Record.Release != nil {
		update = o.Record.Release.UpdateRevision
		s.ProgressAt = o.Record.Release.PhaseAt
		s.planned(o)
		s.pursue(o)
	}
	own, ready := ownsUpdate(o) || o.inPlace(), 0
	for _, g := range o.Stable.Groups {
		ready += s.exists(g)
		switch {
		case g.at(update) && own:
			s.count(o, o.Stable, g)
		case !g.at(update) && g.Ready:
			s.StableReady++
		}
	}
	for _, w := range o.Added {
		for _, g := range w.Groups {
			ready += s.exists(g)
			// A group from before somebody's edit of the canary was put back is not the release's.
			if !own && w.Carries == update && g.at(w.Revision) {
				s.count(o, w, g)
			}
		}
	}
	if ready > 0 {
		s.Weight = (200*(ready-s.StableReady) + ready) / (2 * ready)
	}
	s.share(o)
	return s
}

// exists counts a group if it does, and returns 1 if it is ready.
func (s *Standing) exists(g Group) (ready int) {
	if g.Revision != "" {
		s.Total++
	}
	if g.Ready {
		return 1
	}
	return 0
}

// ownsUpdate says whether all of the user's own groups are to be at the update revision: from promotion on, unless those
// beside them have to be complete first.
func ownsUpdate(o Observation) bool {
	if o.release() == nil || o.growing() {
		return false
	}
	p := o.Record.Release.Phase
	return p == record.Promoting || p == record.Promoted || p == record.Nothing
}

func (s *Standing) planned(o Observation) {
	t := o.Target()
	if t != nil && t.At.After(s.ProgressAt) {
		s.ProgressAt = t.At
	}
	if ownsUpdate(o) {
		s.Planned, s.Desired = o.Stable.Replicas, o.Stable.Replicas
		return
	}
	if o.adopting() {
		s.Planned = o.Record.Release.Groups
		if c := o.canary(); c != nil {
			s.Desired = c.Replicas
		}
		return
	}
	// An unreadable target never gets here: observe refuses it.
	if s.Planned, _ = t.Planned(o.Stable.Replicas); o.growing() {
		s.Planned = o.Stable.Replicas
	}
	s.Threshold = o.Policy.Threshold(s.Planned)
	switch c := o.canary(); {
	case o.inPlace():
		s.Desired = max(o.Stable.Replicas-int(ptr.Deref(o.Stable.Rolling.Partition, 0)), 0)
	case c != nil:
		s.Desired = c.Replicas
	}
}

// count adds a group at the update revision. One that a scale-down or the end of a surge is about to take exists, but
// nobody may rely on it.
func (s *Standing) count(o Observation, of Workload, g Group) {
	s.Updated++
	if g.Index < of.Replicas && g.available(o.Now, o.Policy.MinReady) {
		s.UpdatedReady++
	}
}

// goal is the workload whose groups, from an index on, the release waits for at this moment, and the revision that they
// must have. Nil: it is not there yet.
func (o Observation) goal(planned int) (w *Workload, from int, revision string) {
	switch c := o.canary(); {
	case o.Record.Release.Phase == record.Returning:
		return &o.Stable, 0, o.Record.Release.StableRevision
	case ownsUpdate(o):
		return &o.Stable, 0, o.Record.Release.UpdateRevision
	case o.inPlace() && len(o.abandoned()) > 0:
		return &o.Stable, 0, o.Record.Release.StableRevision
	case o.inPlace():
		return &o.Stable, o.Stable.Replicas - planned, o.Record.Release.UpdateRevision
	case c != nil:
		return c, 0, c.Revision
	}
	return nil, 0, ""
}

// pursue measures how near the goal is, and since when it has not come nearer.
func (s *Standing) pursue(o Observation) {
	w, from, revision := o.goal(s.Planned)
	if w == nil {
		return
	}
	for _, g := range w.Groups {
		if g.Index < from || g.Index >= w.Replicas {
			continue
		}
		if !g.at(revision) {
			s.lost = append(s.lost, g.LostAt)
			if !g.Ready { // one that serves at another revision waits for its turn
				s.suspect(g)
			}
			continue
		}
		if g.FirstReady.After(s.ProgressAt) {
			s.ProgressAt = g.FirstReady
		}
		if g.Ready {
			s.ready++
		}
		if g.available(o.Now, o.Policy.MinReady) {
			s.available++
			continue
		}
		s.lost = append(s.lost, g.LostAt)
		s.suspect(g)
		if left := g.ReadySince.Add(o.Policy.MinReady).Sub(o.Now); g.Ready && (s.nextReady == 0 || left < s.nextReady) {
			s.nextReady = max(left, time.Millisecond)
		}
	}
	slices.SortFunc(s.lost, time.Time.Compare)
}

// stuckSince is since when the goal has not come nearer: no new group became ready, and more than the tolerated ones
// have been missing.
func (s Standing) stuckSince(tolerated int) time.Time {
	since := s.ProgressAt
	if tolerated < len(s.lost) && s.lost[tolerated].After(since) {
		since = s.lost[tolerated]
	}
	return since
}

// obstacles names the first group that is not ready, and how many more there are.
func obstacles(groups []Group) string {
	var first *Group
	more := 0
	for i := range groups {
		switch g := &groups[i]; {
		case g.Ready:
		case first == nil:
			first = g
		default:
			more++
		}
	}
	if first == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "; group %d: ", first.Index)
	if first.Pod != "" {
		fmt.Fprintf(&b, "pod %s: ", first.Pod)
	}
	b.WriteString(first.Message)
	if more > 0 {
		fmt.Fprintf(&b, "; %d more not ready", more)
	}
	return b.String()
}
