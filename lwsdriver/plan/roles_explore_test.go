// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The explorer visits every state of a DisaggregatedSet of two roles, its release, and all who act on them: the driver, the host, the user,
// the kubelet, and a controller that tries whatever the bounds allow. Time stands still, and no request is routed: the small world of a
// LeaderWorkerSet has both.

const rolesOf = 2

// roleNames are the roles: decode is the one that is removed last.
var roleNames = [rolesOf]string{"prefill", "decode"}

// roleChild is a child. Its groups exist as soon as its spec has them.
type roleChild struct {
	exists          bool
	replicas, ready uint8
}

// roleState is one state. It is comparable: record and bounds are JSON.
type roleState struct {
	template       revision
	wanted         [rolesOf]uint8
	children       [revisions + 1][rolesOf]roleChild
	record, bounds string
	edits, losses  uint8
	asked          uint8 // the most units that the host has asked for, of the present template
	promoted, left bool  // the host asked for it; the set was disowned
	style          pb.Style
	// unavailable and surge are those of each role.
	unavailable, surge [rolesOf]uint8
	// scalers is how often a scaler may still be deleted, and grows how often it may still be raised. unsized is true while role prefill has
	// none.
	scalers, grows uint8
	unsized        bool
}

func (s roleState) observe() Observation {
	o := Observation{
		Now: noon, Slices: 1, BoundsEnforced: true,
		Stable: Workload{Name: "llm"},
	}
	for i, name := range roleNames {
		o.Roles = append(o.Roles, Role{
			Name: name, Replicas: int(s.wanted[i]), Size: 1, MaxUnavailable: int(s.unavailable[i]), MaxSurge: int(s.surge[i]),
		})
	}
	if s.unsized {
		o.Roles[0].External, o.Roles[0].Unsized = true, "it has no scaler"
	}
	o.Stable.Revision, o.Stable.Observed = s.template.String(), true
	for r := revision(1); r <= revisions; r++ {
		for i, c := range s.children[r] {
			o.Stable.Observed = o.Stable.Observed && (r != s.template || c.exists)
			if !c.exists {
				continue
			}
			name := fmt.Sprintf("llm-%s-%s", r, roleNames[i])
			child := Child{Name: name, Role: roleNames[i], Revision: r.String(), Replicas: int(c.replicas)}
			for g := range int(c.replicas) {
				group := Group{Index: g, Leader: fmt.Sprintf("%s-%d", name, g), Revision: "lws", Pods: 1, LostAt: noon, Reason: "Starting"}
				if g < int(c.ready) {
					group.Ready, group.ReadyPods, group.LostAt, group.Reason = true, 1, time.Time{}, ""
					group.ReadySince, group.FirstReady = noon.Add(-time.Hour), noon.Add(-time.Hour)
				}
				child.Groups = append(child.Groups, group)
			}
			o.Children = append(o.Children, child)
		}
	}
	if s.record != "" {
		known := records.of(s.record)
		o.Record, o.Policy = &known.record, known.policy
	}
	if s.bounds != "" {
		o.Bounds = boundsRead.of(s.bounds)
	}
	if s.unsized {
		o.Roles[0].Replicas = LastSize(o, roleNames[0])
	}
	return Judge(o)
}

// decoded keeps what was decoded from JSON: states share few records and bounds.
type decoded[T any] struct {
	known map[string]*T
	read  func([]byte) *T
}

func (d *decoded[T]) of(raw string) *T {
	v, ok := d.known[raw]
	if !ok {
		v = d.read([]byte(raw))
		d.known[raw] = v
	}
	return v
}

// recordRead is a record and the policy of its release.
type recordRead struct {
	record record.Record
	policy record.Policy
}

var (
	records = decoded[recordRead]{known: map[string]*recordRead{}, read: func(raw []byte) *recordRead {
		v := &recordRead{}
		no(json.Unmarshal(raw, &v.record))
		if r := v.record.Release; r != nil {
			message, err := r.KnownPolicy()
			no(err)
			v.policy, _ = record.ParsePolicy(message)
		}
		return v
	}}
	boundsRead = decoded[Bounds]{known: map[string]*Bounds{}, read: func(raw []byte) *Bounds {
		v := &Bounds{}
		no(json.Unmarshal(raw, v))
		return v
	}}
)

func no(err error) {
	if err != nil {
		panic(err)
	}
}

func encodeJSON(v any) string {
	raw, err := json.Marshal(v)
	no(err)
	return string(raw)
}

