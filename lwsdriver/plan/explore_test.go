// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var (
	exploreStates  = flag.Int("explore.states", 4_000, "how many states of each small world are visited; of those that route requests, three times as many")
	exploreDisturb = flag.Int("explore.disturbances", 2, "how many disturbances each run has at most")
	exploreRuns    = flag.String("explore.runs", "", "only the runs whose name contains this")
)

// The explorers keep what they visit and drop everything else at once: a seventh of their time was the garbage collector's.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// step is a transition.
type step struct {
	act    act
	state  state
	calm   bool // it is what happens while nothing disturbs
	writes bool
	breach string
}

// next returns every step from a state that changes it. disturb: disturbances are left.
func (w *world) next(s *state, disturb int, steps []step) []step {
	steps = steps[:0]
	if s.over {
		return steps
	}
	calm := false
	wants := func(do string) bool { return w.only == nil || w.only(do) }
	add := func(a act, after state, d Decision) bool {
		if !wants(a.do) {
			return false
		}
		if w.settle(&after); s.late != 0 && a.do != actLate && w.stale(w.writes.values[s.late], s, &after) {
			after.late = 0
		}
		if after == *s {
			return false
		}
		steps = append(steps, step{act: a, state: after, calm: !calm, breach: w.breach(s, a, d, &after), writes: d.Action != nil})
		calm = true
		return true
	}
	after := *s
	var decided, d Decision
	var err error
	if wants(actDrive) || wants(actRestart) {
		d, err = w.drive(&after)
		decided = d
	}
	if wants(actDrive) {
		text := w.untrue(s, d)
		if text == "" && !w.hasty {
			text = w.breachOfStale(s)
		}
		if text != "" && err == nil {
			err = errors.New(text)
		}
	}
	if !add(act{do: actDrive}, after, d) && d.Action != nil && err == nil && !after.refused {
		err = fmt.Errorf("%q changes nothing", d.Action)
	}
	if err != nil && wants(actDrive) {
		steps = append(steps, step{act: act{do: actDrive}, state: after, breach: err.Error(), calm: true})
	}
	if w.once && calm {
		return steps
	}
	for at := range uint8(2) {
		after = *s
		if set := after.set(at); set.exists && !s.lwsDown && !set.deleting {
			w.reconcile(set)
			add(act{do: actReconcile, set: at}, after, Decision{})
		}
		after = *s
		if set := after.set(at); set.exists {
			w.run(set)
			w.collect(&after)
			add(act{do: actRun, set: at}, after, Decision{})
		}
	}
	if w.once && calm {
		return steps[:1]
	}
	if w.routed {
		after = *s
		after.selectors = w.of[s.objects].selectors
		add(act{do: actEndpoints}, after, Decision{})
		if after = *s; !s.gatewayDown {
			after.route = w.of[s.objects].route
			add(act{do: actGateway}, after, Decision{})
		}
		after = *s
		for at := range uint8(2) {
			for i := range after.set(at).groups {
				after.set(at).groups[i].busy = s.silent && after.set(at).groups[i].busy
			}
		}
		add(act{do: actDrain}, after, Decision{})
	}
	for at := range uint8(2) {
		for i := range s.set(at).groups {
			after = *s
			if m := &after.set(at).groups[i]; m.revision != 0 && !m.ready && m.broken != m.revision && m.fault < evicted {
				w.ready(m)
				if w.routed {
					after.selectors = w.of[s.objects].selectors // the endpoints controller adds a leader by the selectors of that time
				}
				add(act{do: actReady, set: at, index: uint8(i)}, after, Decision{})
			} else if m.fault == evicted {
				after.set(at).remove(i)
				w.collect(&after)
				add(act{do: actStop, set: at, index: uint8(i)}, after, Decision{})
			}
		}
	}
	for at := range uint8(2) {
		for i := range s.set(at).groups {
			after = *s
			if m := &after.set(at).groups[i]; w.warmUp && !s.silent && m.ready && !m.warm && (at == 1 || w.inPlace()) {
				m.warm = true
				add(act{do: actWarmUp, set: at, index: uint8(i)}, after, Decision{})
			}
		}
	}
	if after = *s; s.late != 0 {
		write := w.writes.values[s.late]
		after.late = 0
		if w.refusesWrite(s, w.observe(s), write) {
			add(act{do: actLate}, after, Decision{})
		} else if err := w.apply(&after, write); err == nil {
			add(act{do: actLate}, after, Decision{Action: write})
		}
	}
	if after = *s; s.blind {
		after.blind = false
		add(act{do: actCaches}, after, Decision{})
	}
	if after = *s; s.unscanned {
		after.unscanned = false
		add(act{do: actScan}, after, Decision{})
	}
	if after = *s; s.full {
		after.full = false
		add(act{do: actAdmit}, after, Decision{})
	}
	quiet := !calm
	for _, do := range []string{actWait, actWaitLong} {
		after = *s
		w.pass(&after, do == actWaitLong, quiet)
		if add(act{do: do}, after, Decision{}) && !w.hasty {
			steps[len(steps)-1].breach = w.unwoken(s, &after)
		}
	}
	if calm = true; w.once {
		return steps
	}
	for _, a := range hostActs(w) {
		if after = *s; wants(a.do) {
			if d, ok := w.host(&after, a); ok {
				add(a, after, d)
			}
		}
	}
	for _, a := range disturbances(w, s) {
		free := a.do == actRepair || a.do == actLWSUp || a.do == actGatewayUp || a.do == actPickerUp || a.do == actAccept || a.do == actAnswer || a.do == actEdit && !s.edited
		if !free && disturb <= int(s.spent) {
			continue
		}
		if after = *s; wants(a.do) && w.disturb(&after, a) {
			if after.edited = true; !free {
				after.spent++
			}
			if add(a, after, Decision{}) && a.do == actRestart {
				steps[len(steps)-1].breach = w.forgotten(decided, &after)
			}
		}
	}
	return steps
}

