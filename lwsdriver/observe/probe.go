// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// reasonWarmUp is the reason of a group that is whole and whose leader has not answered its first request.
const reasonWarmUp = "WarmUp"

// prober asks leaders, in the background: its requests outlive the look that begins them.
type prober interface {
	Warm(owner string, l probe.Leader, w probe.WarmUp) probe.Progress
	Drain(owner string, leaders []probe.Leader, d probe.Drain, since time.Time) probe.Progress
	Keep(owner string, uids []string)
	Forget(owner string)
	Close()
}

// drainBegun is since when groups that leave, from an index on, get no requests, in a release that has this canary. In
// memory only: a driver that starts anew drains anew.
type drainBegun struct {
	of    types.UID
	from  int
	since time.Time
}

// probe adds to the look what leaders themselves tell: whether they are warm, and whether they are done.
func (o *Observer) probe(s *Snapshot) {
	if s.Policy.WarmUp != (probe.WarmUp{}) {
		o.warmUp(s)
	}
	if s.Policy.Drain == (probe.Drain{}) {
		return
	}
	groups := plan.DrainingGroups(s.Observation)
	begun, ok := o.drainSince(s, groups)
	if !ok {
		return
	}
	leaders := make([]probe.Leader, 0, len(groups))
	for _, g := range groups {
		if l, ok := o.leader(s.Key.Namespace, g); ok {
			leaders = append(leaders, l)
		}
	}
	p := o.prober.Drain(s.Key.String(), leaders, s.Policy.Drain, begun)
	s.Drain = &plan.Drain{Done: p.State == probe.Done, Message: p.Message, Recheck: p.Recheck}
}

// drainSince is when the drain of groups that leave began: as soon as there were any. More of them begin another.
func (o *Observer) drainSince(s *Snapshot, groups []plan.Group) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(groups) == 0 {
		delete(o.drains, s.Key)
		return time.Time{}, false
	}
	from, of := groups[0].Index, s.StableObject // in place they are the workload's own
	if len(s.Added) > 0 {
		of = s.AddedObjects[s.Added[0].Name]
	}
	begun, ok := o.drains[s.Key]
	if !ok || begun.of != of.UID || from < begun.from {
		begun = drainBegun{of: of.UID, from: from, since: s.Now}
		if o.drains == nil {
			o.drains = map[types.NamespacedName]drainBegun{}
		}
		o.drains[s.Key] = begun
	}
	return begun.since, true
}

// warmUp takes groups whose leaders are not warm for not ready: they may not get requests, nor make a batch ready.
func (o *Observer) warmUp(s *Snapshot) {
	updated := func(g plan.Group) bool { return plan.WarmsUp(s.Observation, g) }
	kept := o.warmUpSome(s, &s.Stable, updated)
	for i := range s.Added {
		kept = append(kept, o.warmUpSome(s, &s.Added[i], func(plan.Group) bool { return true })...)
	}
	o.prober.Keep(s.Key.String(), kept)
}

// warmUpSome is warmUp for some groups of one workload. It returns the leaders that may be asked.
func (o *Observer) warmUpSome(s *Snapshot, w *plan.Workload, some func(plan.Group) bool) (asked []string) {
	owner := s.Key.String()
	w.Groups = slices.Clone(w.Groups) // they are shared
	for j := range w.Groups {
		g := &w.Groups[j]
		l, ok := o.leader(s.Key.Namespace, *g)
		if !ok || !some(*g) {
			continue
		}
		asked = append(asked, l.UID)
		if !g.Ready || g.Serving {
			continue // one that may get requests was warm, if only an earlier driver knows
		}
		p := o.warm(owner, l, s.Policy.WarmUp)
		if p.State == probe.Done {
			continue
		}
		g.Ready, g.ReadySince, g.FirstReady = false, time.Time{}, time.Time{}
		g.Pod, g.Reason, g.Message = g.Leader, reasonWarmUp, p.Message
		s.RecheckAfter(p.Recheck)
	}
	return asked
}

// warm asks the leader, unless this driver only looks: a warm-up makes the leader work.
func (o *Observer) warm(owner string, l probe.Leader, w probe.WarmUp) probe.Progress {
	if o.config.ReadOnly {
		return probe.Progress{Message: fmt.Sprintf("leader %s is not in service; whether it is warm, the driver that releases it knows", l)}
	}
	return o.prober.Warm(owner, l, w)
}

// leader is a group's leader pod, false while there is none.
func (o *Observer) leader(namespace string, g plan.Group) (probe.Leader, bool) {
	pod := o.Caches.Pod(types.NamespacedName{Namespace: namespace, Name: g.Leader})
	if pod == nil {
		return probe.Leader{}, false
	}
	return probe.Leader{Name: pod.Name, UID: string(pod.UID), Address: pod.address}, true
}
