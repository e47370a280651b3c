// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// maxTurns bounds how often a share may change its direction once nothing breaks any more.
const maxTurns = 3

// checkRaise is called for each decision to write routes: it does not raise the share above what the ready groups carry.
func (c *cluster) checkRaise(to int) {
	if most, known := c.mostShare(); known && to > c.traffic.weight && to > most {
		c.fail("the share is raised from %d to %d %%, and the ready groups carry %d %%", c.traffic.weight, to, most)
	}
}

// turns counts how often the share changes its direction.
type turns struct {
	counted bool // since nothing breaks any more
	last    int  // the last change
	n       int
}

// countTurns is called after each write of routes: while nothing breaks, the share does not go up and down again and again.
func (c *cluster) countTurns(before int) {
	change := c.traffic.weight - before
	if change == 0 || !c.turns.counted {
		return
	}
	if w := c.canary(); w != nil && !w.at(w.made) {
		c.turns = turns{counted: true} // it was edited, and LWS replaces its groups one after the other
	}
	if c.turns.last*change < 0 {
		c.turns.n++
	}
	if c.turns.last = change; c.turns.n > maxTurns {
		c.fail("the share changes its direction again and again: %d, then %d %%", before, c.traffic.weight)
	}
}

// mostShare returns the share that the ready updated groups can carry while every stable group is ready. It counts the
// model's groups, and knows neither hysteresis nor rounding. False: the stable side is not whole, or has no share to give.
func (c *cluster) mostShare() (most int, known bool) {
	if c.record == nil || c.record.Release == nil || !takesShare(c.phase()) || c.stable.deleting {
		return 0, false
	}
	if c.phase() == record.Promoting && !record.SameRolling(c.stable.rolling, record.Hold()) {
		return 0, false
	}
	r, ready, planned, weight := c.record.Release, 0, 0, c.record.Release.Traffic.RequestedWeight()
	if c.inPlace() {
		return 0, false // there, the stable side is never whole while updated groups exist
	}
	for i := range c.stable.replicas {
		if g := c.stable.groups[i]; g == nil || !g.ready || c.now.Sub(g.since) < lossGrace {
			return 0, false // a stable group that was lost a moment ago does not count as whole yet
		}
	}
	o := c.observe()
	w := c.canary()
	if w == nil {
		return 0, true
	}
	planned = measureProgress(o).Planned
	switch blueGreen := c.policy.Style == pb.Style_STYLE_BLUE_GREEN; {
	case blueGreen && c.phase() != record.Progressing:
		weight = 100
	case c.phase() == record.Promoting:
		planned = w.replicas
	}
	for i, g := range w.groups {
		if g.ready && i < planned {
			ready++
		}
	}
	of := planned
	if r.Traffic != nil && r.Traffic.Groups > 0 && weight == r.Traffic.Weight {
		of = min(planned, r.Traffic.Groups)
	}
	switch {
	case of == 0 || ready == 0:
		return 0, true
	case ready >= of-c.policy.Threshold(of):
		return weight, true
	case 2*ready < of:
		return 0, true
	}
	return weight * ready / of, true
}

// checkShareQuiet: while nothing is to be written, and no group was lost a moment ago, the share is one that the ready
// groups can carry.
func (c *cluster) checkShareQuiet(d Decision) {
	if c.traffic == nil || c.traffic.blocked || c.traffic.gone || c.traffic.unread || waitsForTraffic(d) && d.Reason != traffic.ReasonNoStableEndpoints {
		return
	}
	for _, at := range c.lost {
		if c.now.Sub(at) < lossGrace {
			return
		}
	}
	for _, s := range append([]*set{c.stable}, c.added...) {
		for _, g := range s.groups {
			if g.ready && c.now.Sub(g.since) < max(c.policy.MinReady, 10*time.Second) {
				return
			}
		}
	}
	if most, known := c.mostShare(); known && c.traffic.weight > most && c.canary() != nil && !c.canary().deleting {
		c.fail("%s leaves a share of %d %%, and the ready groups carry %d %%", d.Reason, c.traffic.weight, most)
	}
}