func (s *state) set(at uint8) *lwset {
	if at == 0 {
		return &s.own
	}
	return &s.added
}

func hostActs(w *world) []act {
	all := []act{{do: actBegin}, {do: actBatch}, {do: actBatch, number: 1}, {do: actPromote}, {do: actRollBack}, {do: actForce}}
	if w.routed {
		all = append(all, act{do: actWeight, number: 50}, act{do: actWeight, number: 100}, act{do: actWeight}, act{do: actWeight, number: 20})
	}
	if w.headers {
		all = append(all, act{do: actHeaders}, act{do: actNoHeaders}, act{do: actMirror})
	}
	if w.threshold {
		all = append(all, act{do: actStrict})
	}
	if w.disown {
		all = append(all, act{do: actDisown}, act{do: actAdopt}, act{do: actUndo, revision: 1}, act{do: actUndo, revision: 2})
	}
	return all
}

func disturbances(w *world, s *state) []act {
	all := []act{{do: actEdit, revision: 2}, {do: actEdit, revision: 1}, {do: actEdit, revision: 3}}
	if !s.edited {
		return all[:1]
	}
	for at := range uint8(2) {
		for i := range s.set(at).groups {
			if s.set(at).groups[i].revision == 0 {
				continue
			}
			for _, do := range []string{actLose, actKill, actBreak, actRepair} {
				all = append(all, act{do: do, set: at, index: uint8(i)})
			}
			if w.nodes {
				all = append(all, act{do: actLoseWorker, set: at, index: uint8(i)}, act{do: actLoseNode, set: at, index: uint8(i)}, act{do: actEvict, set: at, index: uint8(i)})
			}
			if w.routed && (at == 1 || w.inPlace()) {
				all = append(all, act{do: actLabel, set: at, index: uint8(i)})
			}
		}
	}
	if w.scaler {
		all = append(all, act{do: actAutoscale, number: w.replicas - 1}, act{do: actAutoscale, number: w.replicas + 1}, act{do: actRescale})
	}
	all = append(all, act{do: actDecide}, act{do: actUnhold}, act{do: actRestart}, act{do: actScale}, act{do: actScale, number: w.replicas - 1}, act{do: actScale, number: w.replicas + 1}, act{do: actApply, number: w.replicas + 1})
	if s.added.exists {
		all = append(all, act{do: actScaleAdded}, act{do: actScaleAdded, number: w.replicas}, act{do: actEditAdded}, act{do: actDeleteAdded})
	}
	if w.inPlace() {
		all = append(all, act{do: actRestoreSet})
	}
	down := func(is bool, down, up string) {
		if is {
			down = up
		}
		all = append(all, act{do: down})
	}
	down(s.lwsDown, actLWSDown, actLWSUp)
	if w.limited {
		all = append(all, act{do: actFull}, act{do: actUnscan})
	}
	if w.warmUp {
		down(s.silent, actSilence, actAnswer)
	}
	if w.routed {
		down(s.gatewayDown, actGatewayDown, actGatewayUp)
		all = append(all, act{do: actRevert}, act{do: actEndSplit}, act{do: actUnserve})
	}
	if w.pool {
		down(s.pickerDown, actPickerDown, actPickerUp)
	}
	all = append(all, act{do: actForget}, act{do: actOldObject}, act{do: actPace}, act{do: actPace, number: 1}, act{do: actPace, number: 2}, act{do: actPace, number: 3}, act{do: actPace, number: 4})
	if s.refuses != 0 {
		return append(all, act{do: actAccept})
	}
	for i := 1; i < len(refusals); i++ {
		if refusals[i] != refusalOne || w.two {
			all = append(all, act{do: actRefuse, number: i})
		}
	}
	return all
}

