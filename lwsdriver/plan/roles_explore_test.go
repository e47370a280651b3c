// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The explorer visits every state of a DisaggregatedSet of two roles, and one or two slices, its release, and all who act on them: the driver, the host, the user,
// the kubelet, and a controller that tries whatever the bounds allow. Time stands still, and no request is routed: the small world of a
// LeaderWorkerSet has both.

const rolesOf, slicesOf = 2, 2

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
	children       [revisions + 1][slicesOf][rolesOf]roleChild
	record, bounds string
	edits, losses  uint8
	asked          uint8 // the most units that the host has asked for, of the release's revision
	promoted, left bool  // the host asked for it; the set was disowned
	style          pb.Style
	// unavailable and surge are those of each role.
	unavailable, surge [rolesOf]uint8
	// scalers is how often a scaler may still be deleted, and grows how often it may still be raised. unsized is true while role prefill has
	// none.
	scalers, grows uint8
	unsized        bool
	// slices are those in the spec, and resizes is how often the user may still change them.
	slices, resizes uint8
	// deletes is how often another client, which needs the permission for it, may still delete the bounds.
	deletes uint8
	// third is what template 3 does to the roles.
	third roleChange
}

// roleChange is what an edit of the template does to the roles.
type roleChange uint8

const (
	sameRoles roleChange = iota
	addsRole
	removesDecode
	removesPrefill
)

// lacks reports whether a revision has no groups of a role.
func (s roleState) lacks(r revision, role int) bool {
	return r == 3 && (s.third == removesDecode && role == 1 || s.third == removesPrefill && role == 0)
}

