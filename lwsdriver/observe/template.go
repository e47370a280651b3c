// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// readUnsafeChanges compares the template of the groups with the one in the spec. It reads the cached fields of the former from
// LWS's ControllerRevision, or else from the history.
func (o *Observer) readUnsafeChanges(s *Snapshot) {
	var release *record.Release
	if s.Record != nil {
		release = s.Record.Release
	}
	waiting := plan.WaitingRevision(s.Stable, release)
	if waiting == "" {
		return
	}
	var groups plan.LiveFields
	if r := o.Caches.newestRevision(s.StableObject, func(r *revisionView) bool { return r.hash == waiting }); r != nil {
		groups = r.live
	} else if h := o.History.Find(s, waiting); h != nil && h.Entry.Problem == "" {
		groups = h.live
	}
	if groups.Size > 0 {
		s.UnsafeChanges = plan.CompareLive(groups, plan.LiveFieldsOf(&s.StableObject.Spec.LeaderWorkerTemplate, s.StableObject.Spec.NetworkConfig))
	}
}

// sizes returns the number of pods of a group by revision, as far as LWS has recorded the templates.
func (c *Caches) sizes(w *lws.LeaderWorkerSet) map[string]int {
	revisions := c.revisionsOf(w)
	all := make(map[string]int, len(revisions))
	for _, r := range revisions {
		if r.live.Size > 0 {
			all[r.hash] = r.live.Size
		}
	}
	return all
}

// built is what LWS built the pods of a group for.
type built struct {
	// sizes are the distinct sizes that LWS noted on them.
	sizes []int
	// alone: the group has a single pod.
	alone bool
	// apart: its pods have different subdomains.
	apart bool
}

// builtFor returns what the pods of a group at a revision were built for. Pods of another revision, or that are being deleted,
// are of the group that it replaces.
func builtFor(pods []*Pod, revision string) built {
	b := built{alone: len(pods) == 1}
	known := ""
	for _, p := range pods {
		if !p.remainsAt(revision) {
			continue
		}
		if p.size > 0 && !slices.Contains(b.sizes, p.size) {
			b.sizes = append(b.sizes, p.size)
		}
		if p.subdomain != "" {
			b.apart = b.apart || known != "" && p.subdomain != known
			known = p.subdomain
		}
	}
	slices.Sort(b.sizes)
	return b
}

// foreignSize returns the size that pods of the group were built for although it is not their revision's, 0 if there is none. LWS
// annotates the leader with the size of its revision, and workers with the size in the spec at their creation.
func (b built) foreignSize(own, spec int) int {
	for _, size := range b.sizes {
		if size != own {
			return size
		}
	}
	if spec == 1 && own > 1 && b.alone {
		return spec // LWS creates no workers for a group of size 1
	}
	return 0
}

// checkBuilt reports a group whose pods LWS built from two revisions: it is not complete, however many of its pods are ready.
func (b built) checkBuilt(g *plan.Group, sizes map[string]int, spec int) {
	own, known := sizes[g.Revision]
	if known {
		g.Pods = own // else the leader does not exist, or LWS no longer has the template
	}
	var what, field string
	switch size := b.foreignSize(own, spec); {
	case g.Terminating:
		return
	case known && size > 0:
		field = "size"
		what = fmt.Sprintf("groups of revision %s have %d pods, and LeaderWorkerSet built this one for %d, the size in the spec at that time",
			g.Revision, own, size)
	case b.apart:
		field, what = "subdomainPolicy", "its workers have another subdomain than its leader, so they can't resolve its address"
	default:
		return
	}
	g.Reason, g.Pod = plan.ReasonTwoRevisions, g.Leader
	g.Message = fmt.Sprintf("built from two revisions: %s; restore the %s and delete the leader", what, field)
}
