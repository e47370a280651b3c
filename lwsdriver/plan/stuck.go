// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// suspect takes in a group that is not where it should be. The one that has been so for longest is at fault; one of which no
// pod was ever seen may only wait for the others.
func (s *Standing) suspect(g Group) {
	if s.stuck == nil || longer(g.LostAt, s.stuck.LostAt) {
		s.stuck = &g
	}
}

// longer says whether a is known, and b is not or came later.
func longer(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// verdict says which group keeps a release from its goal, since when at least, and what to do. Empty: no single one does.
func (s Standing) verdict(o Observation) string {
	g := s.stuck
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
	return fmt.Sprintf(". Group %d (%s) %s since %s: %s.%s", g.Index, g.Leader, what, clock(since), advice(*g), wayOut(o.release()))
}

// wayOut is what else can be done, where there is something.
func wayOut(r *record.Release) string {
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

// advice is what to do about a group, by Kubernetes' own reason why it is not ready.
func advice(g Group) string {
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