// allows is the admission policy of config/disaggregated.
func (s roleState) allows(r revision, role int, want uint8, create bool) bool {
	if s.bounds == "" {
		return true
	}
	b := boundsRead.of(s.bounds)
	have, name := s.children[r][role].replicas, roleNames[role]
	switch {
	case !create && want == have, create && want == 0 && r.String() != b.Stable:
		return true
	case r.String() == b.Stable && b.Min[name] == 0:
		return want <= have
	case r.String() == b.Stable:
		most, limited := b.Max[name]
		return (int(want) >= b.Min[name] || want > have) && (!limited || int(want) <= most)
	case r.String() == b.Update:
		return int(want) == b.Exact[name]
	}
	return want == 0
}

// scale sets the groups of a child: new ones are not ready, and the last ones go first.
func (s roleState) scale(r revision, role int, n uint8) roleState {
	c := &s.children[r][role]
	c.replicas, c.ready = n, min(c.ready, n)
	return s
}

// write applies an action of the driver, as LWS and the API server do.
func (s roleState) write(action Action) (roleState, error) {
	switch a := action.(type) {
	case SetStable:
		if a.Rolling != nil || a.Replicas != nil || a.SaveTemplate || a.RestoreTemplate {
			return s, fmt.Errorf("%#v is no write of a DisaggregatedSet", a)
		}
		rec := a.Record
		if rec.Release != nil {
			next := *rec.Release
			next.Target = atNoon(next.Target)
			rec.Release = &next
		}
		s.record = encodeJSON(rec)
	case RemoveRecord:
		s.record, s.bounds, s.left = "", "", true
	case SetBounds:
		b := a.Bounds
		b.Target = atNoon(b.Target)
		s.bounds = encodeJSON(b)
	case ScaleChild:
		for r := revision(1); r <= revisions; r++ {
			for i := range roleNames {
				if a.Name != fmt.Sprintf("llm-%s-%s", r, roleNames[i]) {
					continue
				}
				if !s.allows(r, i, uint8(a.Replicas), false) {
					return s, fmt.Errorf("%s is not within %s", a, s.bounds)
				}
				return s.scale(r, i, uint8(a.Replicas)), nil
			}
		}
		return s, fmt.Errorf("%s: there is no such child", a)
	default:
		return s, fmt.Errorf("%T is no write of a DisaggregatedSet", action)
	}
	return s, nil
}

func atNoon(t *record.Target) *record.Target {
	if t == nil {
		return nil
	}
	next := *t
	next.At = noon
	return &next
}

// roleStep is a transition.
type roleStep struct {
	by   string
	next roleState
	// bounds are those that the driver wrote. Nil: it wrote none.
	bounds *Bounds
}

// steps returns all that may happen next. The error is a defect of the driver.
func (s roleState) steps() (all []roleStep, err error) {
	o := s.observe()
	act := func(by string, i Intent, with func(*roleState)) error {
		d, err := Decide(o, i)
		if err != nil && i != nil {
			return nil // the host is refused
		}
		if d.Reason == ReasonInvariantViolation {
			return fmt.Errorf("%s: %s", by, d.Message)
		}
		if d.Action == nil {
			return nil
		}
		next, err := s.write(d.Action)
		if err != nil {
			return fmt.Errorf("%s: %w", by, err)
		}
		if with != nil {
			with(&next)
		}
		step := roleStep{by: by + ": " + d.Action.String(), next: next}
		if a, ok := d.Action.(SetBounds); ok {
			step.bounds = &a.Bounds
		}
		all = append(all, step)
		return nil
	}
	if err := act("driver", nil, nil); err != nil {
		return nil, err
	}
	policy := &pb.ReleasePolicy{Style: s.style, Batches: []string{"1", "100%"}}
	if s.record == "" && !s.left {
		err = act("host adopts", Adopt{}, nil)
	}
	for _, host := range []struct {
		by   string
		i    Intent
		with func(*roleState)
	}{
		{"host begins", Begin{ReleaseID: "r", Policy: policy}, func(n *roleState) { n.asked = 0 }},
		{"host asks for a unit", SetTarget{ReleaseID: "r", Groups: "1"}, func(n *roleState) { n.asked = max(n.asked, 1) }},
		{"host asks for all units", SetTarget{ReleaseID: "r", Groups: "100%"}, func(n *roleState) { n.asked = 9 }},
		{"host promotes", Promote{ReleaseID: "r"}, func(n *roleState) { n.promoted, n.asked = true, 9 }},
		{"host aborts", RollBack{ReleaseID: "r"}, nil},
		{"host disowns", Disown{}, nil},
	} {
		if err == nil && s.record != "" {
			err = act(host.by, host.i, host.with)
		}
	}
	all = append(all, s.others()...)
	return all, err
}