// explored are the states of a run, each with the step that first led to it.
type explored struct {
	states []state
	from   []int32
	by     []act
	calm   []int32 // what happens next while nothing disturbs, or one of the constants below
	ids    map[state]int32
	writes []bool
	// visited is how many states were visited; the others are known.
	visited int
}

// What happens next in a state while nothing disturbs, besides another state.
const (
	ending    = -1 // nothing
	unvisited = -2
	breached  = -3
)

// maxAhead bounds how many states are known for each one that is visited.
const maxAhead = 12

// add adds a state that was not visited before.
func (e *explored) add(s state, from int32, by act) int32 {
	id := int32(len(e.states))
	e.ids[s] = id
	e.states, e.from, e.by = append(e.states, s), append(e.from, from), append(e.by, by)
	e.calm, e.writes = append(e.calm, unvisited), append(e.writes, false)
	return id
}

// seed adds the states of whole releases, one promoted and one rolled back, so that what may happen to each of them is visited first.
func (e *explored) seed(w *world) {
	host := []act{{do: actEdit, revision: 2}, {do: actBegin}, {do: actBatch}, {do: actHeaders}, {do: actWeight, number: 50}}
	e.course(w, append(slices.Clip(host), act{do: actBatch, number: 1}, act{do: actWeight, number: 100}, act{do: actPromote}))
	e.course(w, append(slices.Clip(host), act{do: actRollBack}))
}

// course adds the states in which a host does one after another, each once nothing else happens.
func (e *explored) course(w *world, host []act) {
	var steps []step
	for at := int32(0); ; {
		s := e.states[at]
		steps = w.next(&s, 0, steps)
		i := slices.IndexFunc(steps, func(t step) bool { return t.calm && t.act.do != actWait && t.act.do != actWaitLong })
		for i < 0 && len(host) > 0 {
			i = slices.IndexFunc(steps, func(t step) bool { return t.act == host[0] })
			host = host[1:]
		}
		if i < 0 {
			i = slices.IndexFunc(steps, func(t step) bool { return t.calm })
		}
		if i < 0 || steps[i].breach != "" {
			return
		}
		id, known := e.ids[steps[i].state]
		if !known {
			id = e.add(steps[i].state, at, steps[i].act)
		} else if id <= at {
			return
		}
		at = id
	}
}

// violation is a breach, and the shortest course that leads to it.
type violation struct {
	breach string
	course course
}

// explore visits the states of a small world until there are enough: breadth first by the number of acts that are not the next one while
// nothing disturbs. What follows from an act while nothing disturbs is visited to the end before the next act. first: the first breach is
// enough.
func explore(c config, disturb, most int, first bool) (e explored, found []violation) {
	w, start := newWorld(c)
	e.ids = map[state]int32{}
	e.add(start, -1, act{})
	e.seed(w)
	kinds := map[string]bool{}
	report := func(at int32, last *act, breach string) {
		kind := kindOf(breach)
		if kinds[kind] {
			return
		}
		kinds[kind] = true
		var acts []string
		if last != nil {
			acts = []string{last.String()}
		}
		for ; e.from[at] >= 0; at = e.from[at] {
			acts = append(acts, e.by[at].String())
		}
		slices.Reverse(acts)
		found = append(found, violation{breach, course{kindOfSmall, c.String(), acts}})
	}
	var steps []step
	var level, next []int32
	for at := range e.states {
		level = append(level, int32(at))
	}
	for calm := int32(-1); e.visited < most && (!first || len(found) == 0); {
		at := calm
		if calm = -1; at < 0 {
			if len(level) == 0 {
				level, next = spread(next), nil
			}
			if len(level) == 0 {
				break
			}
			at, level = level[0], level[1:]
		}
		if e.calm[at] != unvisited {
			continue
		}
		e.visited++
		s := e.states[at]
		e.calm[at] = ending
		steps = w.next(&s, disturb, steps)
		for i := range steps {
			t := &steps[i]
			if t.breach != "" {
				report(at, &t.act, t.breach)
				if t.calm {
					e.calm[at] = breached
				}
				continue
			}
			id, known := e.ids[t.state]
			if !known && (t.calm || len(e.states) < most*maxAhead) {
				if id = e.add(t.state, at, t.act); !t.calm {
					next = append(next, id)
				}
			}
			if t.calm {
				e.calm[at], e.writes[at] = id, t.writes
				calm = id
			}
		}
	}
	e.checkEnds(w, report)
	return e, found
}

