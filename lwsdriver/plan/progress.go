// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Progress counts the groups of a release.
type Progress struct {
	// Planned is the number of groups that the target means at the current replicas.
	Planned int `json:"planned,omitzero"`
	// Desired is the number of groups that the cluster is currently asked to have at the update revision.
	Desired int `json:"desired,omitzero"`
	// Updated is the number of groups at the update revision, UpdatedReady the number of these that have been ready for
	// minReady. While batches run, the added groups count; in place, and from promotion on, the workload's own.
	Updated      int `json:"updated,omitzero"`
	UpdatedReady int `json:"updatedReady,omitzero"`
	// StableReady is the number of the workload's own ready groups that are not at the update revision.
	StableReady int `json:"stableReady,omitzero"`
	// Total is the number of groups that exist, at any revision.
	Total int `json:"total,omitzero"`
	// Threshold is the number of planned groups that may be unready.
	Threshold int `json:"threshold,omitzero"`
	// Weight is the percentage of requests to the update revision: that of the routes if Routed, otherwise the share of
	// ready leaders that run it.
	Weight int  `json:"weight,omitzero"`
	Routed bool `json:"routed,omitzero"`
	// ProgressAt is when the last new group became ready, or the target or phase changed.
	ProgressAt time.Time `json:"progressAt,omitzero"`

	// ready is the number of ready groups of the goal, available the number of those ready for minReady.
	ready, available int
	// lost is when each group of the goal that is not available was lost, in order. neverSeen is the number of those of which no pod was ever
	// observed.
	lost      []time.Time
	neverSeen int
	// blocking is the group to blame if no other becomes ready. Nil means none.
	blocking *Group
	// nextReady is when the next group will have been ready for minReady. Zero means that no group is waiting for it.
	nextReady time.Duration
}

// awaitedGroups returns the workload whose groups the release waits for, from which index on, and at which revision. Nil means that the workload does
// not exist yet.
func (o Observation) awaitedGroups(planned int) (w *Workload, from int, revision string) {
	switch c := o.canary(); {
	case o.Record.Release.Phase == record.RollingBack:
		return &o.Stable, 0, o.Record.Release.StableRevision
	case updatesStable(o):
		return &o.Stable, 0, o.Record.Release.UpdateRevision
	// Groups of a template that is no longer released are restored first.
	case o.inPlace() && len(o.abandonedGroups()) > 0:
		return &o.Stable, 0, o.Record.Release.StableRevision
	case o.inPlace():
		return &o.Stable, o.Stable.Replicas - planned, o.Record.Release.UpdateRevision
	case c != nil:
		return c, 0, c.Revision
	}
	return nil, 0, ""
}

