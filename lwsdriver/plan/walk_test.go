// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var (
	walks     = flag.Uint64("explore.walks", 50, "how many courses of random acts are taken, of each kind of workload")
	walkSeed  = flag.Uint64("explore.seed", 1, "the first of them")
	walkSteps = flag.Int("explore.steps", 200, "how many acts a course has at most")
)

// TestWalks takes courses of random acts, which are longer than those of [TestExplore], in larger worlds, and with any number of
// disturbances. A breach is printed as a course without the acts that it does not need.
func TestWalks(t *testing.T) { takeWalks(t, *walks, walk) }

// takeWalks takes walks by their seeds.
func takeWalks(t *testing.T, most uint64, walk func(seed uint64) (course, string)) {
	var next, acts atomic.Uint64
	var known sync.Map
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := next.Add(1); i <= most; i = next.Add(1) {
				c, breach := walk(*walkSeed + i - 1)
				acts.Add(uint64(len(c.acts)))
				kind := kindOf(breach)
				if _, again := known.LoadOrStore(kind, true); breach == "" || again {
					continue
				}
				short := c.shrunk(kind)
				t.Errorf("walk %d: %s\n%s\n%s", *walkSeed+i-1, breach, short, short.tell())
			}
		})
	}
	wait.Wait()
	t.Logf("%d acts", acts.Load())
}

// walk takes a course of random acts, and returns it with the rule that it breaks, or "".
func walk(seed uint64) (course, string) {
	r := rand.New(rand.NewPCG(seed, 0))
	of := randomConfig(r)
	for !strings.Contains(of.String(), *exploreRuns) {
		of = randomConfig(r)
	}
	c := course{kind: kindOfSmall, world: of.String()}
	w, s := newWorld(of)
	// Some kinds of disturbances never happen in a course, so that others happen often.
	never := map[string]bool{}
	for _, do := range disturbing {
		never[do] = r.IntN(3) > 0
	}
	calm, host := 0.4+0.5*r.Float64(), 0.3+0.4*r.Float64()
	var steps []step
	next := 0 // of a whole release
	for tries := 0; tries < 4**walkSteps && len(c.acts) < *walkSteps; tries++ {
		s.spent = 0
		w.once, w.only, w.hasty = s.edited && r.Float64() < calm, nil, r.IntN(4) > 0
		kinds := byThemselves
		switch {
		case w.once:
		case r.Float64() < host:
			kinds = hosting
		case r.IntN(4) > 0:
			kinds = disturbing
		}
		if !w.once {
			do := kinds[r.IntN(len(kinds))]
			if forward := release[next%len(release)]; !s.edited || !never[forward] && r.Float64() < host {
				do = forward
			}
			if never[do] {
				continue
			}
			w.onlyOf(do)
			steps = slices.DeleteFunc(w.next(&s, math.MaxUint8, steps), func(t step) bool { return t.act.do != do })
		} else {
			steps = w.next(&s, math.MaxUint8, steps)
		}
		if len(steps) == 0 {
			continue
		}
		i := 0
		if !w.once {
			i = r.IntN(len(steps))
		}
		c.acts = append(c.acts, steps[i].act.String())
		if steps[i].breach != "" {
			return c, steps[i].breach
		}
		if s = steps[i].state; steps[i].act.do == release[next%len(release)] {
			next++
		}
	}
	return c, w.breachOfEnd(s)
}

// onlyOf has next return only what is needed for an act. Whether a wait is quiet depends on what else would happen.
func (w *world) onlyOf(do string) {
	if w.only = nil; !strings.HasPrefix(do, actWait) {
		w.only = func(kind string) bool { return strings.HasPrefix(do, kind) }
	}
}

// breachOfEnd returns which rule is broken from a state on once nothing disturbs any more, or "".
func (w *world) breachOfEnd(s state) string {
	end, broken := w.rest(s)
	if broken != "" {
		return broken
	}
	return w.unforced(end)
}