func (s roleState) observe() Observation {
	o := Observation{
		Now: noon, Slices: int(s.slices), BoundsEnforced: true,
		Stable: Workload{Name: "llm"},
	}
	for i, name := range roleNames {
		if s.lacks(s.template, i) {
			continue
		}
		o.Roles = append(o.Roles, Role{
			Name: name, Replicas: int(s.wanted[i]), Size: 1, MaxUnavailable: int(s.unavailable[i]), MaxSurge: int(s.surge[i]),
		})
	}
	if s.template == 3 && s.third == addsRole {
		o.Roles = append(o.Roles, Role{Name: "embed", Replicas: 1, Size: 1, MaxSurge: 1})
	}
	if s.unsized {
		o.Roles[0].External, o.Roles[0].Unsized = true, "it has no scaler"
	}
	o.Stable.Revision, o.Stable.Observed = s.template.String(), true
	for i := range roleNames {
		o.Stable.Observed = o.Stable.Observed && (s.lacks(s.template, i) || s.children[s.template][0][i].exists || s.children[s.template][1][i].exists)
	}
	for r := revision(1); r <= revisions; r++ {
		for m, c := range s.members(r) {
			if !c.exists {
				continue
			}
			name := m.child(r)
			child := Child{Name: name, Role: roleNames[m.role], Slice: m.slice, Revision: r.String(), Replicas: int(c.replicas)}
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

// roleMember is a role of a slice.
type roleMember struct{ slice, role int }

func (m roleMember) String() string { return Member(m.slice, roleNames[m.role]) }

// child returns the name of its child.
func (m roleMember) child(r revision) string { return "llm-" + r.String() + "-" + m.String() }

// members yields each role of each slice with its child at a revision.
func (s roleState) members(r revision) iter.Seq2[roleMember, roleChild] {
	return func(yield func(roleMember, roleChild) bool) {
		for slice := range s.children[r] {
			for role, c := range s.children[r][slice] {
				if !yield(roleMember{slice, role}, c) {
					return
				}
			}
		}
	}
}

func (s *roleState) at(r revision, m roleMember) *roleChild { return &s.children[r][m.slice][m.role] }

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
func (s roleState) allows(r revision, m roleMember, want uint8, create bool) bool {
	if s.bounds == "" {
		return true
	}
	b := boundsRead.of(s.bounds)
	have, name := s.at(r, m).replicas, m.String()
	least, bounded := b.Min[name]
	switch {
	case !create && want == have, create && want == 0 && r.String() != b.Stable:
		return true
	case r.String() == b.Stable && !bounded:
		return want >= have
	case r.String() == b.Stable && least == 0:
		return want <= have
	case r.String() == b.Stable:
		most, limited := b.Max[name]
		return (int(want) >= least || want > have) && (!limited || int(want) <= most)
	case r.String() == b.Update:
		return int(want) == b.Exact[name]
	}
	return want == 0
}

// scale sets the groups of a child: new ones are not ready, and the last ones go first.
func (s roleState) scale(r revision, m roleMember, n uint8) roleState {
	c := s.at(r, m)
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
			if s.record != "" {
				if was := records.of(s.record).record.Release; was != nil && was.UpdateRevision != next.UpdateRevision {
					s.asked = 0
				}
			}
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
			for m := range s.members(r) {
				if a.Name != m.child(r) {
					continue
				}
				if !s.allows(r, m, uint8(a.Replicas), false) {
					return s, fmt.Errorf("%s is not within %s", a, s.bounds)
				}
				return s.scale(r, m, uint8(a.Replicas)), nil
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
	// bounds are the driver's, or nil if it wrote none.
	bounds *Bounds
}

// steps returns all that may happen next. The error is a defect of the driver.
func (s roleState) steps(o Observation) (all []roleStep, err error) {
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
		for m, c := range s.members(r) {
			if !c.exists && r == s.template && m.slice < int(s.slices) && !s.lacks(r, m.role) {
				n := s
				if s.serving(r, m.slice) { // another revision has groups
					*n.at(r, m) = roleChild{exists: true}
				} else {
					*n.at(r, m) = roleChild{exists: true, replicas: s.wanted[m.role]}
				}
				if s.allows(r, m, n.at(r, m).replicas, true) {
					add(fmt.Sprintf("LWS creates %s of %s", m, r), n)
				}
			}
			if !c.exists {
				continue
			}
			for want := range s.wanted[m.role] + 2 {
				if s.unsized && m.role == 0 {
					break // LWS keeps what there is
				}
				if s.record != "" && s.bounds == "" && s.style == pb.Style_STYLE_PARTITION {
					break // without bounds it rolls past maxSurge, and nothing can take that back without a loss
				}
				up := r == s.template && want > c.replicas && want <= s.wanted[m.role]
				if down := r != s.template && want < c.replicas; (up || down) && s.allows(r, m, want, false) {
					add(fmt.Sprintf("LWS scales %s of %s to %d", m, r, want), s.scale(r, m, want))
				}
			}
			if c.ready < c.replicas {
				n := s
				n.at(r, m).ready++
				add(fmt.Sprintf("a group of %s of %s is ready", m, r), n)
			}
			if c.ready > 0 && s.losses > 0 {
				n := s
				n.losses--
				n.at(r, m).ready--
				add(fmt.Sprintf("a group of %s of %s is lost", m, r), n)
			}
		}
		for slice, roles := range s.children[r] {
			drained := roles[0].replicas == 0 && roles[1].replicas == 0
			if exists := roles[0].exists || roles[1].exists; exists && (drained && r != s.template || slice >= int(s.slices)) {
				n := s
				n.children[r][slice] = [rolesOf]roleChild{}
				add(fmt.Sprintf("LWS deletes the children of %s in slice %d", r, slice), n)
			}
		}
	}
	if n := s; s.deletes > 0 && s.bounds != "" {
		n.bounds, n.deletes = "", s.deletes-1
		add("another client deletes the bounds", n)
	}
	if n := s; s.resizes > 0 {
		n.slices, n.resizes = slicesOf+1-s.slices, s.resizes-1
		add(fmt.Sprintf("the user sets slices to %d", n.slices), n)
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
			n.template = r
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
		for m, c := range s.members(r) {
			if r.String() == b.Stable && c.exists && int(c.replicas) > b.Min[m.String()] || r.String() == b.Update && int(c.replicas) > b.Exact[m.String()] {
				return false
			}
		}
	}
	return true
}

// serving reports whether another revision has groups in a slice, with -1 in any.
func (s roleState) serving(not revision, slice int) bool {
	for r := revision(1); r <= revisions; r++ {
		for m, c := range s.members(r) {
			if r != not && (slice < 0 || m.slice == slice) && c.replicas > 0 {
				return true
			}
		}
	}
	return false
}

// units returns how many whole units of a revision are ready. Those of a removed slice count as long as it has children.
func (s roleState) units(r revision) (units int) {
	for slice := range s.children[r] {
		units += s.unitsIn(r, slice)
	}
	return units
}

// part returns how many groups of a role belong to a number of units of a slice.
func (s roleState) part(role, units int) int {
	return (units*int(s.wanted[role]) + int(s.wanted[0]) - 1) / int(s.wanted[0])
}

// unitsIn returns how many whole units of a revision are ready in a slice.
func (s roleState) unitsIn(r revision, slice int) int {
	units := int(s.wanted[0])
	for i, c := range s.children[r][slice] {
		units = min(units, int(c.ready)*int(s.wanted[0])/int(s.wanted[i]))
	}
	return units
}

// breach returns the rule that a step breaks, or "" if there is none.
func (s roleState) breach(o Observation, step roleStep) string {
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
		if broken := s.breachOfShift(o, step, stable, update, phase); broken != "" {
			return broken
		}
	}
	if b := step.bounds; b != nil {
		lowers, broken := s.lowers(o, *b), ""
		if !shifts {
			broken = s.breachOfSlices(o, *b, before)
		}
		switch {
		case broken != "":
			return broken
		case b.Stable != before.Stable && !s.promoted:
			return "the stable revision changes without a promotion"
		case b.Stable == before.Stable && lowers && phase != record.HandingOver && !shifts:
			return "stable groups may go before a promotion hands over"
		case b.Stable == before.Stable && lowers && !shifts && before.Min[Member(0, roleNames[0])] == int(s.wanted[0]) && s.units(update) < int(s.wanted[0])*o.Slices:
			return "stable groups may go before every unit of the update is ready"
		case b.Update != "" && b.Update != before.Stable && b.Units > before.Units && (b.Units > int(max(s.asked, n.asked)) || b.Update != s.template.String() && phase != record.HandingOver):
			return fmt.Sprintf("%d units are allowed, and the host asked for %d", b.Units, s.asked)
		}
	}
	for r := revision(1); r <= revisions; r++ {
		for m, c := range n.members(r) {
			if m.slice >= int(s.slices) {
				continue // the user has removed it
			}
			switch had := *s.at(r, m); {
			case r == stable && !shifts && c.replicas < had.replicas && c.replicas < s.wanted[m.role] && phase != record.HandingOver && phase != record.Promoted:
				return fmt.Sprintf("%s of the stable revision loses groups in phase %q", m, phase)
			case r != stable && r != update && c.replicas > had.replicas:
				return fmt.Sprintf("%s of revision %s gets groups without a step", m, r)
			case r == update && c.replicas > had.replicas && int(c.replicas) > before.Exact[m.String()]:
				return fmt.Sprintf("%s of the update has more groups than its batch", m)
			case r == update && r == s.template && phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && rec.Release.UpdateRevision == r.String() && c.replicas < had.replicas:
				return fmt.Sprintf("%s of the update loses groups in phase %q: they start twice", m, phase)
			}
			before, after := s.children[r][m.slice][1].replicas, n.children[r][m.slice][1].replicas
			prefill := s.children[r][0][0].replicas + s.children[r][1][0].replicas
			if r == stable && phase == record.HandingOver && n.children[r][m.slice][1].exists && after < before && prefill > 0 && (!shifts || after == 0) {
				return "decode goes before prefill"
			}
		}
	}
	return ""
}

// lowers reports whether bounds let a role have fewer groups than in the spec.
func (s roleState) lowers(o Observation, b Bounds) bool {
	for slice := range o.Slices {
		for i, name := range roleNames {
			if b.Min[Member(slice, name)] < int(s.wanted[i]) && (s.third == sameRoles || s.at(revisionOf(b.Stable), roleMember{slice, i}).exists) {
				return true
			}
		}
	}
	return false
}

// breachOfSlices returns the rule by which units are whole within a slice, and fill one slice after another, that bounds break, or "" if there is none.
func (s roleState) breachOfSlices(o Observation, b, before Bounds) string {
	room := false
	for slice := range o.Slices {
		units := b.Exact[Member(slice, roleNames[0])]
		if n := b.Exact[Member(slice, roleNames[1])]; n != s.part(1, units) {
			return fmt.Sprintf("slice %d has %d groups of prefill and %d of decode", slice, units, n)
		}
		if room && units > before.Exact[Member(slice, roleNames[0])] {
			return fmt.Sprintf("slice %d gets units before the one before it is full", slice)
		}
		room = room || units < int(s.wanted[0])
	}
	return ""
}

// breachOfShift returns the rule that a step of a shift breaks, or "" if there is none.
func (s roleState) breachOfShift(o Observation, step roleStep, stable, update revision, phase record.Phase) string {
	n := step.next
	for slice := range o.Slices {
		entry := Member(slice, roleNames[0])
		if b := step.bounds; b != nil && update != 0 && b.Exact[entry] < min(s.unitsIn(update, slice), boundsRead.of(s.bounds).Exact[entry]) && phase != record.Promoted {
			if left := s.unitsIn(stable, slice) + b.Exact[entry]; left < int(s.wanted[0])-o.sliceLacks() {
				return fmt.Sprintf("ready units of the update are removed, and %d of %d are left", left, s.wanted[0])
			}
		}
	}
	for m, is := range n.members(stable) {
		was, i := *s.at(stable, m), m.role
		if is.replicas < was.replicas && phase != record.HandingOver && phase != record.Promoted && m.slice < int(s.slices) {
			if is.replicas == 0 {
				return fmt.Sprintf("%s of the stable revision loses its last group in phase %q", m, phase)
			}
			part, updated := 0, 0
			if update != 0 {
				updated = n.unitsIn(update, m.slice)
				part = s.part(i, updated)
			}
			if left := n.unitsIn(stable, m.slice) + updated; n.unitsIn(stable, m.slice) < s.unitsIn(stable, m.slice) && left < int(s.wanted[0])-o.sliceLacks() {
				return fmt.Sprintf("%s: %d units are left of %d", m, left, s.wanted[0])
			}
			if is.ready < was.ready && int(is.ready)+part < int(s.wanted[i])-int(s.unavailable[i]) {
				return fmt.Sprintf("%s: %d stable groups and %d of the update's units are left of %d", m, is.ready, part, s.wanted[i])
			}
		}
		total := func(s roleState) (all uint8) {
			for r := revision(1); r <= revisions; r++ {
				all += s.at(r, m).replicas
			}
			return all
		}
		if total(n) > total(s) && total(n) > s.wanted[i]+s.surge[i] {
			return fmt.Sprintf("%s has %d groups, and may have %d and %d in addition", m, total(n), s.wanted[i], s.surge[i])
		}
	}
	return ""
}

// settled returns what is wrong with a state: units count as ready that are not, or the driver has nothing to do although all that can be ready
// is. Empty means nothing.
func (s roleState) settled(o Observation, d Decision) string {
	if r := o.release(); r != nil && d.Progress.UpdatedReady > s.units(revisionOf(r.UpdateRevision)) {
		return fmt.Sprintf("%d units count as ready, and %d are", d.Progress.UpdatedReady, s.units(revisionOf(r.UpdateRevision)))
	}
	if d.Action != nil || s.record == "" || s.bounds == "" {
		return ""
	}
	for r := revision(1); r <= revisions; r++ {
		for _, c := range s.members(r) {
			if c.ready < c.replicas {
				return ""
			}
		}
	}
	if len(s.others()) > 0 && slices.ContainsFunc(s.others(), func(step roleStep) bool { return step.by[:3] == "LWS" }) {
		return ""
	}
	r, all := o.release(), int(s.wanted[0])*o.Slices
	switch {
	case r == nil:
	case d.State == pb.State_STATE_COMPLETED && (s.units(revisionOf(r.UpdateRevision)) < all || s.serving(revisionOf(r.UpdateRevision), -1)):
		return "the release is complete, and the groups are not"
	case d.State == pb.State_STATE_ROLLED_BACK && (s.units(revisionOf(r.StableRevision)) < all || s.serving(revisionOf(r.StableRevision), -1)):
		return "the release is rolled back, and the groups are not"
	case r.Phase.Unfinished() && d.State == pb.State_STATE_PROMOTING:
		return "the promotion waits for nothing: " + d.Message
	case d.State == pb.State_STATE_ROLLING_BACK, d.State == pb.State_STATE_UPGRADING, d.State == pb.State_STATE_VERIFYING:
		return fmt.Sprintf("%s waits for nothing: %s", d.State, d.Message)
	}
	return ""
}

// promotes returns the state in which a promotion of template 2 removes the first groups, without any disturbance before.
func (s roleState) promotes() roleState {
	disturbed := s
	s.template, s.edits, s.losses, s.deletes = 2, 0, 0, 0
	for _, i := range []Intent{
		Begin{ReleaseID: "r", Policy: &pb.ReleasePolicy{Style: s.style, Batches: []string{"1", "100%"}}}, SetTarget{ReleaseID: "r", Groups: "100%"}, Promote{ReleaseID: "r"},
	} {
		d, err := Decide(s.observe(), i)
		no(err)
		s, err = s.write(d.Action)
		no(err)
	}
	s.asked = 9
	for s.serving(2, -1) && !slices.Contains(slices.Collect(maps.Values(boundsRead.of(s.bounds).Min)), 0) {
		d, _ := Decide(s.observe(), nil)
		if d.Action == nil {
			s = s.others()[0].next
			continue
		}
		next, err := s.write(d.Action)
		no(err)
		s = next
	}
	s.edits, s.losses, s.deletes = disturbed.edits, disturbed.losses, disturbed.deletes
	return s
}

// TestExploreRoles visits every state of small DisaggregatedSets.
func TestExploreRoles(t *testing.T) {
	t.Parallel()
	type two = [rolesOf]uint8
	for _, world := range []struct {
		roleState

		most int // times exploreStates
	}{
		{roleState{wanted: two{2, 1}, edits: 2, losses: 1, deletes: 1, promoted: true, style: pb.Style_STYLE_CANARY}, 4},
		{roleState{wanted: two{1, 2}, edits: 2, third: removesDecode, promoted: true, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{wanted: two{2, 2}, edits: 1, losses: 1, deletes: 1, promoted: true, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4},
		{roleState{wanted: two{1, 1}, edits: 1, deletes: 1, slices: 2, promoted: true, style: pb.Style_STYLE_CANARY}, 4},
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
		{roleState{template: 2, wanted: two{2, 1}, edits: 1, third: addsRole, slices: 1, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{template: 2, wanted: two{2, 1}, edits: 2, third: removesDecode, slices: 1, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{template: 2, wanted: two{1, 2}, edits: 1, third: removesPrefill, slices: 1, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{template: 2, wanted: two{2, 2}, edits: 2, third: removesDecode, slices: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4},
		{roleState{template: 2, wanted: two{1, 1}, slices: 2, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{template: 2, wanted: two{2, 1}, slices: 2, style: pb.Style_STYLE_CANARY}, 2},
		{roleState{template: 2, wanted: two{1, 1}, slices: 1, resizes: 2, style: pb.Style_STYLE_CANARY}, 1},
		{roleState{template: 2, wanted: two{1, 1}, slices: 2, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 2},
		{roleState{template: 2, wanted: two{2, 2}, slices: 2, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 2},
	} {
		start, wanted, most := world.roleState, world.wanted, world.most**exploreStates
		start.template, start.slices = max(start.template, 1), max(start.slices, 1)
		for m := range start.members(1) {
			if m.slice < int(start.slices) {
				*start.at(1, m) = roleChild{exists: true, replicas: wanted[m.role], ready: wanted[m.role]}
			}
		}
		for (world.slices > 0 || world.promoted) && (start.record == "" || start.bounds == "") { // the other worlds visit what is before
			d, err := Decide(start.observe(), Adopt{})
			no(err)
			start, err = start.write(d.Action)
			no(err)
		}
		if world.promoted {
			start = start.promotes()
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
			o := s.observe()
			steps, err := s.steps(o)
			if err != nil {
				t.Fatalf("%v: %v, after%s", wanted, err, course(s))
			}
			d, _ := Decide(o, nil)
			if wrong := s.settled(o, d); wrong != "" {
				t.Fatalf("%v: %s, after%s\n%+v", wanted, wrong, course(s), s)
			}
			ends[d.State]++
			for _, step := range steps {
				if broken := s.breach(o, step); broken != "" {
					t.Fatalf("%v: %s, after%s\n  %s\n%+v", wanted, broken, course(s), step.by, s)
				}
				if _, seen := came[step.next]; !seen && len(came) < most {
					came[step.next], by[step.next] = s, step.by
					queue = append(queue, step.next)
				}
			}
		}
		t.Logf("%v in %d slices: %d states: %v", wanted, start.slices, len(came), slices.Sorted(maps.Keys(ends)))
		if len(came) == most || world.promoted {
			continue // not all were visited, or the release had begun
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