// maxWrites bounds the writes from any state until it is at rest.
const maxWrites = 40

// spread returns states in an order in which the first ones come from everywhere, since there may be too many to visit all.
func spread(all []int32) []int32 {
	out := make([]int32, 0, len(all))
	const stride = 61
	for first := range min(stride, len(all)) {
		for i := first; i < len(all); i += stride {
			out = append(out, all[i])
		}
	}
	return out
}

// checkEnds checks that, once nothing disturbs, every state comes to rest after a bounded number of writes.
func (e *explored) checkEnds(w *world, report func(int32, *act, string)) {
	const unseen, walking = -1, -2
	left := make([]int16, len(e.states)) // writes until rest
	for i := range left {
		left[i] = unseen
	}
	var path []int32
	for at := range e.states {
		path = path[:0]
		id := int32(at)
		for id >= 0 && left[id] == unseen {
			left[id] = walking
			path = append(path, id)
			id = e.calm[id]
		}
		writes := int16(0)
		switch {
		case id == ending:
			last := path[len(path)-1]
			s := e.states[last]
			d, _ := w.drive(&s)
			if text := w.unsettled(&e.states[last], d); text != "" {
				report(int32(at), nil, text)
			}
		case id < 0: // what follows is not known
		case left[id] == walking:
			report(int32(at), nil, "the writes never end")
			left[id] = 0
		default:
			writes = left[id]
		}
		for _, p := range slices.Backward(path) {
			if e.writes[p] {
				writes++
			}
			if left[p] = writes; writes == maxWrites {
				report(p, nil, fmt.Sprintf("%d writes until it is at rest", writes))
			}
		}
	}
}

// kindOf returns a breach without its numbers, so that each kind is reported once.
func kindOf(breach string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, breach)
}

// runs are the small worlds.
func runs() (all []config) {
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION} {
		for _, routed := range []bool{true, false} {
			c := config{style: style, replicas: 2, unavailable: "1", surge: "0", routed: routed, admission: true}
			all = append(all, c)
			c.unavailable, c.surge, c.headers = "0", "1", routed
			c.pool = routed
			all = append(all, c)
			c.pool = false
			c.headers, c.replicas, c.unavailable, c.surge, c.parallel, c.admission = false, 3, "1", "0", true, false
			all = append(all, c)
			broken := c
			broken.nodes, broken.threshold, broken.warmUp = true, true, routed
			all = append(all, broken)
			c.scaler, c.minReady, c.disown, c.admission = true, true, true, true
			all = append(all, c)
			if late := c; !routed {
				late.limited, late.resizes = true, true
				all = append(all, late)
			}
			if style == pb.Style_STYLE_BLUE_GREEN {
				c.replicas, c.adopt, c.scaler, c.delay, c.disown = 2, true, false, true, routed
				if c.two = routed; !routed {
					c.replicas = 1 // without it no group serves
				}
				all = append(all, c)
			}
		}
	}
	return all
}

// TestExplore visits the states of small worlds: in every one each safety rule holds, and from every one
// there is an end. A breach is printed as a course, for a file under testdata: see [TestScenarios].
func TestExplore(t *testing.T) {
	var total atomic.Int64
	first := flag.Lookup("test.failfast").Value.String() == "true"
	t.Run("runs", func(t *testing.T) {
		parent := t
		for _, c := range runs() {
			if !strings.Contains(c.String(), *exploreRuns) {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				if first && parent.Failed() {
					t.Skip("another world has a breach")
				}
				began := time.Now()
				most := *exploreStates
				if c.routed {
					most *= 3
				}
				e, found := explore(c, *exploreDisturb, most, first)
				t.Logf("%d states in %s", e.visited, time.Since(began).Round(time.Millisecond))
				total.Add(int64(e.visited))
				for _, v := range found {
					t.Errorf("%s\n%s\n%s", v.breach, v.course, v.course.tell())
				}
			})
		}
	})
	t.Logf("%d states with at most %d disturbances", total.Load(), *exploreDisturb)
}

// step returns the step of an act, or the next one that happens by itself, at the end also by time, or false if there is none.
func (w *world) step(s *state, do string) (step, bool) {
	for _, t := range w.next(s, math.MaxUint8, nil) {
		waits := t.act.do == actWait || t.act.do == actWaitLong
		if do == actEnd && t.calm || do == actRest && t.calm && !waits || t.act.String() == do {
			return t, true
		}
	}
	return step{}, false
}
