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

// reasonWarmUp is the reason of a complete group whose leader has not answered its warm-up request.
const reasonWarmUp = "WarmUp"

// prober sends requests to leaders in the background: they outlive the observation that starts them.
type prober interface {
	Warm(owner string, l probe.Leader, w probe.WarmUp) probe.Progress
	Drain(owner string, leaders []probe.Leader, d probe.Drain, since time.Time) probe.Progress
	Keep(owner string, uids []string)
	Forget(owner string)
	Close()
}

// drainBegun is when the groups to be deleted, from an index on, ceased to get requests, in a release with this canary. In
// memory only: a driver that restarts drains again.
type drainBegun struct {
	of    types.UID
	from  int
	since time.Time
}

// probe adds the leaders' answers to the observation: whether they are warm, and whether they have drained.
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

// drainSince returns when the drain of the groups to be deleted began. Additional groups start it again.
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

// warmUp makes groups whose leaders are not warm not ready: they must not get requests, nor complete a batch.
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
	w.Groups = slices.Clone(w.Groups) // the cache shares them
	for j := range w.Groups {
		g := &w.Groups[j]
		l, ok := o.leader(s.Key.Namespace, *g)
		if !ok || !some(*g) {
			continue
		}
		if l.Address != "" { // a warm-up of a pod that has ended must end, too: its address may be another pod's
			asked = append(asked, l.UID)
		}
		if !g.Ready || g.Serving {
			continue // a leader that may get requests has been warmed up, maybe by an earlier driver
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

// warm warms up the leader, unless the driver is read-only: a warm-up puts load on it.
func (o *Observer) warm(owner string, l probe.Leader, w probe.WarmUp) probe.Progress {
	if o.config.ReadOnly {
		return probe.Progress{Message: fmt.Sprintf("leader %s is not in service; only the driver that releases it knows whether it is warm", l)}
	}
	return o.prober.Warm(owner, l, w)
}

// leader returns a group's leader pod; ok is false while it does not exist.
func (o *Observer) leader(namespace string, g plan.Group) (probe.Leader, bool) {
	pod := o.Caches.Pod(types.NamespacedName{Namespace: namespace, Name: g.Leader})
	if pod == nil {
		return probe.Leader{}, false
	}
	return probe.Leader{Name: pod.Name, UID: string(pod.UID), Address: pod.address, HostNetwork: pod.hostNetwork}, true
}
