// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Effects are requests to leader pods. They are no writes, so a decision may have both.
type Effects struct {
	// WarmUp are the leaders that may get requests only once they have answered the policy's warm-up request.
	WarmUp []string
	// Drain are the leaders that are to be removed once they have finished their requests. They get no more.
	Drain []string
}

// Answer is what leaders have answered.
type Answer struct {
	// Done is true once there is nothing to wait for.
	Done bool
	// Message says what is awaited, or what the answer was.
	Message string
	// Recheck is when time alone will change the answer, 0 if it will not.
	Recheck time.Duration
}

// Drain is how far leaders have finished their requests.
type Drain struct {
	Leaders []string
	Answer
}

// includesAny reports whether a drain includes the leaders of all the groups.
func (d *Drain) includesAny(groups []Group) bool {
	if d == nil {
		return false
	}
	asked := make(map[string]bool, len(d.Leaders))
	for _, name := range d.Leaders {
		asked[name] = true
	}
	return !slices.ContainsFunc(groups, func(g Group) bool { return !asked[g.Leader] })
}

// keepEffects adds the effects that the engine is to have.
func keepEffects(o Observation, d Decision) Decision {
	if o.Policy.WarmsUp() {
		for _, w := range o.Workloads() {
			for _, g := range w.Groups {
				if g.Revision != "" && o.warmsUp(w, g) && (g.isComplete() || o.hasRoles()) { // a unit waits for its other roles, too
					d.Effects.WarmUp = append(d.Effects.WarmUp, g.Leader)
				}
			}
		}
		for _, c := range o.Children {
			if o.warmsUpRole(c) {
				complete := slices.DeleteFunc(Workload{Groups: c.Groups}.existingFrom(0), func(g Group) bool { return !g.isComplete() })
				d.Effects.WarmUp = append(d.Effects.WarmUp, leadersOf(complete)...)
			}
		}
	}
	if o.Policy.Drains() {
		d.Effects.Drain = leadersOf(o.drainingGroups())
	}
	return d
}

func leadersOf(groups []Group) (names []string) {
	for _, g := range groups {
		names = append(names, g.Leader)
	}
	return names
}

// warmsUp reports whether a group gets requests only by a label of its leader, so that it may be warmed up before.
func (o Observation) warmsUp(w Workload, g Group) bool {
	if w.Name != o.Stable.Name {
		return o.Traffic != nil
	}
	return o.routesInPlace() && !o.splitEnded() && o.Record.Release.Phase == record.Progressing && g.atRevision(o.Record.Release.UpdateRevision)
}

// reasonWarmUp is the reason of a complete group whose leader has not answered its warm-up request.
const reasonWarmUp = "WarmUp"

// isComplete reports whether a group is ready, but maybe for its warm-up. The warm-up of one that breaks is forgotten: LeaderWorkerSet may leave the pod,
// whose containers start cold again.
func (g Group) isComplete() bool { return g.Ready || g.Reason == reasonWarmUp }

// coolDown makes the groups whose leaders have not answered their warm-up requests not ready: they must neither get requests nor complete
// a batch. A leader that may get requests has been warmed up, maybe by an earlier driver.
func (o *Observation) coolDown() {
	if !o.Policy.WarmsUp() {
		return
	}
	judge := func(w *Workload) {
		w.Groups = slices.Clone(w.Groups) // the cache shares them
		for i := range w.Groups {
			if o.warmsUp(*w, w.Groups[i]) {
				w.Groups[i].awaitWarmUp()
			}
		}
	}
	judge(&o.Stable)
	for i := range o.Added {
		judge(&o.Added[i])
	}
}

// awaitWarmUp makes a group not ready until its leader has answered its warm-up request.
func (g *Group) awaitWarmUp() {
	if !g.Ready || g.Serving || g.Revision == "" || g.WarmUp != nil && g.WarmUp.Done {
		return
	}
	g.Ready, g.ReadySince, g.FirstReady = false, time.Time{}, time.Time{}
	g.Pod, g.Reason, g.Message = g.Leader, reasonWarmUp, "the driver that releases it has not warmed it up yet"
	if g.WarmUp != nil {
		g.Message = g.WarmUp.Message
	}
}

// awaitDrained returns what to wait for until the leaders of groups that are removed next have finished their requests. Nil means that they have.
func awaitDrained(o Observation) *Decision {
	groups := o.drainingGroups()
	switch {
	case !o.Policy.Drains() || len(groups) == 0, o.Drain.includesAny(groups) && o.Drain.Done:
		return nil
	// The probes have not begun yet: their answers come with the next observation.
	case !o.Drain.includesAny(groups):
		return &Decision{
			Reason: ReasonDraining, Wait: WaitTraffic,
			Message: fmt.Sprintf("the leaders of %d groups are to finish their requests", len(groups)),
		}
	}
	d := &Decision{Reason: ReasonDraining, Message: o.Drain.Message, Recheck: o.Drain.Recheck, Wait: WaitTraffic}
	if d.Recheck > 0 {
		d.Wait = WaitTimer // the drain's own timeout ends it
	}
	return d
}

// Judge returns an observation with what follows from its policy: children are united, leftovers are set aside, and groups that are not
// warmed up are not ready. Decide expects it, and what is reported of an observation is reported of the judged one.
func Judge(o Observation) Observation {
	o.formUnits()
	o.setAside()
	o.coolDown()
	return o
}