// unforced returns which rule is broken once a person forces a rollback that waits, or "": then it ends.
func (w *world) unforced(s state) (broken string) {
	for range maxIndices { // each may find that one group more has been broken for long
		phase := w.phase(&s)
		if d := reconcile(w.observe(&s)); phase != record.RollingBack && phase != record.CleaningUp || atRestIn(d.State) || forUser(d.Reason) {
			return ""
		}
		w.pass(&s, true, true)
		w.host(&s, act{do: actForce})
		if s, broken = w.rest(s); broken != "" {
			return "forced: " + broken
		}
	}
	d := reconcile(w.observe(&s))
	lost := func(groups []member) bool {
		return slices.ContainsFunc(groups, func(m member) bool { return m.fault >= nodeLost })
	}
	switch {
	case s.lwsDown, s.gatewayDown, s.refuses != 0, s.silent, atRestIn(d.State), forUser(d.Reason):
		return ""
	case w.routed && s.added.exists && s.own.ready() == 0: // the requests stay with the groups that serve
		return ""
	// Restarts help no more, and the StatefulSet controller updates no group below one that is not ready.
	case !w.parallel && s.own.leaders.current.String() != w.release(&s).StableRevision:
		return ""
	case lost(s.own.groups[s.own.replicas:]), lost(s.added.groups[:]): // only a person can have the pods deleted
		return ""
	}
	return fmt.Sprintf("rule 8: a rollback with force does not end in %s, %s: %s", d.State, d.Reason, d.Message)
}

// rest returns the state in which nothing happens any more, or the rule that is broken before.
func (w *world) rest(s state) (end state, broken string) {
	var steps []step
	writes := 0
	w.once, w.only, w.hasty = true, nil, true
	for range maxTold {
		s.spent = 0
		steps = w.next(&s, 0, steps)
		i := slices.IndexFunc(steps, func(t step) bool { return t.calm })
		if i < 0 {
			d := reconcile(w.observe(&s))
			return s, w.unsettled(&s, d)
		}
		if steps[i].breach != "" {
			return s, steps[i].breach
		}
		if steps[i].writes {
			writes++
		}
		s = steps[i].state
	}
	return s, fmt.Sprintf("%d writes, and it is not at rest", writes)
}

// release is what a host does in a release that is promoted.
var release = []string{actEdit, actBegin, actBatch, actWeight, actBatch, actWeight, actPromote}

var hosting = []string{actBegin, actBatch, actWeight, actPromote, actRollBack, actForce, actHeaders, actNoHeaders, actMirror, actStrict, actDisown, actAdopt, actUndo, actEdit}

var byThemselves = []string{
	actDrive, actReconcile, actRun, actEndpoints, actGateway, actDrain, actReady, actStop, actCaches, actWait, actWaitLong, actLate,
	actRepair, actLWSUp, actGatewayUp, actPickerUp, actAccept, actAnswer, actWarmUp, actScan, actAdmit,
}

var disturbing = []string{
	actScale, actAutoscale, actRescale, actRestoreSet, actApply, actDecide, actScaleAdded, actEditAdded, actDeleteAdded, actLose, actKill, actBreak, actRevert, actEndSplit, actUnhold,
	actLWSDown, actGatewayDown, actPickerDown, actRestart, actPace, actForget, actOldObject, actLabel, actUnserve, actRefuse,
	actLoseWorker, actLoseNode, actEvict, actSilence, actFull, actUnscan,
}

// randomConfig returns a world that may be larger than those of [runs].
func randomConfig(r *rand.Rand) config {
	yes := func() bool { return r.IntN(2) == 0 }
	styles := []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION}
	c := config{
		style: styles[r.IntN(len(styles))], replicas: 1 + r.IntN(4), unavailable: "1", surge: "0", routed: r.IntN(3) > 0, minReady: yes(),
		scaler: yes(), parallel: yes(), admission: yes(), disown: yes(), threshold: r.IntN(4) == 0,
		nodes: yes(),
	}
	c.headers, c.warmUp = c.routed && yes(), c.routed && yes()
	pace := r.IntN(8)
	c.unavailable = [...]string{"1", "0", "2", "1", "0", "50%", "0", "100%"}[pace]
	c.surge = [...]string{"0", "1", "0", "1", "2", "0", "50%", "0"}[pace]
	if c.surge == "2" || c.surge == "50%" {
		c.replicas = min(c.replicas, maxIndices-3) // and one by a scale-up
	}
	if c.unavailable == "50%" {
		c.replicas = max(c.replicas, 2)
	}
	c.limited, c.resizes = r.IntN(3) == 0, r.IntN(4) == 0
	if c.style == pb.Style_STYLE_BLUE_GREEN {
		c.delay, c.adopt = yes(), yes()
	}
	if c.routed {
		kind := r.IntN(3)
		c.pool, c.two = kind == 0, kind == 1
	}
	return c
}
