// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestWalksOfRoles is [TestWalks] for DisaggregatedSets. Not a breach, since no driver can prevent it: groups that the environment takes or a user
// adds, until they are ready; what LeaderWorkerSet does while another client has edited or deleted the bounds, and that groups which it rolled to
// meanwhile are removed with their requests; a group that LeaderWorkerSet removes before the driver has counted it; what is in a slice that the user
// removes; requests after the record is deleted, since nothing else names the routes.
func TestWalksOfRoles(t *testing.T) {
	t.Parallel()
	takeWalks(t, *walks/4, walkRoles) // each costs four times as much
}

// parseRoles returns what a course begins with.
func parseRoles(world string) roleState {
	l := parseLine("set " + world)
	s := roleState{style: pb.Style(pb.Style_value["STYLE_"+l.attrs["style"]]), slices: uint8(l.number("slices", 1)), edits: 9, losses: 9, walk: l.has("walk")}
	pair := func(key string, i int) uint8 {
		all := strings.Split(l.attrs[key], "/")
		return uint8(line{attrs: map[string]string{key: all[min(i, len(all)-1)]}}.number(key, 0))
	}
	for i, name := range roleNames {
		if s.three = i == 2 && l.has(name); i == 2 && !s.three {
			break
		}
		s.wanted[i], s.unavailable[i], s.surge[i] = uint8(l.number(name, 1)), pair("unavailable", i), pair("surge", i)
	}
	if s.walk {
		s.edits, s.losses, s.deletes, s.resizes = many, many, many, many
		s.second, s.threshold, s.warmUp = l.has("second"), l.has("threshold"), l.has("warm-up")
		if l.has("scaler") {
			s.scalers = many
		}
	}
	s.autoscaled = l.has("autoscaled")
	s = s.atRest().adopted()
	if !l.has("unrouted") {
		s.route()
		s.reverts = s.deletes
	}
	return s
}

const many = 200

// randomRoles returns a world of a course.
func randomRoles(r *rand.Rand) string {
	styles := []string{"CANARY", "BLUE_GREEN", "PARTITION"}
	world := fmt.Sprintf("style=%s prefill=%d decode=%d slices=%d", styles[r.IntN(len(styles))], 1+r.IntN(4), 1+r.IntN(5), 1+r.IntN(slicesOf))
	pace := func() (unavailable, surge int) {
		p := [...][2]int{{0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 0}}[r.IntN(5)]
		return p[0], p[1]
	}
	u0, s0 := pace()
	u1, s1 := pace()
	if r.IntN(3) == 0 {
		u2, s2 := pace()
		world += fmt.Sprintf(" encode=%d unavailable=%d/%d/%d surge=%d/%d/%d walk", 1+r.IntN(5), u0, u1, u2, s0, s1, s2)
	} else {
		world += fmt.Sprintf(" unavailable=%d/%d surge=%d/%d walk", u0, u1, s0, s1)
	}
	if r.IntN(3) == 0 {
		world += " unrouted"
	}
	for _, property := range []string{" scaler", " second", " threshold", " warm-up", " autoscaled"} {
		if r.IntN(4) == 0 {
			world += property
		}
	}
	return world
}