// measureGoal measures how far the goal is reached, and since when there was no progress.
func (s *Progress) measureGoal(o Observation) {
	w, from, revision := o.awaitedGroups(s.Planned)
	if w == nil {
		return
	}
	for g, n := range w.Wanted(from) {
		if !g.atRevision(revision) { // it counts as lost until LWS or a restart has replaced it
			s.addLost(g, n)
			if !g.Ready { // a group that serves at another revision is updated later
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
		if g.isAvailable(o.Now, o.Policy.MinReady) {
			s.available++
			continue
		}
		s.addLost(g, n)
		s.noteBlocking(g)
		if g.Ready {
			left := g.ReadySince.Add(o.Policy.MinReady).Sub(o.Now)
			s.nextReady = earliest(s.nextReady, max(left, time.Millisecond))
		}
	}
	if s.blocking == nil { // LWS counts groups outside the batch, and waits for those of its surge
		for g := range w.All() {
			if !g.Ready {
				s.noteBlocking(g)
			}
		}
	}
	slices.SortFunc(s.lost, time.Time.Compare)
}

// addLost notes when a group was lost, or that a run of n groups was never seen.
func (s *Progress) addLost(g Group, n int) {
	if g.LostAt.IsZero() {
		s.neverSeen += n
	} else {
		s.lost = append(s.lost, g.LostAt)
	}
}

// stuckSince returns since when no new group became ready while more groups than tolerated are missing.
func (s Progress) stuckSince(tolerated int) time.Time {
	first := tolerated - s.neverSeen // the index of the first loss that is not tolerated
	if first < 0 || first >= len(s.lost) {
		return s.ProgressAt
	}
	return later(s.ProgressAt, s.lost[first])
}

// noteBlocking notes a group that is not as expected. The group that was lost first is to blame. A group without any pod so far may only be
// waiting for others.
func (s *Progress) noteBlocking(g Group) {
	if s.blocking == nil || lostEarlier(g.LostAt, s.blocking.LostAt) {
		s.blocking = &g
	}
}

// lostEarlier reports whether a is known, and b is unknown or later.
func lostEarlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// diagnosis says what to do about the group that blocks a release. It names the group, and since when it blocks, unless the message does.
// If every group is ready, LWS has yet to replace some.
func (s Progress) diagnosis(o Observation, message string) string {
	g := s.blocking
	if g == nil {
		return ". " + o.lwsRemedy() + continuationText(o, "the groups are replaced")
	}
	do := o.remedyFor(*g)
	if g.Revision == "" || g.Pod == "" { // no pod is to blame
		_, _, revision := o.awaitedGroups(s.Planned)
		_, restoreChild := o.lackedChild(revision)
		do = cmp.Or(restoreChild, do)
	}
	since := g.LostAt
	if since.IsZero() {
		since = s.ProgressAt
	}
	what := "has not been ready"
	switch {
	case g.Ready:
		what = fmt.Sprintf("has not stayed ready for %s", o.Policy.MinReady)
	case strings.Contains(message, g.describe()):
		return ". " + strings.ToUpper(do[:1]) + do[1:] + continuationText(o, "the group is ready")
	}
	return fmt.Sprintf(". Group %d (%s) %s since %s: %s%s", g.Index, g.Leader, what, clockTime(since), do, continuationText(o, "the group is ready"))
}

// clockTime formats a time with its date: a release may last for days.
func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// remedyFor returns what to do about a group, by Kubernetes' reason why it is not ready.
func (o Observation) remedyFor(g Group) string {
	pod := cmp.Or(g.Pod, g.Leader)
	switch g.Reason {
	case "Unschedulable", "SchedulerError":
		return "free or add the resources that its pods request"
	case "SchedulingGated":
		return "check which controller removes the pod's scheduling gates: a queue may be out of quota"
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable":
		return "fix the image, its registry or the pull secret"
	case "CreateContainerConfigError", "CreateContainerError":
		return "create the ConfigMap, Secret or volume that its containers need"
	case "CrashLoopBackOff", "Error", "OOMKilled", "PodFailed", "RunContainerError", "StartError", "ContainerCannotRun", "Evicted":
		return fmt.Sprintf("run %s to see why it exited, and fix the template", o.kubectl("logs "+pod+" --previous"))
	case "NotReady", "ContainersNotReady", "ReadinessGatesNotReady":
		return fmt.Sprintf("its readiness probe fails: see %s; if it only needs longer to load, set a longer progress deadline", o.kubectl("logs "+pod))
	case ReasonPodMissing, ReasonLeaderMissing:
		if o.creatorOf(g) == lwsController {
			return o.lwsRemedy()
		}
		return "a quota or an admission webhook may refuse its pods: see the events of its StatefulSet"
	case ReasonTwoRevisions:
		if o.rollsBack() {
			return "restore the template of its revision, and delete its leader"
		}
		return "restore the template of its revision and delete its leader, or promote the release"
	case "Terminating":
		return o.terminatingRemedy(pod)
	case "":
		return "its readiness probe flaps: fix it, or set a shorter min_ready"
	default:
		return "see " + o.kubectl("describe pod "+pod)
	}
}

// creatorOf returns the controller that has yet to create a group, or the pods that it lacks.
func (o Observation) creatorOf(g Group) string {
	for _, w := range o.Workloads() {
		unnamed := g.Leader == fmt.Sprintf("%s-%d", w.Name, g.Index) // of a DisaggregatedSet: no child has the group
		if unnamed && (!w.Observed || o.hasRoles()) {
			return lwsController
		}
	}
	return "the StatefulSet controller"
}

// lwsController is the controller of LeaderWorkerSets and of DisaggregatedSets.
const lwsController = "the LeaderWorkerSet controller"

// describeUnready names the first group that is not ready, who has yet to create it, and how many more there are.
func (o Observation) describeUnready(groups iter.Seq2[Group, int]) string {
	var first Group
	unready := 0
	for g, n := range groups {
		if g.Ready {
			continue
		}
		if unready == 0 {
			first = g
		}
		unready += n
	}
	if unready == 0 {
		return ""
	}
	text := "; " + first.describe()
	switch missing := first.Reason == ReasonPodMissing || first.Reason == ReasonLeaderMissing; {
	case missing && first.Revision != "":
		text += ": " + o.creatorOf(first) + " has yet to create the others"
	case missing:
		text += " by " + o.creatorOf(first)
	}
	if more := unready - 1; more > 0 {
		text += fmt.Sprintf("; %d more not ready", more)
	}
	return text
}

// describe names the group and its pod that is not ready, and says why.
func (g Group) describe() string {
	if g.Pod == "" {
		return fmt.Sprintf("group %d: %s", g.Index, g.Message)
	}
	return fmt.Sprintf("group %d: pod %s: %s", g.Index, g.Pod, g.Message)
}

type rolling = lws.RollingUpdateConfiguration

// distinctRevisions returns the distinct revisions of the existing groups, sorted.
func (w Workload) distinctRevisions() []string {
	var all []string
	for _, g := range w.Groups {
		if g.Revision != "" && !slices.Contains(all, g.Revision) {
			all = append(all, g.Revision)
		}
	}
	slices.Sort(all)
	return all
}

// existingGroups returns how many groups exist, at any revision.
func (w Workload) existingGroups() int {
	return w.count(func(g Group) bool { return g.Revision != "" })
}

// count returns how many groups have a property.
func (w Workload) count(has func(Group) bool) (n int) {
	for _, g := range w.Groups {
		if has(g) {
			n++
		}
	}
	return n
}

// StableRevisions returns the revisions of the workload's groups. There are several if LWS had begun to roll before the hold.
func (o Observation) StableRevisions() []string { return o.Stable.distinctRevisions() }

// measureProgress counts groups. It never fails: unreadable values count as 0, and the decision reports them.
func measureProgress(o Observation) Progress {
	s := Progress{}
	var update string
	if o.Record != nil && o.Record.Release != nil {
		update = o.Record.Release.UpdateRevision
		s.ProgressAt = o.Record.Release.PhaseAt
		s.setPlanned(o)
		s.measureGoal(o)
	}
	own := updatesStable(o) || o.inPlace() // the workload's own groups are updated
	ready := 0
	for _, w := range o.Workloads() {
		s.Total += w.existingGroups()
		ready += w.count(func(g Group) bool { return g.Ready })
	}
	for _, g := range o.Stable.Groups {
		switch {
		case g.atRevision(update) && own:
			s.count(o, o.Stable, g)
		case !g.atRevision(update) && g.Ready:
			s.StableReady++
		}
	}
	for _, w := range o.Added {
		for _, g := range w.Groups {
			// A group at another revision is left of an edit of the canary's template, which was restored.
			if !own && w.Carries == update && g.atRevision(w.Revision) {
				s.count(o, w, g)
			}
		}
	}
	// Without routes, a Service spreads requests over ready leaders. The result is rounded to the nearest percent.
	if ready > 0 {
		s.Weight = (200*(ready-s.StableReady) + ready) / (2 * ready)
	}
	s.setWeight(o)
	return s
}

// updatesStable reports whether all of the user's own groups are to run the update revision: from promotion on, unless
// the second set has to be complete first.
func updatesStable(o Observation) bool {
	if o.release() == nil || o.completesSecondSet() || o.shiftsBack() {
		return false
	}
	p := o.Record.Release.Phase
	return p == record.Promoting || p == record.Promoted || p == record.Nothing
}

// setPlanned sets the numbers of groups that the release is to have, and that the cluster is asked for.
func (s *Progress) setPlanned(o Observation) {
	t := o.Target()
	if t != nil && t.At.After(s.ProgressAt) {
		s.ProgressAt = t.At
	}
	if updatesStable(o) {
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
	planned := func(replicas int) int {
		if o.completesSecondSet() {
			return replicas
		}
		n, _ := t.Planned(replicas) // observe refuses an unreadable target
		return n
	}
	if o.shiftsBack() {
		s.Planned = o.shiftBackTo()
	} else {
		s.Planned = o.beforePromotion(max(planned(o.batchReplicas()), o.keptGroups(planned)))
	}
	s.Threshold = o.Policy.Threshold(s.Planned)
	switch c := o.canary(); {
	case o.inPlace():
		s.Desired = max(o.Stable.Replicas-int(ptr.Deref(o.Stable.Rolling.Partition, 0)), 0)
	case c != nil:
		s.Desired = c.Replicas
	}
}

// count adds a group at the update revision. A group above replicas is being deleted by a scale-down or the end of a
// surge: it exists, but does not count as ready.
func (s *Progress) count(o Observation, of Workload, g Group) {
	s.Updated++
	if g.Index < of.Replicas && g.isAvailable(o.Now, o.Policy.MinReady) {
		s.UpdatedReady++
	}
}
