// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// The explorer visits every state of a DisaggregatedSet of two roles, and one or two slices, its release, and all who act on them: the driver, the host, the user,
// the kubelet, and a controller that tries whatever the bounds allow. Time stands still: in the small world of a LeaderWorkerSet it passes.

const rolesOf, slicesOf = 3, 2

// histories are the templates of all revisions.
var histories = []Entry{{Revision: revision(1).String()}, {Revision: revision(2).String()}, {Revision: revision(3).String()}}

// roleNames are the roles: decode is the one that is removed last.
var roleNames = [rolesOf]string{"prefill", "decode", "encode"}

// roleChild is a child. Its groups exist as soon as its spec has them.
type roleChild struct {
	exists        bool
	replicas      uint8
	ready         uint8 // as bits: the ready groups
	serving, busy uint8 // of the entry role, as bits: the leaders with the serving label, and those with requests
	hurt          uint8 // in a walk, as bits: those that the environment took, until they are ready again
	stuck         uint8 // in a walk, as bits: those that a lost node keeps Terminating
	warm          uint8 // in a walk, as bits: those whose leaders have answered the warm-up request
	deleted       bool  // in a walk: by another client, and not created again
	earlier       bool  // in a walk: of a set with this name that was deleted
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
	// second: the entry role, prefill, is the second one in the spec and removed last, as decode is in a set whose Service selects decode.
	second bool
	// three: there is a third role, encode.
	three bool
	// autoscaled: an autoscaler scales role prefill. held is what its settings keep it from, and noted the hold in its note.
	autoscaled  bool
	held, noted autoscaler.Hold
	// threshold: the policy tolerates a unit that is not ready. warmUp: it has a warm-up of every role.
	threshold, warmUp bool
	// net is the routing, nil without a traffic policy. objects are what the API server has, selectors those that the endpoints follow, and
	// served the routes that the gateway serves. reverts is how often another client may still restore the routes.
	net                                 *network
	objects, selectors, served, reverts uint8
	// walk is true if acts happen that only walks take. refuses is a kind of writes that the API server refuses, and late one that is decided and
	// not made.
	walk                 bool
	lwsDown, gatewayDown bool
	refuses              uint8
	late                 *lateWrite
	overdue              string // what the driver has waited for too long
	unnamed              bool   // another client has deleted the record, and nothing else names the routes
	tampered             bool   // another client has edited or deleted the bounds, and the driver has not repaired them
	earlier, orphans     bool   // the bounds are of a set with this name that was deleted; its children were orphaned
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
	return role == 2 && !s.three || r == 3 && (s.third == removesDecode && role == 1 || s.third == removesPrefill && role == 0)
}

// observe returns what is observed, before a request of the host.
func (s roleState) observe(next ...Intent) Observation {
	o := Observation{
		Key: scenarioKey, Now: noon, Slices: int(s.slices), BoundsEnforced: true,
		Stable:  Workload{Name: "llm"},
		History: histories, HistoryUnread: true, // it has every template, and is another test's
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
		o.Stable.Observed = o.Stable.Observed && (s.lacks(s.template, i) || s.children[s.template][0][i].owned() || s.children[s.template][1][i].owned())
	}
	if s.autoscaled {
		o.Autoscalers = []Autoscaler{{
			Kind: "HorizontalPodAutoscaler", Name: "llm-prefill", Targets: true, Held: s.noted,
			Directions: autoscaler.Directions{Up: s.held != autoscaler.HoldAll, Down: s.held == autoscaler.HoldNone},
		}}
	}
	for r, m := range s.all() {
		c := *s.at(r, m)
		if c.earlier || !c.exists && c.stuck == 0 {
			continue
		}
		name := m.child(r)
		child := Child{Name: name, Role: roleNames[m.role], Slice: m.slice, Revision: r.String(), Replicas: int(c.replicas)}
		for g := range maxIndices {
			stuck := c.stuck&(1<<g) != 0
			if g >= int(c.replicas) && !stuck {
				continue
			}
			group := Group{Index: g, Leader: m.leader(r, g), Revision: "lws", Pods: 1, LostAt: noon, Reason: "Starting", Serving: c.serving&(1<<g) != 0}
			if group.Terminating = stuck; stuck {
				group.Pod, group.Reason, group.Message = group.Leader, reasonTerminating, "is being deleted on node n"
			}
			if c.warm&(1<<g) != 0 {
				group.WarmUp = &warmed
			}
			if c.ready&(1<<g) != 0 {
				group.Ready, group.ReadyPods, group.LostAt, group.Reason = true, 1, time.Time{}, ""
				group.ReadySince, group.FirstReady = noon.Add(-time.Hour), noon.Add(-time.Hour)
			}
			child.Groups = append(child.Groups, group)
		}
		if c.exists {
			o.Children = append(o.Children, child)
		} else {
			o.DeletedChildren = append(o.DeletedChildren, child)
		}
	}
	if s.record != "" {
		known := records.of(s.record)
		o.Record, o.Policy = &known.record, known.policy
	}
	switch {
	case s.earlier:
		o.BoundsLeft = s.record == ""
	case s.bounds != "":
		o.Bounds = boundsRead.of(s.bounds)
	}
	if s.unsized {
		o.Roles[0].Replicas = LastSize(o, roleNames[0])
	}
	if s.second {
		slices.Reverse(o.Roles)
	}
	o.EntryRole = BegunEntryRole(o)
	if r := o.release(); len(next) > 0 && s.second && (r == nil || !r.Phase.Unfinished()) && (o.Bounds == nil || o.Bounds.Update == "") {
		o.EntryRole = roleNames[0] // as its Service selects
	}
	s.routeRequests(&o)
	o = Judge(o)
	s.drain(&o)
	if s.overdue != "" && s.overdue == o.askedFor() {
		o.Now = noon.Add(2 * o.progressDeadline())
		o.Waiting = Waiting{For: s.overdue, Since: noon}
	}
	return o
}

// roleMember is a role of a slice.
type roleMember struct{ slice, role int }

func (m roleMember) String() string { return Member(m.slice, roleNames[m.role]) }

// child returns the name of its child.
func (m roleMember) child(r revision) string { return childNames[r][m.slice][m.role] }