// walkRoles takes a course of random acts, and returns it with the rule that it breaks, or "".
func walkRoles(seed uint64) (course, string) {
	r := rand.New(rand.NewPCG(seed, 1))
	c := course{kind: kindOfRoles, world: randomRoles(r)}
	for !strings.Contains(c.world, *exploreRuns) {
		c.world = randomRoles(r)
	}
	s := parseRoles(c.world)
	never := map[string]bool{}
	calm, host := 0.4+0.5*r.Float64(), 0.3+0.4*r.Float64()
	next := 0 // of a whole release
	for tries := 0; tries < 2**walkSteps && len(c.acts) < *walkSteps; tries++ {
		o := s.observe()
		step, err := s.decides(o, driver)
		acts, forward := []roleStep{}, roleRelease[next%len(roleRelease)]
		switch {
		case r.Float64() < calm && next > 0:
			if step == nil && err == nil {
				step = s.own()
			}
		case r.Float64() < host:
			asks := s.asks()
			if step, err = s.decides(o, asks[r.IntN(len(asks))]); next == 0 || r.Float64() < host {
				step, err = s.step(o, strings.Replace(forward, "R", revision(1+r.IntN(revisions)).String(), 1))
			}
		case r.IntN(4) > 0:
			step, err = nil, nil
			for _, t := range s.others() {
				kind := actOf(t.by)
				if _, drawn := never[kind]; !drawn {
					never[kind] = r.IntN(3) > 0
				}
				if t.disturbs && !never[kind] {
					acts = append(acts, t)
				}
			}
			acts = oneKind(r, acts)
		default:
			for _, t := range s.others() {
				if t.own {
					acts = append(acts, t)
				}
			}
			if acts = oneKind(r, acts); step != nil && err == nil && len(acts) > 0 {
				step = nil
			}
		}
		if len(acts) > 0 {
			step = &acts[r.IntN(len(acts))]
		}
		if err != nil {
			c.acts = append(c.acts, driver.by)
			return c, err.Error()
		}
		if step == nil {
			continue
		}
		if c.acts = append(c.acts, nameOf(step.by)); actOf(nameOf(step.by)) == actOf(forward) {
			next++
		}
		if broken := s.breach(o, *step); broken != "" {
			return c, broken
		}
		s = s.after(*step)
	}
	return c, s.breachOfEnd()
}

// roleRelease is what happens in a release that is promoted.
var roleRelease = []string{
	"the user edits the template to R", "host begins", "host asks for a unit", "host asks for 50 %", "host asks for all units", "host asks for 100 %", "host promotes",
}

// own returns what happens next by itself without the driver, nil if nothing does.
func (s roleState) own() *roleStep {
	all := s.others()
	if i := slices.IndexFunc(all, func(t roleStep) bool { return t.own }); i >= 0 {
		return &all[i]
	}
	return nil
}

// nameOf returns how a course names an act: what is written follows from it.
func nameOf(by string) string {
	name, _, _ := strings.Cut(by, ": ")
	return name
}

// actOf returns a kind of acts, whatever they are done to.
func actOf(by string) string {
	words := slices.DeleteFunc(strings.Fields(by), func(w string) bool { return len(w) == 1 || strings.ContainsAny(w, "0123456789") })
	return strings.Join(words, " ")
}