// others returns what everybody but the driver and its host may do.
func (s roleState) others() (all []roleStep) {
	add := func(by string, next roleState) { all = append(all, roleStep{by: by, next: next}) }
	for r := revision(1); r <= revisions; r++ {
		drained := true
		for i, c := range s.children[r] {
			drained = drained && c.replicas == 0
			if !c.exists && r == s.template {
				n := s
				if s.serving(r) { // another revision has groups
					n.children[r][i] = roleChild{exists: true}
				} else {
					n.children[r][i] = roleChild{exists: true, replicas: s.wanted[i]}
				}
				if s.allows(r, i, n.children[r][i].replicas, true) {
					add(fmt.Sprintf("LWS creates %s of %s", roleNames[i], r), n)
				}
			}
			if !c.exists {
				continue
			}
			for want := range s.wanted[i] + 2 {
				if s.unsized && i == 0 {
					break // LWS keeps what there is
				}
				up := r == s.template && want > c.replicas && want <= s.wanted[i]
				if down := r != s.template && want < c.replicas; (up || down) && s.allows(r, i, want, false) {
					add(fmt.Sprintf("LWS scales %s of %s to %d", roleNames[i], r, want), s.scale(r, i, want))
				}
			}
			if c.ready < c.replicas {
				n := s
				n.children[r][i].ready++
				add(fmt.Sprintf("a group of %s of %s is ready", roleNames[i], r), n)
			}
			if c.ready > 0 && s.losses > 0 {
				n := s
				n.losses--
				n.children[r][i].ready--
				add(fmt.Sprintf("a group of %s of %s is lost", roleNames[i], r), n)
			}
		}
		if exists := s.children[r][0].exists || s.children[r][1].exists; exists && drained && r != s.template {
			n := s
			n.children[r] = [rolesOf]roleChild{}
			add(fmt.Sprintf("LWS deletes the children of %s", r), n)
		}
	}
	if n := s; s.unsized {
		n.unsized = false
		add("LWS creates the scaler", n)
	} else if s.scalers > 0 {
		n.unsized, n.scalers = true, s.scalers-1
		add("the scaler is deleted", n)
	}
	if n := s; s.grows > 0 && s.bounds != "" && s.within(*boundsRead.of(s.bounds)) {
		n.wanted[0]++
		n.grows--
		add("the scaler is raised", n)
	}
	for r := revision(1); s.edits > 0 && r <= revisions; r++ {
		if n := s; r != s.template {
			n.template, n.asked = r, 0
			n.edits--
			add(fmt.Sprintf("the user edits the template to %s", r), n)
		}
	}
	return all
}

// within reports whether every group that the bounds let LWS remove is removed: the rules judge it by the number of groups before it was
// raised.
func (s roleState) within(b Bounds) bool {
	for r := revision(1); r <= revisions; r++ {
		for i, c := range s.children[r] {
			if r.String() == b.Stable && c.exists && int(c.replicas) > b.Min[roleNames[i]] || r.String() == b.Update && int(c.replicas) > b.Exact[roleNames[i]] {
				return false
			}
		}
	}
	return true
}

// serving reports whether another revision has groups.
func (s roleState) serving(not revision) bool {
	for r := revision(1); r <= revisions; r++ {
		if r != not && (s.children[r][0].replicas > 0 || s.children[r][1].replicas > 0) {
			return true
		}
	}
	return false
}

// units returns how many whole units of a revision are ready.
func (s roleState) units(r revision) int {
	units := int(s.wanted[0])
	for i, c := range s.children[r] {
		units = min(units, int(c.ready)*int(s.wanted[0])/int(s.wanted[i]))
	}
	return units
}

