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
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Progress is how many groups are where. All counts are groups.
type Progress struct {
	// Planned is what the target means at today's replicas.
	Planned int `json:"planned,omitzero"`
	// Desired is what the cluster is asked for at this moment.
	Desired int `json:"desired,omitzero"`
	// Updated exist at the update revision; UpdatedReady of them are ready, for minReady. While batches run these are
	// the added groups, in place and from promotion on the workload's own.
	Updated      int `json:"updated,omitzero"`
	UpdatedReady int `json:"updatedReady,omitzero"`
	// StableReady are ready at the stable revision.
	StableReady int `json:"stableReady,omitzero"`
	// Total exist, at any revision.
	Total int `json:"total,omitzero"`
	// Threshold of the planned groups may be unready.
	Threshold int `json:"threshold,omitzero"`
	// Weight is the percentage of requests that go to the update revision: what the routes ask for if Routed, or else
	// the share of ready leaders that run it.
	Weight int  `json:"weight,omitzero"`
	Routed bool `json:"routed,omitzero"`
	// ProgressAt is when the last new group became ready, or the target or phase changed.
	ProgressAt time.Time `json:"progressAt,omitzero"`

	// ready are the groups of the goal that are ready, however shortly; available those that are for minReady.
	ready, available int
	// lost is when each of the others was lost, the earliest first; zero for one that was never there.
	lost []time.Time
	// blocking is the one of them that is at fault if nothing else becomes ready. Nil: none.
	blocking *Group
	// nextReady is when the next group will have been ready for minReady. Zero: none is on its way.
	nextReady time.Duration
}

// goal is the workload whose groups, from an index on, the release waits for at this moment, and the revision that they
// must have. Nil: it is not there yet.
func (o Observation) goal(planned int) (w *Workload, from int, revision string) {
	switch c := o.canary(); {
	case o.Record.Release.Phase == record.RollingBack:
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

// measureGoal measures how near the goal is, and since when it has not come nearer.
func (s *Progress) measureGoal(o Observation) {
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
				s.noteBlocking(g)
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
		s.noteBlocking(g)
		if left := g.ReadySince.Add(o.Policy.MinReady).Sub(o.Now); g.Ready && (s.nextReady == 0 || left < s.nextReady) {
			s.nextReady = max(left, time.Millisecond)
		}
	}
	slices.SortFunc(s.lost, time.Time.Compare)
}

// stuckSince is since when the goal has not come nearer: no new group became ready, and more than the tolerated ones
// have been missing.
func (s Progress) stuckSince(tolerated int) time.Time {
	since := s.ProgressAt
	if tolerated < len(s.lost) && s.lost[tolerated].After(since) {
		since = s.lost[tolerated]
	}
	return since
}

// underDeadline fails d when its goal, of which some groups may be missing, has not come nearer for too long, and
// otherwise says when that would be.
func underDeadline(o Observation, s Progress, d Decision, tolerated int) Decision {
	if s.nextReady > 0 {
		d.Recheck = s.nextReady
	}
	since := s.stuckSince(tolerated)
	d.Deadline = since.Add(o.Policy.ProgressDeadline)
	left := d.Deadline.Sub(o.Now)
	if left > 0 {
		if d.Recheck == 0 || left < d.Recheck {
			d.Recheck = left
		}
		return d
	}
	d.State, d.Reason = pb.State_STATE_FAILED, ReasonDeadline
	d.Message = fmt.Sprintf("no progress for %s (since %s): %s%s", o.Policy.ProgressDeadline, clock(since), d.Message, s.diagnosis(o))
	return d
}

// noteBlocking notes a group that is not where it should be. The one that has been so for longest is at fault; one of which
// no pod was ever seen may only wait for the others.
func (s *Progress) noteBlocking(g Group) {
	if s.blocking == nil || longer(g.LostAt, s.blocking.LostAt) {
		s.blocking = &g
	}
}

// longer reports whether a is known, and b is not or came later.
func longer(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// diagnosis names the group that keeps a release from its goal, since when at least, and what to do. Empty: no single one
// does.
func (s Progress) diagnosis(o Observation) string {
	g := s.blocking
	if g == nil {
		return ""
	}
	since, what := g.LostAt, "has not been ready"
	if since.IsZero() {
		since = s.ProgressAt
	}
	switch {
	case g.Ready:
		what = fmt.Sprintf("has not stayed ready for %s", o.Policy.MinReady)
	case g.Revision == "" && g.LostAt.IsZero():
		what = "has had no pod"
	}
	return fmt.Sprintf(". Group %d (%s) %s since %s: %s.%s", g.Index, g.Leader, what, clock(since), remedy(*g), remediation(o.release()))
}

// remediation is what else can be done, where there is something.
func remediation(r *record.Release) string {
	const recovers = " The release goes on by itself once it is ready"
	switch {
	case r == nil:
		return ""
	case r.Phase == record.Progressing || r.Phase == record.Promoting:
		return recovers + "; otherwise abort"
	default: // it is on its way back already
		return recovers
	}
}

// clock is a time of the day; the date is in whatever shows the message.
func clock(t time.Time) string { return t.UTC().Format("15:04:05 MST") }

// remedy is what to do about a group, by Kubernetes' own reason why it is not ready.
func remedy(g Group) string {
	pod := g.Pod
	if pod == "" {
		pod = g.Leader
	}
	switch g.Reason {
	case "Unschedulable", "SchedulerError":
		return "free or add what its pods ask for"
	case "SchedulingGated":
		return "see who is to lift the pod's scheduling gates: a queue may have no quota left"
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable":
		return "mend the image, its registry or the pull secret"
	case "CreateContainerConfigError", "CreateContainerError":
		return "make the ConfigMap, Secret or volume that its containers want"
	case "CrashLoopBackOff", "Error", "OOMKilled", "PodFailed", "RunContainerError", "StartError", "ContainerCannotRun", "Evicted":
		return fmt.Sprintf("see why it ended with kubectl logs %s --previous, and mend the template", pod)
	case "NotReady", "ContainersNotReady", "ReadinessGatesNotReady":
		return fmt.Sprintf("its readiness probe fails: see kubectl logs %s; if it only loads for longer, ask for a longer progress deadline", pod)
	case "PodMissing", "LeaderMissing":
		return "a quota or an admission webhook may refuse its pods: see the events of its StatefulSet"
	case "Terminating":
		return "a finalizer, a long grace period or a node that is gone holds the pod"
	case "":
		return "see why its readiness probe comes and goes, or ask for less than that"
	default:
		return fmt.Sprintf("see kubectl describe pod %s", pod)
	}
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
