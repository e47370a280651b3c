// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

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

// measureProgress counts. It never fails: what can't be read counts as nothing and is reported by who decides.
func measureProgress(o Observation) Progress {
	s := Progress{}
	var update string
	if o.Record != nil && o.Record.Release != nil {
		update = o.Record.Release.UpdateRevision
		s.ProgressAt = o.Record.Release.PhaseAt
		s.planned(o)
		s.measureGoal(o)
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
func (s *Progress) exists(g Group) (ready int) {
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
	if o.release() == nil || o.completesSecondSet() {
		return false
	}
	p := o.Record.Release.Phase
	return p == record.Promoting || p == record.Promoted || p == record.Nothing
}

func (s *Progress) planned(o Observation) {
	t := o.Target()
	if t != nil && t.At.After(s.ProgressAt) {
		s.ProgressAt = t.At
	}
	if ownsUpdate(o) {
		s.Planned, s.Desired = o.Stable.Replicas, o.Stable.Replicas
		return
	}
	if o.handingOver() {
		s.Planned = o.Record.Release.Groups
		if c := o.canary(); c != nil {
			s.Desired = c.Replicas
		}
		return
	}
	// An unreadable target never gets here: observe refuses it.
	if s.Planned, _ = t.Planned(o.Stable.Replicas); o.completesSecondSet() {
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
func (s *Progress) count(o Observation, of Workload, g Group) {
	s.Updated++
	if g.Index < of.Replicas && g.available(o.Now, o.Policy.MinReady) {
		s.UpdatedReady++
	}
}