// breach returns the rule that a step breaks. Empty: none.
func (s roleState) breach(step roleStep) string {
	n := step.next
	if s.record == "" || n.record == "" || s.bounds == "" || n.bounds == "" {
		return "" // not under hold
	}
	rec, before := records.of(s.record).record, *boundsRead.of(s.bounds)
	phase := record.Phase("")
	if rec.Release != nil {
		phase = rec.Release.Phase
	}
	stable, update := revisionOf(before.Stable), revision(0)
	if before.Update != "" {
		update = revisionOf(before.Update)
	}
	shifts := s.style == pb.Style_STYLE_PARTITION && rec.Release != nil
	if shifts {
		if broken := s.breachOfShift(step, stable, update, phase); broken != "" {
			return broken
		}
	}
	if b := step.bounds; b != nil {
		lowers := false
		for i, name := range roleNames {
			lowers = lowers || b.Min[name] < int(s.wanted[i])
		}
		switch {
		case b.Stable != before.Stable && !s.promoted:
			return "the stable revision changes without a promotion"
		case b.Stable == before.Stable && lowers && phase != record.HandingOver && !shifts:
			return "stable groups may go before a promotion hands over"
		case b.Stable == before.Stable && lowers && !shifts && before.Min[roleNames[0]] == int(s.wanted[0]) && s.units(update) < int(s.wanted[0]):
			return "stable groups may go before every unit of the update is ready"
		case b.Update != "" && b.Update != before.Stable && b.Units > before.Units && b.Units > int(max(s.asked, n.asked)):
			return fmt.Sprintf("%d units are allowed, and the host asked for %d", b.Units, s.asked)
		}
	}
	for r := revision(1); r <= revisions; r++ {
		for i, c := range n.children[r] {
			switch had := s.children[r][i]; {
			case r == stable && !shifts && c.replicas < had.replicas && c.replicas < s.wanted[i] && phase != record.HandingOver && phase != record.Promoted:
				return fmt.Sprintf("%s of the stable revision loses groups in phase %q", roleNames[i], phase)
			case r != stable && r != update && c.replicas > had.replicas:
				return fmt.Sprintf("%s of revision %s gets groups without a step", roleNames[i], r)
			case r == update && c.replicas > had.replicas && int(c.replicas) > before.Exact[roleNames[i]]:
				return fmt.Sprintf("%s of the update has more groups than its batch", roleNames[i])
			case r == update && r == s.template && phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && rec.Release.UpdateRevision == r.String() && c.replicas < had.replicas:
				return fmt.Sprintf("%s of the update loses groups in phase %q: they start twice", roleNames[i], phase)
			}
		}
		before, after := s.children[r][1].replicas, n.children[r][1].replicas
		if r == stable && phase == record.HandingOver && n.children[r][1].exists && after < before && s.children[r][0].replicas > 0 && (!shifts || after == 0) {
			return "decode goes before prefill"
		}
	}
	return ""
}

// breachOfShift returns the rule that a step of a shift breaks. Empty: none.
func (s roleState) breachOfShift(step roleStep, stable, update revision, phase record.Phase) string {
	n := step.next
	o := s.observe()
	if b := step.bounds; b != nil && update != 0 && b.Units < min(s.units(update), boundsRead.of(s.bounds).Units) && phase != record.Promoted {
		if left := s.units(stable) + b.Units; left < int(s.wanted[0])-o.shiftLacks() {
			return fmt.Sprintf("ready units of the update are removed, and %d of %d are left", left, s.wanted[0])
		}
	}
	for i, name := range roleNames {
		was, is := s.children[stable][i], n.children[stable][i]
		if is.replicas < was.replicas && phase != record.HandingOver && phase != record.Promoted {
			if is.replicas == 0 {
				return fmt.Sprintf("%s of the stable revision loses its last group in phase %q", name, phase)
			}
			part := 0
			if update != 0 {
				part = PartOf(o, Role{Name: name, Replicas: int(s.wanted[i])}, n.units(update))
			}
			if left := n.units(stable) + n.units(update); n.units(stable) < s.units(stable) && left < int(s.wanted[0])-o.shiftLacks() {
				return fmt.Sprintf("%s: %d units are left of %d", name, left, s.wanted[0])
			}
			if is.ready < was.ready && int(is.ready)+part < int(s.wanted[i])-int(s.unavailable[i]) {
				return fmt.Sprintf("%s: %d stable groups and %d of the update's units are left of %d", name, is.ready, part, s.wanted[i])
			}
		}
		total := func(s roleState) (all uint8) {
			for r := revision(1); r <= revisions; r++ {
				all += s.children[r][i].replicas
			}
			return all
		}
		if total(n) > total(s) && total(n) > s.wanted[i]+s.surge[i] {
			return fmt.Sprintf("%s has %d groups, and may have %d and %d in addition", name, total(n), s.wanted[i], s.surge[i])
		}
	}
	return ""
}

