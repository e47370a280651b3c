// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