// leader returns the name of a leader of its child.
func (m roleMember) leader(r revision, group int) string {
	return childLeaders[r][m.slice][m.role][group]
}

var (
	childNames   [revisions + 1][slicesOf][rolesOf]string
	childLeaders [revisions + 1][slicesOf][rolesOf][8]string
)

func init() {
	for r := range childNames {
		for slice := range slicesOf {
			for role, name := range roleNames {
				child := fmt.Sprintf("llm-%d-%s-%s", slice, revision(r).hash(), name)
				childNames[r][slice][role] = child
				for i := range childLeaders[r][slice][role] {
					childLeaders[r][slice][role][i] = fmt.Sprintf("%s-%d", child, i)
				}
			}
		}
	}
}

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
	known sync.Map
	read  func([]byte) *T
}

func (d *decoded[T]) of(raw string) *T {
	if v, ok := d.known.Load(raw); ok {
		return v.(*T)
	}
	v := d.read([]byte(raw))
	d.known.Store(raw, v)
	return v
}

// recordRead is a record and the policy of its release.
type recordRead struct {
	record record.Record
	policy record.Policy
}

var (
	records = decoded[recordRead]{read: func(raw []byte) *recordRead {
		v := &recordRead{}
		no(json.Unmarshal(raw, &v.record))
		if r := v.record.Release; r != nil {
			v.policy, _ = record.ParsePolicy(must(r.KnownPolicy()))
		}
		return v
	}}
	boundsRead = decoded[Bounds]{read: func(raw []byte) *Bounds {
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

func encodeJSON(v any) string { return string(must(json.Marshal(v))) }

// allows is the admission policy of config/disaggregated.
func (s roleState) allows(r revision, m roleMember, want uint8, create bool) bool {
	if s.bounds == "" {
		return true
	}
	b := boundsRead.of(s.bounds)
	have, name := s.at(r, m).replicas, m.String()
	least, bounded := b.Min[name]
	switch {
	case !create && want == have, create && want == 0:
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

// keeps reports whether the policy keeps a child of a slice from being deleted.
func (s roleState) keeps(r revision, slice int) bool {
	if s.bounds == "" || slice > 0 {
		return false
	}
	b, groups := boundsRead.of(s.bounds), map[string]int{}
	switch r.String() {
	case b.Stable:
		groups = b.Min
	case b.Update:
		groups = b.Exact
	}
	return slices.ContainsFunc(roleNames[:], func(role string) bool { return groups[Member(slice, role)] > 0 })
}

// scale sets the groups of a child: new ones are not ready, and the last ones go first.
func (s roleState) scale(r revision, m roleMember, n uint8) roleState {
	c := s.at(r, m)
	if hurt := (uint8(1)<<c.replicas - 1) &^ (1<<n - 1); s.tampered || s.left {
		c.hurt |= hurt
	} else {
		c.hurt &^= hurt
	}
	c.replicas = n
	c.ready, c.serving, c.busy, c.warm = c.ready&(1<<n-1), c.serving&(1<<n-1), c.busy&(1<<n-1), c.warm&(1<<n-1)
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
			next.Target, next.PhaseAt, next.StartedAt = atNoon(next.Target), noon, noon
			rec.Release = &next
			if s.record != "" {
				if was := records.of(s.record).record.Release; was != nil && was.UpdateRevision != next.UpdateRevision {
					s.asked = 0
				}
			}
		}
		s.record = encodeJSON(rec)
	case RemoveRecord:
		s.record, s.bounds, s.left, s.earlier = "", "", true, false
	case RestoreTemplate:
		s.template = revisionOf(a.Revision)
		if a.Record != nil {
			s.record = encodeJSON(a.Record)
		}
	case SetBounds:
		b := a.Bounds
		b.Target = atNoon(b.Target)
		s.bounds, s.earlier = encodeJSON(b), false
	case RemoveBounds:
		s.bounds, s.earlier = "", false
	case ScaleChild:
		for r, m := range s.all() {
			if a.Name != m.child(r) {
				continue
			}
			if !s.allows(r, m, uint8(a.Replicas), false) {
				return s, fmt.Errorf("%s is not within %s", a, s.bounds)
			}
			return s.scale(r, m, uint8(a.Replicas)), nil
		}
		return s, fmt.Errorf("%s: there is no such child", a)
	case SetTraffic:
		var err error
		s.objects, err = s.net.advance(s.view(s.released()), a.Desired, func() *traffic.Observed { return s.look(s.released()) })
		return s, err
	case LabelServing:
		err := s.label(a)
		return s, err
	case HoldAutoscaler:
		s.held, s.noted = a.Hold, a.Hold
	case ReleaseAutoscaler:
		s.held, s.noted = autoscaler.HoldNone, autoscaler.HoldNone
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
	if next.At = noon; next.Groups == "100%" {
		next.At = noon.Add(1) // later than a unit: no batch is smaller than the one before
	}
	return &next
}

// roleStep is a transition.
type roleStep struct {
	by   string
	next roleState
	// bounds are the driver's, or nil if it wrote none.
	bounds *Bounds
	// own: it happens by itself. disturbs: neither that, nor does the host ask for it.
	own, disturbs bool
}

// policy is that of the release.
func (s roleState) policy() *pb.ReleasePolicy {
	p := &pb.ReleasePolicy{Style: s.style, Batches: []string{"1", "100%"}}
	if s.second {
		p.RoleOrder = []string{roleNames[1], roleNames[0]}
	}
	if s.threshold {
		p.FailureThreshold = "1"
	}
	if s.net != nil {
		p.Traffic = &pb.TrafficPolicy{StableService: routed.StableService, HttpRoutes: []string{routed.Routes[0].Name}}
	}
	return p
}

// ask is a request of the host.
type ask struct {
	by   string
	i    Intent
	with func(*roleState)
}

// driver is what decides without a request.
var driver = ask{by: "driver"}

// asks returns what the host may ask for.
func (s roleState) asks() (all []ask) {
	if s.record == "" && (!s.left || s.walk) {
		all = append(all, ask{"host adopts", Adopt{}, func(n *roleState) { n.left = false }})
	}
	if s.record == "" {
		return all
	}
	all = append(all,
		ask{"host begins", Begin{ReleaseID: s.nextID(), Policy: s.policy()}, func(n *roleState) { n.asked = 0 }},
		ask{"host asks for a unit", SetTarget{ReleaseID: s.id(), Groups: "1"}, func(n *roleState) { n.asked = max(n.asked, 1) }},
		ask{"host asks for all units", SetTarget{ReleaseID: s.id(), Groups: "100%"}, func(n *roleState) { n.asked = many }},
		ask{"host promotes", Promote{ReleaseID: s.id()}, func(n *roleState) { n.promoted, n.asked = true, many }},
		ask{"host aborts", RollBack{ReleaseID: s.id()}, nil},
		ask{"host disowns", Disown{}, nil})
	for _, weight := range []int{50, 100} {
		if s.net != nil {
			all = append(all, ask{fmt.Sprintf("host asks for %d %%", weight), Route{ReleaseID: s.id(), Weight: &weight}, nil})
		}
		if s.net != nil && s.walk {
			all = append(all, ask{fmt.Sprintf("host mirrors %d %%", weight), Route{ReleaseID: s.id(), Mirror: &weight}, nil})
		}
	}
	if s.walk {
		all = append(all, ask{"host forces an abort", RollBack{ReleaseID: s.id(), Force: true}, nil})
	}
	for r := revision(1); s.walk && r <= revisions; r++ {
		all = append(all, ask{fmt.Sprintf("host undoes to %s", r), Undo{Revision: r.String()}, nil})
	}
	return all
}

// id returns that of the recorded release, or of the first one.
func (s roleState) id() string {
	if r := records.of(s.record).record.Release; r != nil {
		return r.ID
	}
	return releaseIDs[0]
}

// nextID returns the id of a release that may begin. In a walk one follows another.
func (s roleState) nextID() string {
	if r := records.of(s.record).record.Release; s.walk && r != nil && r.ID == releaseIDs[0] {
		return releaseIDs[1]
	}
	return releaseIDs[0]
}

// decides returns the step of a request of the host, or that of the driver, nil if there is none. The error is a defect of the driver.
func (s roleState) decides(o Observation, a ask) (step *roleStep, err error) {
	if r, routes := a.i.(Route); routes && r.Weight != nil && !carries(&o, *r.Weight) {
		return step, nil // a host does not ask for more than its batch can carry
	}
	if _, begins := a.i.(Begin); begins && s.second {
		o = s.observe(a.i)
	}
	d, err := Decide(o, a.i)
	_, aborts := a.i.(RollBack)
	switch {
	case err != nil && aborts && phaseOf(o.release()).Unfinished():
		return nil, fmt.Errorf("%s, and is refused in phase %q: %w", a.by, phaseOf(o.release()), err)
	case err != nil && a.i != nil:
		return step, nil // it is refused
	case d.Reason == ReasonInvariantViolation:
		return nil, fmt.Errorf("%s: %s", a.by, d.Message)
	case d.Action == nil, s.refuses != 0 && roleRefusal(d.Action) == s.refuses:
		return step, nil
	}
	next, err := s.write(d.Action)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.by, err)
	}
	if a.with != nil {
		a.with(&next)
	}
	switch next.receive(); {
	case next == s && a.i != nil:
		return step, nil
	case next == s:
		return nil, fmt.Errorf("%s: %s changes nothing", a.by, d.Action)
	}
	step = &roleStep{by: a.by + ": " + d.Action.String(), next: next, own: a.i == nil}
	if b, ok := d.Action.(SetBounds); ok {
		step.bounds = &b.Bounds
	}
	return step, nil
}

// steps returns all that may happen next. The error is a defect of the driver.
func (s roleState) steps(o Observation) (all []roleStep, err error) {
	for _, a := range append([]ask{driver}, s.asks()...) {
		step, err := s.decides(o, a)
		if err != nil {
			return nil, err
		}
		if step != nil {
			all = append(all, *step)
		}
	}
	return append(all, s.others()...), nil
}

// others returns what everybody but the driver and its host may do.
func (s roleState) others() (all []roleStep) {
	all = s.networkSteps()
	happens := func(by string, next roleState) {
		next.receive()
		all = append(all, roleStep{by: by, next: next, own: true})
	}
	add := func(by string, next roleState) {
		next.receive()
		all = append(all, roleStep{by: by, next: next, disturbs: true})
	}
	for r := revision(1); r <= revisions; r++ {
		for m, c := range s.members(r) {
			if !s.lwsDown && !c.exists && r == s.template && m.slice < int(s.slices) && !s.lacks(r, m.role) {
				n, another := s, s.serving(r, m.slice)
				if another && c.deleted && slices.ContainsFunc(s.children[r][m.slice][:], func(c roleChild) bool { return c.exists }) {
					continue // as long as another revision has groups, LeaderWorkerSet creates the children of one together
				}
				if *n.at(r, m) = (roleChild{exists: true, hurt: c.hurt, stuck: c.stuck}); !another {
					n.at(r, m).replicas = s.wanted[m.role]
				}
				for i := range n.children[r][m.slice] {
					if other := &n.children[r][m.slice][i]; !other.exists {
						other.deleted = false // it creates them all
					}
				}
				if s.allows(r, m, n.at(r, m).replicas, true) {
					happens(fmt.Sprintf("LWS creates %s of %s", m, r), n)
				}
			}
			if !c.exists {
				continue
			}
			if n := s; c.earlier && !s.orphans {
				*n.at(r, m) = roleChild{hurt: 1<<s.wanted[m.role] - 1}
				happens(fmt.Sprintf("garbage collection deletes child %s of %s", m, r), n)
			}
			for want := range s.wanted[m.role] + 2 {
				if s.lwsDown {
					break
				}
				if s.unsized && m.role == 0 {
					break // LWS keeps what there is
				}
				if s.record != "" && s.bounds == "" && s.style == pb.Style_STYLE_PARTITION {
					break // without bounds it rolls past maxSurge, and nothing can take that back without a loss
				}
				up := r == s.template && want > c.replicas && want <= s.wanted[m.role]
				down := want < c.replicas && (r != s.template || s.walk && want == s.wanted[m.role] && !s.serving(r, m.slice))
				if (up || down) && s.allows(r, m, want, false) {
					happens(fmt.Sprintf("LWS scales %s of %s to %d", m, r, want), s.scale(r, m, want))
				}
			}
			for g := range c.replicas {
				if (c.ready|c.stuck)&(1<<g) == 0 {
					n := s
					n.at(r, m).hurt &^= 1 << g
					if n.at(r, m).ready |= 1 << g; m.role == 0 {
						n.resync()
					}
					happens(fmt.Sprintf("a group of %s of %s is ready", m, r), n)
					break // the first one
				}
			}
			for g := range c.replicas {
				last := c.ready>>g == 1
				if s.losses == 0 || c.ready&(1<<g) == 0 || !last && !s.walk {
					continue
				}
				n := s
				n.losses--
				n.at(r, m).ready &^= 1 << g
				n.at(r, m).busy &^= 1 << g
				if s.walk {
					n.at(r, m).hurt |= 1 << g
					add(fmt.Sprintf("group %d of %s of %s is lost", g, m, r), n)
				}
				if last {
					add(fmt.Sprintf("a group of %s of %s is lost", m, r), n)
				}
			}
		}
		for slice, roles := range s.children[r] {
			drained := !slices.ContainsFunc(roles[:], func(c roleChild) bool { return c.replicas > 0 })
			if exists := slices.ContainsFunc(roles[:], func(c roleChild) bool { return c.exists }); exists && !s.lwsDown && !s.keeps(r, slice) && (drained && r != s.template || slice >= int(s.slices)) {
				n := s
				for i, c := range roles {
					n.children[r][slice][i] = roleChild{stuck: c.stuck} // its pods outlive it
				}
				happens(fmt.Sprintf("LWS deletes the children of %s in slice %d", r, slice), n)
				all[len(all)-1].disturbs = s.walk && slice >= int(s.slices) // the user has removed it
			}
		}
	}
	if n := s; s.reverts > 0 && s.net.of[s.objects].route != s.net.of[s.net.untouched].route {
		n.objects = s.net.edit(s.objects, "revert", func(o *model.Objects) { o.Routes = s.net.worlds.values[s.net.untouched].Routes })
		n.reverts--
		add("another client restores the routes", n)
	}
	if n := s; s.deletes > 0 && s.bounds != "" {
		n.bounds, n.deletes, n.tampered, n.earlier = "", s.deletes-1, s.walk, false
		add("another client deletes the bounds", n)
	}
	if n := s; s.resizes > 0 {
		n.slices, n.resizes = slicesOf+1-s.slices, s.resizes-1
		for role, c := range s.children[s.template][s.slices%slicesOf] {
			if s.walk && n.slices > s.slices && !c.exists {
				n.children[s.template][s.slices][role].hurt = 1<<s.wanted[role] - 1 // until they are ready
			}
		}
		add(fmt.Sprintf("the user sets slices to %d", n.slices), n)
	}
	if n := s; s.unsized {
		if n.unsized = false; s.walk { // with as many groups as there are, of all slices and revisions
			sum := uint8(0)
			for r, m := range s.all() {
				if m.role == 0 {
					sum += s.at(r, m).replicas
				}
			}
			n.resize(0, max(min(sum, maxIndices-2), 1))
		}
		if !s.lwsDown {
			happens("LWS creates the scaler", n)
		}
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
	if s.walk {
		all = append(all, s.walkSteps()...)
	}
	return all
}

// counted returns how many groups of a member the bounds keep for the user. LeaderWorkerSet may remove one that was added after the driver has
// counted them.
func (s roleState) counted(b Bounds, m roleMember) uint8 {
	if least := uint8(b.Min[m.String()]); s.walk {
		return min(s.wanted[m.role], least)
	}
	return s.wanted[m.role]
}

// within reports whether every group that the bounds let LWS remove is removed: the rules judge it by the number of groups before it was
// raised.
func (s roleState) within(b Bounds) bool {
	for r, m := range s.all() {
		c := *s.at(r, m)
		if r.String() == b.Stable && c.exists && int(c.replicas) > b.Min[m.String()] || r.String() == b.Update && int(c.replicas) > b.Exact[m.String()] {
			return false
		}
	}
	return true
}

// serving reports whether another revision has groups in a slice, with -1 in any.
func (s roleState) serving(not revision, slice int) bool {
	for r, m := range s.all() {
		c := *s.at(r, m)
		if r != not && (slice < 0 || m.slice == slice) && c.replicas > 0 {
			return true
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
	if s.wanted[0] == 0 {
		return 0
	}
	return (units*int(s.wanted[role]) + int(s.wanted[0]) - 1) / int(s.wanted[0])
}

// unitsIn returns how many whole units of a revision are ready in a slice.
func (s roleState) unitsIn(r revision, slice int) int {
	units := int(s.wanted[0])
	for i, c := range s.children[r][slice] {
		if s.wanted[i] > 0 {
			units = min(units, bits.OnesCount8(c.ready)*int(s.wanted[0])/int(s.wanted[i]))
		}
	}
	return units
}

// addedIdle reports whether units that stand beside the stable ones get no requests.
func (s *roleState) addedIdle() bool {
	if s.net == nil || s.style == pb.Style_STYLE_PARTITION {
		return false
	}
	written, served := s.net.shares(s.objects, s.served)
	return written == 0 && served == 0
}

// breach returns the rule that a step breaks, or "" if there is none.
func (s roleState) breach(o Observation, step roleStep) string {
	n := step.next
	switch _, kept := s.remains(); {
	case step.disturbs && s.walk, strings.HasPrefix(step.by, "garbage collection"):
		return ""
	case s.tampered && strings.HasPrefix(step.by, "LWS"): // it does what the edited bounds let it
		return ""
	case s.earlier, s.orphans && kept: // LeaderWorkerSet takes orphans for its own, and the driver does not see them
		return ""
	}
	if s.net != nil {
		if broken := s.breachOfRequests(o, step); broken != "" {
			return broken
		}
	}
	if b := step.bounds; b != nil && s.record == "" && n.record == "" && s.bounds != "" && !s.addedIdle() {
		before := *boundsRead.of(s.bounds)
		for slice := range o.Slices {
			if b.Update == "" || b.Update != before.Update || b.Exact[Member(slice, roleNames[0])] >= before.Exact[Member(slice, roleNames[0])] {
				continue
			}
			had, added := s.unitsIn(revisionOf(before.Stable), slice), s.unitsIn(revisionOf(before.Update), slice)
			for i, name := range roleNames { // more are ready until LeaderWorkerSet removes them
				if s.wanted[i] > 0 {
					had = min(had, before.Min[Member(slice, name)]*int(s.wanted[0])/int(s.wanted[i]))
				}
			}
			if had < min(had+added, int(s.wanted[0])) {
				return fmt.Sprintf("without a record, the update's units go, and %d of %d are left", had, s.wanted[0])
			}
		}
	}
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
	} else if b := step.bounds; s.tampered && b != nil && b.Update != "" {
		update = revisionOf(b.Update) // another client has removed it from the bounds
	}
	shifts := s.style == pb.Style_STYLE_PARTITION && phase.Unfinished()
	if shifts && !s.forced() {
		if broken := s.breachOfShift(o, step, stable, update, phase); broken != "" {
			return broken
		}
	}
	if b := step.bounds; b != nil {
		first, _ := s.drained()
		lowers, broken := s.lowers(o, *b), ""
		if !shifts {
			broken = s.breachOfSlices(o, *b, before)
		}
		switch {
		case broken != "":
			return broken
		case s.net == nil && !shifts && !s.forced() && update != 0 && b.Stable == before.Stable && b.Units == 0 && before.Units > 0 && s.wanted[0] > 0 && s.units(stable) == 0 && s.units(update) > 0:
			return "rule 5: the units of the update go, which alone serve"
		case b.Stable != before.Stable && !s.promoted:
			return "the stable revision changes without a promotion"
		case b.Stable == before.Stable && lowers && phase != record.HandingOver && !shifts:
			return "stable groups may go before a promotion hands over"
		case b.Stable == before.Stable && lowers && !shifts && before.Min[Member(0, roleNames[first])] == int(s.wanted[first]) && s.units(update) < int(s.wanted[0])*o.Slices-s.tolerated(o):
			return "stable groups may go before every unit of the update is ready"
		case before.Update == "" && b.Update != "" && b.Units <= s.entryGroups(revisionOf(b.Update)): // another client has removed them from the bounds
		case b.Update != "" && b.Update != before.Stable && b.Units > before.Units && (b.Units > int(max(s.asked, n.asked)) || b.Update != s.template.String() && phase != record.HandingOver):
			return fmt.Sprintf("%d units are allowed, and the host asked for %d", b.Units, s.asked)
		}
	}
	for r, m := range n.all() {
		c := *n.at(r, m)
		if m.slice >= int(s.slices) {
			continue // the user has removed it
		}
		switch had := *s.at(r, m); {
		case r == stable && wasReleased(before, m, phase):
		case r == stable && !shifts && c.replicas < had.replicas && c.replicas < s.counted(before, m) && phase != record.HandingOver && phase != record.Promoted:
			return fmt.Sprintf("%s of the stable revision loses groups in phase %q", m, phase)
		case r != stable && r != update && c.replicas > had.replicas:
			return fmt.Sprintf("%s of revision %s gets groups without a step", m, r)
		case r == update && c.replicas > had.replicas && int(c.replicas) > before.Exact[m.String()]:
			return fmt.Sprintf("%s of the update has more groups than its batch", m)
		case r == update && shifts && m.role != 0 && int(c.replicas) >= s.part(m.role, before.Exact[Member(m.slice, roleNames[0])]): // the user has scaled the role down
		case r == update && shifts && int(c.replicas) >= s.part(m.role, max(o.placesForUnits(), o.unitsOf(func(role Role) int {
			return o.childOf(m.slice, r.String(), role.Name).Replicas
		}))): // the user has edited the pace before the unit was complete
		case r == update && r == s.template && phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && rec.Release.UpdateRevision == r.String() && c.replicas < min(had.replicas, s.wanted[m.role]):
			return fmt.Sprintf("%s of the update loses groups in phase %q: they start twice", m, phase)
		}
		first, last := s.drained()
		before, after := s.children[r][m.slice][last].replicas, n.children[r][m.slice][last].replicas
		others := uint8(0)
		for slice := range s.slices {
			others += s.children[r][slice][first].replicas
		}
		if r == stable && phase == record.HandingOver && n.children[r][m.slice][last].exists && after < min(before, s.wanted[last]) && others > 0 && (!shifts || after == 0) {
			return fmt.Sprintf("%s goes before %s", roleNames[last], roleNames[first])
		}
	}
	return ""
}

// wasReleased reports whether a promotion has let the last stable groups of a member go, and no write of bounds has kept them since it is rolled back.
func wasReleased(b Bounds, m roleMember, phase record.Phase) bool {
	return phase == record.RollingBack && b.Min[m.String()] == 0
}

// placesForUnits returns how many units of a slice may be replaced before the promotion.
func (o Observation) placesForUnits() int {
	if o.failShift() != nil {
		return 0
	}
	return o.shiftableUnits()
}

// entryGroups returns how many groups of the entry role have a revision.
func (s roleState) entryGroups(r revision) (groups int) {
	for m, c := range s.members(r) {
		if m.role == 0 {
			groups += int(c.replicas)
		}
	}
	return groups
}

// drained returns which role a promotion removes first, and which last.
func (s roleState) drained() (first, last int) {
	if s.second {
		return 1, 0
	}
	return 0, 1
}

// lowers reports whether bounds let a role have fewer groups than in the spec.
func (s roleState) lowers(o Observation, b Bounds) bool {
	for slice := range o.Slices {
		for i, name := range roleNames {
			wanted := s.wanted[i]
			if i == 0 && s.unsized {
				wanted = min(wanted, uint8(o.Bounds.Min[Member(slice, name)])) // no other number is known
			}
			if b.Min[Member(slice, name)] < int(wanted) && (s.third == sameRoles && !s.walk || s.at(revisionOf(b.Stable), roleMember{slice, i}).owned()) {
				return true
			}
		}
	}
	return false
}

// breachOfSlices returns the rule by which units are whole within a slice, and fill one slice after another, that bounds break, or "" if there is none.
func (s roleState) breachOfSlices(o Observation, b, before Bounds) string {
	if s.wanted[0] == 0 || s.walk && s.unsized { // the driver has the last known number
		return ""
	}
	room := false
	for slice := range o.Slices {
		units, has := b.Exact[Member(slice, roleNames[0])], 0 // of what another client has removed from the bounds, or deleted with them
		if b.Update != "" && (s.tampered || before.Update == "") {
			has = int(s.at(revisionOf(b.Update), roleMember{slice, 0}).replicas)
		}
		had := before.Exact[Member(slice, roleNames[0])]
		// Those that have no unit any more finish their requests before they go.
		for role, name := range roleNames[1:] {
			if n := b.Exact[Member(slice, name)]; n != min(s.part(role+1, units), int(s.wanted[role+1])) && units > has && (!s.walk || units > had) {
				return fmt.Sprintf("slice %d has %d groups of prefill and %d of %s", slice, units, n, name)
			}
		}
		if room && units > max(had, has) {
			return fmt.Sprintf("slice %d gets units before the one before it is full", slice)
		}
		room = room || units < int(s.wanted[0])
	}
	return ""
}

// added reports whether a slice has never had children of the stable revision: LeaderWorkerSet may have rolled it while nothing held it.
func (s roleState) added(stable revision, slice int) bool {
	for _, c := range s.children[stable][slice] {
		if c.exists || c.deleted {
			return false
		}
	}
	return s.walk
}

// breachOfShift returns the rule that a step of a shift breaks, or "" if there is none.
func (s roleState) breachOfShift(o Observation, step roleStep, stable, update revision, phase record.Phase) string {
	// LeaderWorkerSet may remove a group that the driver has not counted, and without a group of the entry role no unit serves.
	n, counted, all := step.next, s.wanted, true
	for i, name := range roleNames {
		if at := indexRole(boundsRead.of(s.bounds).Roles, name); s.walk && at >= 0 {
			counted[i] = min(counted[i], uint8(boundsRead.of(s.bounds).Roles[at].Replicas))
			all = all && counted[i] == s.wanted[i]
		}
	}
	for slice := range o.Slices {
		entry := Member(slice, roleNames[0])
		if b := step.bounds; b != nil && update != 0 && b.Exact[entry] < min(s.unitsIn(update, slice), boundsRead.of(s.bounds).Exact[entry]) && phase != record.Promoted {
			if left := s.unitsIn(stable, slice) + b.Exact[entry]; left < int(s.wanted[0])-o.sliceLacks()-s.hurtUnits(anyRevision, slice) {
				return fmt.Sprintf("ready units of the update are removed, and %d of %d are left", left, s.wanted[0])
			}
		}
		for i, name := range roleNames {
			m, b, at, before := roleMember{slice, i}, step.bounds, Member(slice, name), boundsRead.of(s.bounds)
			if b == nil || b.Min[at] >= before.Min[at] && b.Exact[at] >= before.Exact[at] || s.added(stable, slice) {
				continue
			}
			was, updated := *s.at(stable, m), roleChild{}
			exact := b.Exact[at]
			if update != 0 {
				updated = *s.at(update, m)
				if entry := s.at(update, roleMember{slice, 0}); entry.ready == 0 || s.net != nil && entry.serving == 0 {
					exact = max(exact, bits.OnesCount8(updated.ready)) // no request reaches those that it loses
				}
			}
			had, will := bits.OnesCount8(was.ready), bits.OnesCount8(updated.ready)
			least := int(counted[i]) - max(int(s.unavailable[i]), s.part(i, s.tolerated(o)))
			if phase == record.Promoted || had+will < least || counted[0] == 0 {
				continue
			}
			// LWS may have removed groups that the earlier bounds do not keep.
			if left := min(had, b.Min[at], before.Min[at]) + min(will, exact); left < min(least, min(had, before.Min[at])+will) {
				return fmt.Sprintf("%v: bounds leave %d ready groups of both revisions, of %d", m, left, s.wanted[i])
			}
		}
	}
	for m, is := range n.members(stable) {
		was, i := *s.at(stable, m), m.role
		if had := bits.OnesCount8(was.ready & (1<<counted[i] - 1)); strings.HasPrefix(step.by, "driver: scale") && is.ready != was.ready && phase != record.Promoted && update != 0 && counted[0] > 0 {
			updated, least := bits.OnesCount8(s.at(update, m).ready), int(counted[i])-max(int(s.unavailable[i]), s.part(i, s.tolerated(o)))
			if left := bits.OnesCount8(is.ready) + updated; left < min(least, had+updated) {
				return fmt.Sprintf("%s: the driver leaves %d ready groups of both revisions, of %d", m, left, s.wanted[i])
			}
		}
		if is.replicas < was.replicas && phase != record.HandingOver && phase != record.Promoted && m.slice < int(s.slices) && !wasReleased(*boundsRead.of(s.bounds), m, phase) {
			if is.replicas == 0 && counted[i] > 0 {
				return fmt.Sprintf("%s of the stable revision loses its last group in phase %q", m, phase)
			}
			part, updated := 0, 0
			if update != 0 {
				updated = n.unitsIn(update, m.slice)
				part = s.part(i, updated)
			}
			if left := n.unitsIn(stable, m.slice) + updated; all && n.unitsIn(stable, m.slice) < s.unitsIn(stable, m.slice) && left < int(s.wanted[0])-o.sliceLacks()-s.hurtUnits(anyRevision, m.slice) {
				return fmt.Sprintf("%s: %d units are left of %d", m, left, s.wanted[0])
			}
			if left := bits.OnesCount8(is.ready); is.ready != was.ready && left+part < int(counted[i])-int(s.unavailable[i])-bits.OnesCount8(is.hurt&^is.ready) {
				return fmt.Sprintf("%s: %d stable groups and %d of the update's units are left of %d", m, left, part, s.wanted[i])
			}
		}
		total := func(s roleState) (all uint8) {
			for r := revision(1); r <= revisions; r++ {
				c := s.at(r, m)
				all += c.replicas + uint8(bits.OnesCount8(c.stuck>>c.replicas)) // a lost node keeps those
			}
			return all
		}
		may := s.wanted[i]
		if at := indexRole(boundsRead.of(s.bounds).Roles, roleNames[i]); s.walk && at >= 0 && strings.HasPrefix(step.by, "LWS") {
			may = max(may, uint8(boundsRead.of(s.bounds).Roles[at].Replicas)) // the driver has not counted those that the user has removed
		}
		if total(n) > total(s) && total(n) > may+s.surge[i] {
			return fmt.Sprintf("%s has %d groups, and may have %d and %d in addition", m, total(n), may, s.surge[i])
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
	for r, m := range s.all() {
		c := *s.at(r, m)
		if c.ready != 1<<c.replicas-1 {
			return ""
		}
	}
	if slices.ContainsFunc(s.others(), func(step roleStep) bool { return step.own }) {
		return ""
	}
	if wrong := s.misrouted(o, d); wrong != "" {
		return fmt.Sprintf("%s in %s, %s: %s", wrong, d.State, d.Reason, d.Message)
	}
	r, all := o.release(), int(s.wanted[0])*o.Slices
	switch {
	case s.noted != autoscaler.HoldNone && (r == nil || atRestIn(d.State) && !r.Phase.Unfinished()):
		return fmt.Sprintf("rule 7: the autoscaler stays held in %s, %s: %s", d.State, d.Reason, d.Message)
	case r == nil:
	case d.State == pb.State_STATE_COMPLETED && d.Reason == ReasonChildMissing && o.Stable.Revision != r.UpdateRevision: // another client has deleted the bounds; the message says which template to restore
	case d.State == pb.State_STATE_COMPLETED && (s.units(revisionOf(r.UpdateRevision)) < all || s.serving(revisionOf(r.UpdateRevision), -1)):
		return "the release is complete, and the groups are not"
	case d.State == pb.State_STATE_ROLLED_BACK && (s.units(revisionOf(r.StableRevision)) < all || s.serving(revisionOf(r.StableRevision), -1)):
		return "the release is rolled back, and the groups are not"
	case r.Phase.Unfinished() && d.State == pb.State_STATE_PROMOTING:
		return "the promotion waits for nothing: " + d.Message
	case awaitsHost(o, d):
	case d.State == pb.State_STATE_ROLLING_BACK && o.lacksChild(r.StableRevision) && !d.Deadline.IsZero(): // the message says which template to restore
	case d.State == pb.State_STATE_ROLLING_BACK, d.State == pb.State_STATE_UPGRADING, d.State == pb.State_STATE_VERIFYING:
		return fmt.Sprintf("%s waits for nothing: %s", d.State, d.Message)
	}
	return ""
}

// awaitsHost reports whether a batch waits for another weight, since the host left the new units too few requests, and fails with what to do once
// the deadline has passed.
func awaitsHost(o Observation, d Decision) bool {
	r := o.release()
	if d.State != pb.State_STATE_UPGRADING || r == nil || r.Traffic == nil || r.Traffic.Weight >= o.weightOf(d.Progress.Planned) || d.Deadline.IsZero() {
		return false
	}
	o.Now, o.Waiting = d.Deadline, d.Waiting
	late := reconcile(o)
	return late.State == pb.State_STATE_FAILED && strings.Contains(late.Message, fmt.Sprintf("asked for %d %% of the requests", r.Traffic.Weight)) &&
		strings.Contains(late.Message, "Ask for a weight of")
}

// atRest returns the state in which every group runs template 1.
func (s roleState) atRest() roleState {
	s.template, s.slices = max(s.template, 1), max(s.slices, 1)
	for m := range s.members(1) {
		if m.slice < int(s.slices) && !s.lacks(1, m.role) {
			*s.at(1, m) = roleChild{exists: true, replicas: s.wanted[m.role], ready: 1<<s.wanted[m.role] - 1}
		}
	}
	return s
}

// adopted returns the state once the set is held.
func (s roleState) adopted() roleState {
	for s.record == "" || s.bounds == "" {
		s = must(s.write(must(Decide(s.observe(), Adopt{})).Action))
	}
	return s
}

// promotes returns the state in which a promotion of template 2 removes the first groups, without any disturbance before.
func (s roleState) promotes() roleState {
	disturbed := s
	s.template, s.edits, s.losses, s.deletes = 2, 0, 0, 0
	for _, i := range []Intent{
		Begin{ReleaseID: "r", Policy: s.policy()}, SetTarget{ReleaseID: "r", Groups: "100%"}, Promote{ReleaseID: "r"},
	} {
		s = must(s.write(must(Decide(s.observe(i), i)).Action))
	}
	s.asked = many
	for s.serving(2, -1) && !slices.Contains(slices.Collect(maps.Values(boundsRead.of(s.bounds).Min)), 0) {
		d, _ := Decide(s.observe(), nil)
		if d.Action == nil {
			s = s.others()[0].next
			continue
		}
		s = must(s.write(d.Action))
	}
	s.edits, s.losses, s.deletes = disturbed.edits, disturbed.losses, disturbed.deletes
	return s
}

// cycle returns a state that recurs by what happens next while nothing disturbs, or false if none does.
func cycle(calm map[roleState]roleState) (roleState, bool) {
	ends := map[roleState]bool{}
	for at := range calm {
		walked := map[roleState]bool{}
		for next := true; next && !ends[at]; {
			if walked[at] {
				return at, true
			}
			walked[at] = true
			at, next = calm[at]
		}
		maps.Copy(ends, walked)
	}
	return roleState{}, false
}

// releases are courses of a host: one is promoted, and one is aborted.
var releases = [][]string{
	{"the user edits the template to B", "host begins", "host asks for a unit", "host asks for 50", "host asks for all units", "host asks for 100", "host promotes"},
	{"the user edits the template to B", "host begins", "host asks for a unit", "host asks for 50", "host asks for all units", "host aborts"},
}

// TestExploreRoles visits every state of small DisaggregatedSets.
func TestExploreRoles(t *testing.T) {
	t.Parallel()
	type two = [rolesOf]uint8
	for _, world := range []struct {
		roleState

		most   int // times exploreStates
		routed bool
	}{
		{roleState{wanted: two{2, 1}, edits: 2, losses: 1, style: pb.Style_STYLE_CANARY}, 2, true},
		{roleState{wanted: two{2, 2}, edits: 2, losses: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 2, true},
		{roleState{wanted: two{2, 2}, edits: 2, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 2, true},
		{roleState{wanted: two{1, 2}, edits: 2, style: pb.Style_STYLE_PARTITION, surge: two{1, 2}}, 2, true},
		{roleState{wanted: two{2, 2}, edits: 2, autoscaled: true, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 2, true},
		{roleState{wanted: two{1, 2}, edits: 2, losses: 1, style: pb.Style_STYLE_BLUE_GREEN}, 2, true},
		{roleState{wanted: two{1, 1}, edits: 2, losses: 1, slices: 2, style: pb.Style_STYLE_CANARY}, 2, true},
		{roleState{wanted: two{1, 2}, edits: 2, losses: 1, second: true, style: pb.Style_STYLE_CANARY}, 2, true},
		{roleState{wanted: two{2, 2}, edits: 2, second: true, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 2, true},
		{roleState{wanted: two{2, 1}, edits: 2, second: true, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 0}, surge: two{0, 1}}, 1, true},
		{roleState{wanted: two{1, 2}, edits: 2, losses: 1, deletes: 1, second: true, promoted: true, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{1, 2}, edits: 1, third: removesPrefill, slices: 1, second: true, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{wanted: two{2, 1}, edits: 2, losses: 1, deletes: 1, promoted: true, style: pb.Style_STYLE_CANARY}, 4, false},
		{roleState{wanted: two{1, 2}, edits: 2, third: removesDecode, promoted: true, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{wanted: two{2, 2}, edits: 1, losses: 1, deletes: 1, promoted: true, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4, false},
		{roleState{wanted: two{1, 1}, edits: 1, deletes: 1, slices: 2, promoted: true, style: pb.Style_STYLE_CANARY}, 4, false},
		{roleState{wanted: two{2, 1}, edits: 1, losses: 1, style: pb.Style_STYLE_CANARY}, 8, false},
		{roleState{wanted: two{1, 2}, edits: 1, losses: 1, style: pb.Style_STYLE_CANARY}, 8, false},
		{roleState{wanted: two{1, 1}, edits: 2, style: pb.Style_STYLE_CANARY}, 4, false},
		{roleState{template: 2, wanted: two{2, 2}, edits: 1, losses: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 10, false},
		{roleState{wanted: two{2, 1}, edits: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 0}, surge: two{0, 1}}, 8, false},
		{roleState{wanted: two{2, 2}, edits: 1, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 8, false},
		{roleState{template: 2, wanted: two{4, 2}, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 8, false},
		{roleState{template: 2, wanted: two{4, 2}, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4, false},
		{roleState{wanted: two{1, 3}, edits: 1, style: pb.Style_STYLE_PARTITION, surge: two{1, 3}}, 4, false},
		{roleState{template: 2, wanted: two{1, 1}, grows: 1, style: pb.Style_STYLE_CANARY}, 4, false},
		{roleState{template: 2, wanted: two{2, 2}, grows: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 3, false},
		{roleState{wanted: two{2, 1}, edits: 1, scalers: 1, style: pb.Style_STYLE_CANARY}, 4, false},
		{roleState{template: 2, wanted: two{2, 2}, scalers: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 6, false},
		{roleState{template: 2, wanted: two{2, 1}, edits: 1, third: addsRole, slices: 1, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{2, 1}, edits: 2, third: removesDecode, slices: 1, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{1, 2}, edits: 1, third: removesPrefill, slices: 1, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{2, 2}, edits: 2, third: removesDecode, slices: 1, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 4, false},
		{roleState{template: 2, wanted: two{1, 1}, slices: 2, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{2, 1}, slices: 2, style: pb.Style_STYLE_CANARY}, 2, false},
		{roleState{template: 2, wanted: two{1, 1}, slices: 1, resizes: 2, style: pb.Style_STYLE_CANARY}, 1, false},
		{roleState{template: 2, wanted: two{1, 1}, slices: 2, style: pb.Style_STYLE_PARTITION, surge: two{1, 1}}, 2, false},
		{roleState{template: 2, wanted: two{2, 2}, slices: 2, style: pb.Style_STYLE_PARTITION, unavailable: two{1, 1}}, 2, false},
	} {
		start, wanted, most := world.roleState, world.wanted, world.most**exploreStates
		if start = start.atRest(); world.slices > 0 || world.promoted || world.routed { // the other worlds visit what is before
			start = start.adopted()
		}
		if world.routed {
			start.route()
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
		queue, ends, calm := []roleState{start}, map[pb.State]int{}, map[roleState]roleState{}
		for _, hosts := range releases {
			from, seed := start, start
			for _, step := range seed.course(hosts...) {
				next := step.next
				next.losses, next.deletes, next.reverts = start.losses, start.deletes, start.reverts
				if _, seen := came[next]; !seen && world.routed {
					came[next], by[next] = from, step.by
					queue = append(queue, next)
				}
				from = next
			}
		}
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
			if i := slices.IndexFunc(steps, func(step roleStep) bool { return step.own }); i >= 0 {
				calm[s] = steps[i].next
			}
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
		if s, found := cycle(calm); found {
			t.Fatalf("%v: the writes never end, after%s", wanted, course(s))
		}
		t.Logf("%v in %d slices: %d states: %v", wanted, start.slices, len(came), slices.Sorted(maps.Keys(ends)))
		if len(came) >= most || world.promoted {
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

// An abort bounds the groups that it needs before it restores their template, by which LWS creates children within the bounds. No unit
// starts on the way back.
func TestWayBack(t *testing.T) {
	o := rolesObservation(4, 2)
	o.Record.Release.Phase, o.Bounds.Min["0-prefill"] = record.RollingBack, 0
	o.formUnits()
	if raise, ok := o.roleAction(RestoreTemplate{Revision: "old"}).(SetBounds); !ok || raise.Bounds.Min["0-prefill"] != 4 {
		t.Fatalf("the template is restored within bounds of %d groups", o.Bounds.Min["0-prefill"])
	}
	o = rolesObservation(2, 1)
	o.Policy.Style, o.Record.Release.Phase, o.Roles = pb.Style_STYLE_PARTITION, record.RollingBack, slices.Clone(o.Roles)
	for i := range o.Roles {
		o.Roles[i].MaxSurge = o.Roles[i].Replicas
	}
	o.Children[2].Replicas, o.Children[2].Groups = 1, roleGroups(o.Children[2].Name, 1, 1)
	o.formUnits()
	if b := o.withUnits(*o.Bounds, 2); b.Exact["0-prefill"] > 1 {
		t.Fatalf("a unit starts on the way back: %v", b.Exact)
	}
}