// settled returns what is wrong with a state in which the driver has nothing to do, and everything that can be ready is. Empty: nothing.
func (s roleState) settled() string {
	o := s.observe()
	d, _ := Decide(o, nil)
	if d.Action != nil || s.record == "" || s.bounds == "" {
		return ""
	}
	for r := revision(1); r <= revisions; r++ {
		for _, c := range s.children[r] {
			if c.ready < c.replicas {
				return ""
			}
		}
	}
	if len(s.others()) > 0 && slices.ContainsFunc(s.others(), func(step roleStep) bool { return step.by[:3] == "LWS" }) {
		return ""
	}
	r := o.release()
	switch {
	case r == nil:
	case d.Progress.UpdatedReady > s.units(revisionOf(r.UpdateRevision)):
		return fmt.Sprintf("%d units count as ready, and %d are", d.Progress.UpdatedReady, s.units(revisionOf(r.UpdateRevision)))
	case d.State == pb.State_STATE_COMPLETED && (s.units(revisionOf(r.UpdateRevision)) < int(s.wanted[0]) || s.serving(revisionOf(r.UpdateRevision))):
		return "the release is complete, and the groups are not"
	case d.State == pb.State_STATE_ROLLED_BACK && (s.units(revisionOf(r.StableRevision)) < int(s.wanted[0]) || s.serving(revisionOf(r.StableRevision))):
		return "the release is rolled back, and the groups are not"
	case r.Phase.Unfinished() && d.State == pb.State_STATE_PROMOTING:
		return "the promotion waits for nothing: " + d.Message
	case d.State == pb.State_STATE_ROLLING_BACK, d.State == pb.State_STATE_UPGRADING, d.State == pb.State_STATE_VERIFYING:
		return fmt.Sprintf("%s waits for nothing: %s", d.State, d.Message)
	}
	return ""
}

// TestExploreRoles visits every state of small DisaggregatedSets.
func TestExploreRoles(t *testing.T) {
	t.Parallel()
	type two = [rolesOf]uint8
	for _, world := range []struct {
		roleState

		most int // times exploreStates
	}{
		{roleState{wanted: two{2, 1}, edits: 1, losses: 1, style: pb.Style_STYLE_CANARY}, 8},
		{roleState{wanted: two{1, 2}, edits: 1, losses: 1, style: pb.Style_STYLE_CANARY}, 8},
		{roleState{wanted: two{1, 1}, edits: 2, style: pb.Style_STYLE_CANARY}, 4},
		{roleState{template: 2, wanted: two{2, 2}, edits: 1, losses: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 10},
		{roleState{wanted: two{2, 1}, edits: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 0}, surge: two{0, 1}}, 8},
		{roleState{wanted: two{2, 2}, edits: 1, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 8},
		{roleState{template: 2, wanted: two{4, 2}, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 8},
		{roleState{template: 2, wanted: two{4, 2}, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4},
		{roleState{wanted: two{1, 3}, edits: 1, style: pb.Style_STYLE_PARTITION, surge: two{1, 3}}, 4},
		{roleState{template: 2, wanted: two{1, 1}, grows: 1, style: pb.Style_STYLE_CANARY}, 4},
		{roleState{template: 2, wanted: two{2, 2}, grows: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 3},
		{roleState{wanted: two{2, 1}, edits: 1, scalers: 1, style: pb.Style_STYLE_CANARY}, 4},
		{roleState{template: 2, wanted: two{2, 2}, scalers: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 6},
	} {
		start, wanted, most := world.roleState, world.wanted, world.most**exploreStates
		start.template = max(start.template, 1)
		for i := range roleNames {
			start.children[1][i] = roleChild{exists: true, replicas: wanted[i], ready: wanted[i]}
		}
		came := map[roleState]roleState{start: start}
		by := map[roleState]string{}
		course := func(s roleState) string {
			text := ""
			for ; s != start; s = came[s] {
				text = "\n  " + by[s] + text
			}
			return text
		}
		queue, ends := []roleState{start}, map[pb.State]int{}
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			steps, err := s.steps()
			if err != nil {
				t.Fatalf("%v: %v, after%s", wanted, err, course(s))
			}
			if wrong := s.settled(); wrong != "" {
				t.Fatalf("%v: %s, after%s\n%+v", wanted, wrong, course(s), s)
			}
			d, _ := Decide(s.observe(), nil)
			ends[d.State]++
			for _, step := range steps {
				if broken := s.breach(step); broken != "" {
					t.Fatalf("%v: %s, after%s\n  %s\n%+v", wanted, broken, course(s), step.by, s)
				}
				if _, seen := came[step.next]; !seen && len(came) < most {
					came[step.next], by[step.next] = s, step.by
					queue = append(queue, step.next)
				}
			}
		}
		t.Logf("%v: %d states: %v", wanted, len(came), slices.Sorted(maps.Keys(ends)))
		if len(came) == most {
			continue // not all were visited
		}
		for _, state := range []pb.State{
			pb.State_STATE_HOLDING, pb.State_STATE_READY, pb.State_STATE_PROMOTING, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK,
		} {
			if ends[state] == 0 {
				t.Errorf("%v: no state is %s", wanted, state)
			}
		}
	}
}
