// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// prober sends requests to leaders in the background: they outlive the observation that starts them.
type prober interface {
	Warm(owner string, l probe.Leader, w probe.WarmUp) probe.Progress
	Drain(owner string, leaders []probe.Leader, d probe.Drain, since time.Time) probe.Progress
	Keep(owner string, warming []string, drains bool)
	Forget(owner string)
	Close()
}

// asked are the leaders of a workload that requests are made to. In memory only: a driver that restarts drains again.
type asked struct {
	plan.Effects
	// of is the added workload, or in place the user's own.
	of types.UID
	// since is when the leaders to drain ceased to get requests, by this process's clock, as the prober has it.
	since time.Time
	// gone are leaders that were to drain and do not exist: what takes their place has had no requests.
	gone sets.Set[string]
}

// Keep has requests made to the leaders that a decision names, and to no others. It reports whether that changes what the next
// observation has. A driver that only looks makes no leader work.
func (o *Observer) Keep(s *Snapshot, e plan.Effects) (changed bool) {
	if o.config.ReadOnly {
		return false
	}
	var uids []string
	for _, name := range e.WarmUp {
		// The warm-up of a pod that has ended must end, too: its address may be another pod's.
		if l, ok := o.leader(s.Key.Namespace, name); ok && l.Address != "" {
			uids = append(uids, l.UID)
		}
	}
	o.prober.Keep(s.Key.String(), uids, len(e.Drain) > 0)
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.asked[s.Key]
	if len(e.WarmUp)+len(e.Drain) == 0 {
		delete(o.asked, s.Key)
		return known
	}
	draining := sets.New(before.Drain...).Union(before.gone)
	now := asked{Effects: e, of: s.StableObject.UID, since: before.since}
	if len(draining) > 0 {
		now.gone = draining.Difference(s.leaders())
	}
	if len(s.Added) > 0 {
		if w := s.AddedObjects[s.Added[0].Name]; w != nil { // a child of a DisaggregatedSet may be missing
			now.of = w.UID
		}
	}
	if now.of != before.of || !draining.HasAll(e.Drain...) {
		now.since = time.Now() // additional leaders, and those of another workload, start the drain again
	}
	o.asked[s.Key] = now
	return now.of != before.of || !slices.Equal(e.WarmUp, before.WarmUp) || !slices.Equal(e.Drain, before.Drain)
}

// leaders returns the names of the leaders that exist.
func (s *Snapshot) leaders() sets.Set[string] {
	out := sets.New[string]()
	insert := func(groups []plan.Group) {
		for _, g := range groups {
			if g.Revision != "" {
				out.Insert(g.Leader)
			}
		}
	}
	insert(s.Stable.Groups)
	for _, w := range s.Added {
		insert(w.Groups)
	}
	for _, c := range s.Children {
		insert(c.Groups)
	}
	return out
}

// readProbes adds the answers of the leaders that the last decision named.
func (o *Observer) readProbes(s *Snapshot) {
	o.mu.Lock()
	now := o.asked[s.Key]
	o.mu.Unlock()
	if len(now.WarmUp) > 0 {
		leaders := sets.New(now.WarmUp...)
		o.warmUp(s, &s.Stable.Groups, leaders)
		for i := range s.Added {
			o.warmUp(s, &s.Added[i].Groups, leaders)
		}
		for i := range s.Children {
			o.warmUp(s, &s.Children[i].Groups, leaders)
		}
	}
	if len(now.Drain) == 0 {
		return
	}
	leaders := make([]probe.Leader, 0, len(now.Drain))
	// A leader that is gone has no requests left to finish.
	for _, name := range now.Drain {
		if l, ok := o.leader(s.Key.Namespace, name); ok {
			leaders = append(leaders, l)
		}
	}
	s.Drain = &plan.Drain{Leaders: now.Drain, Answer: answer(o.prober.Drain(s.Key.String(), leaders, s.Policy.Drain, now.since))}
}

// warmUp adds the answers of leaders to the groups that are complete.
func (o *Observer) warmUp(s *Snapshot, groups *[]plan.Group, leaders sets.Set[string]) {
	*groups = slices.Clone(*groups) // the cache shares them
	for i := range *groups {
		g := &(*groups)[i]
		// A leader that serves gets real requests, and an unready one would fail its warm-up.
		if !g.Ready || g.Serving || !leaders.Has(g.Leader) {
			continue
		}
		if l, ok := o.leader(s.Key.Namespace, g.Leader); ok {
			g.WarmUp = new(answer(o.prober.Warm(s.Key.String(), l, s.Policy.WarmUp)))
		}
	}
}

func answer(p probe.Progress) plan.Answer {
	return plan.Answer{Done: p.State == probe.Done, Message: p.Message, Recheck: p.Recheck}
}

// leader returns a leader pod, and whether it exists.
func (o *Observer) leader(namespace, name string) (probe.Leader, bool) {
	pod := o.Caches.Pod(types.NamespacedName{Namespace: namespace, Name: name})
	if pod == nil {
		return probe.Leader{}, false
	}
	return probe.Leader{Name: pod.Name, UID: string(pod.UID), Address: pod.address, HostNetwork: pod.hostNetwork, Ready: pod.ready}, true
}
