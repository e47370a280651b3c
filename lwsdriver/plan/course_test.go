// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// course is a small world of either kind and what happens in it, in the words of a scenario.
type course struct {
	kind, world string
	acts        []string
}

// The kinds of small worlds: of a LeaderWorkerSet, and of a DisaggregatedSet.
const (
	kindOfSmall = "course"
	kindOfRoles = "roles"
)

const (
	actRest = "rest" // in a course, all that happens by itself until only time remains
	actEnd  = "end"  // after a course, all that happens once nothing disturbs any more
)

// maxTold bounds the steps of one act of a course.
const maxTold = 1000

// simulated is a small world while a course runs in it.
type simulated interface {
	// take takes the step of an act, or returns false if it is not possible. It tells what the driver writes, and which rule is broken.
	take(do string) (told, breach string, ok bool)
	breachOfEnd() string
	// ended returns what the driver says in the end, and what is wrong with that, or "".
	ended() (Decision, string)
}

func (c course) begin() simulated {
	if c.kind == kindOfRoles {
		return &roleRun{s: parseRoles(c.world)}
	}
	w, s := newWorld(parseConfig(c.world))
	return &run{w, s}
}

func (c course) String() string {
	return c.kind + "\n" + c.world + "\n" + strings.Join(c.acts, "\n") + "\n----"
}

// tell runs a course, and returns what the driver writes in it, which rule is broken, and how it ends.
func (c course) tell() string {
	s := c.begin()
	var b strings.Builder
	for _, do := range append(slices.Clone(c.acts), actEnd) {
		if do != actEnd && do != actDrive {
			fmt.Fprintf(&b, "%s\n", do)
		}
		for range maxTold { // writes that never end are told so often
			told, breach, ok := s.take(do)
			if b.WriteString(told); breach != "" {
				return b.String() + "BREACH: " + breach + "\n"
			}
			if !ok && do != actRest && do != actEnd {
				b.WriteString("  not now\n")
			}
			if !ok || do != actRest && do != actEnd {
				break
			}
		}
	}
	d, wrong := s.ended()
	fmt.Fprintf(&b, "end: %s, %s: %s\n", strings.TrimPrefix(d.State.String(), "STATE_"), d.Reason, d.Message)
	if wrong != "" {
		fmt.Fprintf(&b, "BREACH: %s\n", wrong)
	}
	return b.String()
}

// breaks reports whether the course breaks a rule of a kind, and returns it with only the acts until then that are possible.
func (c course) breaks(kind string) (course, bool) {
	s, acts := c.begin(), c.acts
	c.acts = nil
	for _, do := range acts {
		_, breach, ok := s.take(do)
		if !ok {
			continue
		}
		if c.acts = append(c.acts, do); breach != "" {
			return c, kindOf(breach) == kind
		}
	}
	return c, kindOf(s.breachOfEnd()) == kind
}

// shrunk returns the course without the acts that it does not need to break a rule of a kind.
func (c course) shrunk(kind string) course {
	until := time.Now().Add(2 * time.Minute)
	for size := max(len(c.acts)/2, 1); ; {
		less := false
		for i := 0; i < len(c.acts) && time.Now().Before(until); {
			shorter := c
			shorter.acts = slices.Delete(slices.Clone(c.acts), i, min(i+size, len(c.acts)))
			if next, ok := shorter.breaks(kind); ok {
				c, less = next, true
			} else {
				i += size
			}
		}
		if size == 1 && !less || time.Now().After(until) {
			return c
		}
		if !less {
			size /= 2
		}
		size = max(size, 1)
	}
}

// run is a small world of a LeaderWorkerSet while a course runs in it.
type run struct {
	w *world
	s state
}

// parseConfig reads the first line of a course.
func parseConfig(text string) config {
	l := parseLine("world " + text)
	c := config{style: pb.Style(pb.Style_value["STYLE_"+l.attrs["style"]]), replicas: l.number("replicas", 0)}
	c.unavailable, c.surge, _ = strings.Cut(l.attrs["own"], "/")
	for word, is := range c.words() {
		*is = l.has(word) || l.name == word
	}
	return c
}

func (r *run) take(do string) (told, breach string, ok bool) {
	if r.w.only = nil; do != actRest && do != actEnd {
		r.w.onlyOf(do)
	}
	r.s.spent = 0
	t, ok := r.w.step(&r.s, do)
	if !ok {
		return "", "", false
	}
	if t.act.do == actDrive {
		if d := reconcile(r.w.observe(&r.s)); d.Action != nil {
			if told = fmt.Sprintf("  %s: %s", d.Reason, d.Action); t.state.refused {
				told += " (refused)"
			}
			told += "\n"
		}
	}
	r.s = t.state
	return told, t.breach, true
}

func (r *run) breachOfEnd() string { return r.w.breachOfEnd(r.s) }

func (r *run) ended() (Decision, string) {
	d := reconcile(r.w.observe(&r.s))
	if wrong := r.w.unsettled(&r.s, d); wrong != "" {
		return d, wrong
	}
	r.w.once, r.w.only, r.w.hasty = true, nil, true
	return d, r.w.unforced(r.s)
}

// roleRun is a small world of a DisaggregatedSet while a course runs in it.
type roleRun struct {
	s    roleState
	over bool
}

func (r *roleRun) take(do string) (told, breach string, ok bool) {
	if do == actEnd {
		if r.over || !r.s.walk {
			return "", "", false
		}
		r.over = true
		r.s, breach = r.s.atEnd(func(by string) { told += "  " + strings.TrimPrefix(by, "driver: ") + "\n" })
		return told, breach, true
	}
	o := r.s.observe()
	steps, err := r.s.steps(o)
	if err != nil {
		return "", err.Error(), true
	}
	i := slices.IndexFunc(steps, func(t roleStep) bool { return do == actRest && t.own || strings.HasPrefix(t.by, do) })
	if i < 0 {
		return "", "", false
	}
	if write, is := strings.CutPrefix(steps[i].by, "driver: "); is {
		told = "  " + write + "\n"
	}
	breach = r.s.breach(o, steps[i])
	r.s = r.s.after(steps[i])
	return told, breach, true
}

func (r *roleRun) breachOfEnd() string { return r.s.breachOfEnd() }

func (r *roleRun) ended() (Decision, string) {
	o := r.s.observe()
	d := reconcile(o)
	if r.s.walk {
		return d, r.s.unended(o, d)
	}
	return d, r.s.settled(o, d)
}