// oneKind returns acts of a random kind.
func oneKind(r *rand.Rand, acts []roleStep) []roleStep {
	if len(acts) == 0 {
		return nil
	}
	var kinds []string
	for _, t := range acts {
		if k := actOf(t.by); !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	kind := kinds[r.IntN(len(kinds))]
	return slices.DeleteFunc(acts, func(t roleStep) bool { return actOf(t.by) != kind })
}

// step returns the step of an act of a course, nil if it is not possible.
func (s roleState) step(o Observation, do string) (step *roleStep, err error) {
	if do == driver.by {
		return s.decides(o, driver)
	}
	for _, a := range s.asks() {
		if a.by == do {
			return s.decides(o, a)
		}
	}
	for _, t := range s.others() {
		if t.by == do {
			step = &t
		}
	}
	return step, nil
}

// after returns the state after a step. A late write is refused once its object has changed.
func (s roleState) after(step roleStep) roleState {
	n := step.next
	if n.late != nil && n.late == s.late && n.late.stale(&s, &n) {
		n.late = nil
	}
	if step.bounds != nil {
		n.tampered = false
	}
	if n.net != nil {
		n.unnamed = n.objects != n.net.untouched && n.released() == nil && !n.named() && (n.unnamed || step.disturbs)
	}
	return n
}

// lateWrite is a write that is decided, and not made yet.
type lateWrite struct{ action Action }

// stale reports whether the object of the write has changed.
func (l *lateWrite) stale(before, after *roleState) bool {
	switch l.action.(type) {
	case SetBounds, RemoveBounds:
		return before.bounds != after.bounds
	case ScaleChild, LabelServing:
		return before.children != after.children
	case SetTraffic:
		return before.objects != after.objects
	case HoldAutoscaler, ReleaseAutoscaler:
		return before.held != after.held || before.noted != after.noted
	default:
		return before.record != after.record || before.template != after.template || before.wanted != after.wanted || before.slices != after.slices ||
			before.unavailable != after.unavailable || before.surge != after.surge
	}
}

// unrouted reports whether it is of a route, and no release is left that says which: the model has no names for these.
func (l *lateWrite) unrouted(s *roleState) bool {
	_, routes := l.action.(SetTraffic)
	return routes && s.released() == nil && !s.named()
}

// roleRefusals are kinds of writes, by what they write.
var roleRefusals = [...]string{"nothing", "the set", "bounds", "children", "routing", "pods"}

func roleRefusal(a Action) uint8 {
	switch a.(type) {
	case SetStable, RemoveRecord, HoldAutoscaler, ReleaseAutoscaler:
		return 1
	case SetBounds, RemoveBounds:
		return 2
	case ScaleChild:
		return 3
	case SetTraffic:
		return 4
	case LabelServing:
		return 5
	}
	return 0
}

// walkSteps returns what only walks do.
func (s roleState) walkSteps() (all []roleStep) {
	add := func(by string, change func(*roleState)) {
		n := s
		if change(&n); n != s {
			n.receive()
			all = append(all, roleStep{by: by, next: n, disturbs: true})
		}
	}
	for i, name := range roleNames {
		if s.lacks(1, i) {
			break
		}
		for _, to := range []uint8{s.wanted[i] - 1, s.wanted[i] + 1} {
			if to < maxIndices-1 && (i > 0 || s.scalers == 0 || !s.unsized) {
				add(fmt.Sprintf("the user sets %s to %d groups", name, to), func(n *roleState) { n.resize(i, to) })
			}
		}
		for _, pace := range [...][2]uint8{{0, 1}, {1, 0}, {1, 1}, {2, 0}} {
			add(fmt.Sprintf("the user sets the pace of %s to %d/%d", name, pace[0], pace[1]), func(n *roleState) { n.unavailable[i], n.surge[i] = pace[0], pace[1] })
		}
	}
	if s.warmUp {
		add("another driver leads", func(n *roleState) {
			n.late = nil
			for r, m := range n.all() {
				n.at(r, m).warm = 0
			}
		})
	}
	for r, m := range s.all() {
		c := *s.at(r, m)
		for g := range maxIndices {
			bit := uint8(1) << g
			if c.stuck&bit != 0 {
				add(fmt.Sprintf("the node of group %d of %s of %s is back", g, m, r), func(n *roleState) { n.at(r, m).stuck &^= bit })
			} else if g < int(c.replicas) {
				add(fmt.Sprintf("the node of group %d of %s of %s is lost", g, m, r), func(n *roleState) {
					c := n.at(r, m)
					c.ready, c.busy, c.warm, c.stuck, c.hurt = c.ready&^bit, c.busy&^bit, c.warm&^bit, c.stuck|bit, c.hurt|bit
				})
			}
		}
		if c.exists {
			add(fmt.Sprintf("another client deletes child %s of %s", m, r), func(n *roleState) {
				*n.at(r, m) = roleChild{deleted: true, hurt: 1<<s.wanted[m.role] - 1}
			})
			for want := range s.wanted[m.role] + 2 {
				if want != c.replicas && s.allows(r, m, want, false) {
					add(fmt.Sprintf("another client scales child %s of %s to %d", m, r, want), func(n *roleState) { *n = n.scale(r, m, want) })
				}
			}
		}
	}
	if s.bounds != "" {
		edit := func(by string, change func(*Bounds)) {
			add(by, func(n *roleState) {
				b := *boundsRead.of(s.bounds)
				change(&b)
				n.bounds, n.tampered = encodeJSON(b), true
			})
		}
		edit("another client opens the bounds", func(b *Bounds) {
			least := map[string]int{}
			for at := range b.Min {
				least[at] = 0
			}
			b.Min = least
		})
		edit("another client removes the update from the bounds", func(b *Bounds) { b.Update, b.Units, b.Exact, b.Target = "", 0, nil, nil })
	}
	add("another client restores the autoscaler", func(n *roleState) { n.held = autoscaler.HoldNone })
	if s.record != "" && !s.left {
		add("another client deletes the record", func(n *roleState) {
			n.record = ""
		})
	}
	for _, how := range []string{"", ", and its children are orphaned"} {
		if _, kept := s.remains(); !kept {
			add("the set is deleted and created again"+how, func(n *roleState) { n.recreate(how != "") })
		}
	}
	if o := s.observe(); s.record != "" {
		add("the deadline passes", func(n *roleState) { n.overdue = o.askedFor() })
	}
	toggle := func(is bool, down, up string, change func(*roleState)) {
		if is {
			down = up
		}
		add(down, change)
	}
	toggle(s.lwsDown, "LWS stops", "LWS starts", func(n *roleState) { n.lwsDown = !n.lwsDown })
	if s.net != nil {
		toggle(s.gatewayDown, "the gateway stops", "the gateway starts", func(n *roleState) { n.gatewayDown = !n.gatewayDown })
	}
	if s.refuses != 0 {
		add("the API server accepts writes", func(n *roleState) { n.refuses = 0 })
	}
	for i, what := range roleRefusals {
		if i > 0 && s.refuses == 0 {
			add("the API server refuses "+what, func(n *roleState) { n.refuses = uint8(i) })
		}
	}
	if s.late == nil {
		if d := reconcile(s.observe()); d.Action != nil {
			add("the driver decides", func(n *roleState) { n.late = &lateWrite{d.Action} })
		}
	} else if refused := s.refuses != 0 && roleRefusal(s.late.action) == s.refuses; !refused && !s.late.unrouted(&s) {
		n := s
		n.late = nil
		if next, err := n.write(s.late.action); err == nil {
			add("late write", func(n *roleState) { *n = next })
		}
	}
	return all
}

// all yields the children of all revisions.
func (s roleState) all() iter.Seq2[revision, roleMember] {
	return func(yield func(revision, roleMember) bool) {
		for r := revision(1); r <= revisions; r++ {
			for m := range s.members(r) {
				if !yield(r, m) {
					return
				}
			}
		}
	}
}

// owned reports whether a child is one of the set.
func (c roleChild) owned() bool { return c.exists && !c.earlier }

// remains returns a child of an earlier set.
func (s roleState) remains() (child string, found bool) {
	for r, m := range s.all() {
		if c := s.at(r, m); c.exists && c.earlier {
			return m.child(r), true
		}
	}
	return "", false
}

// recreate has the user delete the set, and create it again. The bounds stay as long as they name routes, or without an owner.
func (s *roleState) recreate(orphans bool) {
	s.record, s.late, s.overdue, s.asked = "", nil, "", 0
	s.promoted, s.left, s.tampered, s.orphans = false, false, false, orphans
	if s.earlier = s.bounds != "" && (orphans || s.named()); !s.earlier {
		s.bounds = ""
	}
	for r, m := range s.all() {
		s.at(r, m).earlier = s.at(r, m).exists
	}
}

// resize has the user scale a role. Groups that are added are missing until they are ready.
func (s *roleState) resize(role int, to uint8) {
	was := s.wanted[role]
	s.wanted[role] = to
	for r, m := range s.all() {
		if c := s.at(r, m); m.role != role {
			continue
		} else if to > was {
			c.hurt |= (1<<to - 1) &^ (1<<was - 1)
		} else {
			c.hurt &= 1<<to - 1
		}
	}
}

// hurtUnits returns how many units of a slice, with -1 of all, the environment took from a revision, and has not given back.
func (s roleState) hurtUnits(of func(revision) bool, slice int) (units int) {
	for r := revision(1); r <= revisions; r++ {
		for at := range int(s.slices) {
			if !of(r) || slice >= 0 && at != slice {
				continue
			}
			worst := 0
			for role, c := range s.children[r][at] {
				hurt := bits.OnesCount8(c.hurt &^ c.ready)
				if s.wanted[role] > 0 {
					worst = max(worst, (hurt*int(s.wanted[0])+int(s.wanted[role])-1)/int(s.wanted[role]))
				}
			}
			units += worst
		}
	}
	return units
}

func anyRevision(revision) bool { return true }

// healed returns the state in which nothing disturbs any more, but for the nodes that are lost.
func (s roleState) healed() roleState {
	s.lwsDown, s.gatewayDown, s.refuses, s.late = false, false, 0, nil
	return s
}

// atEnd returns the state in which nothing happens any more once nothing disturbs, and which rule is broken until then, or "". It tells each
// step. As long as nodes are lost, the release waits no longer than the deadline.
func (s roleState) atEnd(tell func(by string)) (end roleState, broken string) {
	end, broken = s.healed().rest(tell)
	late, lost := end, false
	for r, m := range end.all() {
		c := end.at(r, m)
		lost, c.stuck = lost || c.stuck != 0, 0
	}
	if !lost || broken != "" {
		return end, broken
	}
	late.overdue = late.observe().askedFor()
	if d := reconcile(late.observe()); d.Action == nil && d.State != pb.State_STATE_FAILED && !atRestIn(d.State) {
		return late, fmt.Sprintf("rule 8: it waits for a lost node for ever in %s, %s: %s", d.State, d.Reason, d.Message)
	}
	return end.rest(tell)
}

// rest returns the state in which nothing happens any more, or the rule that is broken before.
func (s roleState) rest(tell func(by string)) (end roleState, broken string) {
	for range maxTold {
		o := s.observe()
		step, err := s.decides(o, driver)
		if err != nil {
			return s, err.Error()
		}
		if step == nil {
			step = s.own()
		}
		if step == nil {
			return s, ""
		}
		tell(step.by)
		if broken := s.breach(o, *step); broken != "" {
			return s, broken
		}
		s = s.after(*step)
	}
	return s, "it never comes to rest"
}

// breachOfEnd returns which rule is broken from a state on once nothing disturbs any more, or "".
func (s roleState) breachOfEnd() string {
	end, broken := s.atEnd(func(string) {})
	if broken != "" {
		return broken
	}
	o := end.observe()
	return end.unended(o, reconcile(o))
}

// unended returns what is wrong with a state in which nothing happens any more, or "" if nothing is.
func (s roleState) unended(o Observation, d Decision) string {
	_, lacks := s.remains()
	for r, m := range s.all() {
		c := s.at(r, m)
		lacks = lacks || m.slice < int(s.slices) && (c.deleted || !c.exists && r != s.template && r == revisionOf(o.stableSide()) && strings.Contains(d.Message, "no child"))
	}
	switch final := d.State == pb.State_STATE_COMPLETED || d.State == pb.State_STATE_ROLLED_BACK || d.State == pb.State_STATE_NOTHING_TO_RELEASE; {
	case s.earlier && d.Reason == ReasonCapacityBelowShare: // a person has to scale what is left
		return ""
	case s.earlier:
		return "rule 7: bounds of a deleted set are left"
	case lacks && d.Message != "": // LeaderWorkerSet does not create it, and the message says what to do
		return ""
	case s.settled(o, d) != "":
		return s.settled(o, d)
	case d.State == pb.State_STATE_FAILED && d.Message == "", d.State != pb.State_STATE_FAILED && !atRestIn(d.State) && !awaitsHost(o, d):
		return fmt.Sprintf("rule 8: it waits for ever in %s, %s: %s", d.State, d.Reason, d.Message)
	case final && s.serving(revisionOf(o.stableSide()), -1):
		return fmt.Sprintf("rule 7: %s with groups of another revision", d.State)
	case s.net != nil && (final || s.record != "" && o.release() == nil) && s.objects != s.net.untouched && !s.unnamed:
		return fmt.Sprintf("rule 7: %s with objects of a release", d.State)
	}
	return ""
}
