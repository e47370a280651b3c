// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// The routing of a small DisaggregatedSet is the network of the small world. Its endpoints are the leaders of the entry role, whose Service
// tells the sides apart by their revision.

// hash returns a revision as the labels and names of LWS have it.
func (r revision) hash() string {
	if r == 0 {
		return "none"
	}
	return strings.Repeat(strings.ToLower(r.String()), 8)
}

// roleLabels are those of a leader of the entry role.
func roleLabels(k endpoint) labels.Set {
	return labels.Set{
		disaggregated.SetNameLabelKey: "llm", disaggregated.RoleLabelKey: roleNames[0], disaggregated.RevisionLabelKey: k.revision.hash(),
		lws.WorkerIndexLabelKey: "0",
	}
}

// roleSetup returns the traffic of a release as the observer does.
func roleSetup(style pb.Style, stable, update revision) traffic.Setup {
	set := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: "llm", UID: "workload"}}
	s := traffic.NewSetupOfRole(set, roleNames[0], stable.hash(), update.hash(), routed)
	s.CanaryPin[record.ServingLabel] = record.Serving
	if InPlace(style) {
		s.StablePin[record.ServingLabel] = record.Serving
	}
	return s
}

// route has the requests of the state be routed.
func (s *roleState) route() {
	n := newNetwork(roleLabels)
	s.net, s.objects = &n, n.begin(roleSetup(s.style, 1, 0))
	s.selectors, s.served = n.of[s.objects].selectors, n.of[s.objects].route
	s.receive()
}

// entries yields the leaders of the entry role's ready groups, each with its bit.
func (s *roleState) entries(yield func(r revision, c *roleChild, slice, group int, bit uint64) bool) {
	for r := revision(1); r <= revisions; r++ {
		for slice := range s.children[r] {
			c := &s.children[r][slice][0]
			for g := range int(c.replicas) {
				if c.ready&(1<<g) != 0 && !yield(r, c, slice, g, 1<<((int(r-1)*slicesOf+slice)*maxIndices+g)) {
					return
				}
			}
		}
	}
}

// endpoints returns the ready leaders behind a Service with some selectors, as bits.
func (s *roleState) endpoints(selectors uint8, canary bool) (behind uint64) {
	s.entries(func(r revision, c *roleChild, _, g int, bit uint64) bool {
		if s.net.selects(endpoint{selectors: selectors, canary: canary, revision: r, serving: c.serving&(1<<g) != 0}) {
			behind |= bit
		}
		return true
	})
	return behind
}

// receive notes which leaders receive requests.
func (s *roleState) receive() {
	if s.net == nil {
		return
	}
	_, share := s.net.shares(s.objects, s.served)
	var behind uint64
	if share < 100 {
		behind |= s.endpoints(s.selectors, false)
	}
	if share > 0 {
		behind |= s.endpoints(s.selectors, true)
	}
	s.entries(func(_ revision, c *roleChild, _, g int, bit uint64) bool {
		if behind&bit != 0 {
			c.busy |= 1 << g
		}
		return true
	})
}

func (s *roleState) view(r *record.Release) view {
	stable, update := revision(0), revision(0) // as the observer has it
	if s.bounds != "" && !s.earlier {
		stable = revisionOf(boundsRead.of(s.bounds).Stable)
	}
	if r != nil {
		stable, update = revisionOf(r.StableRevision), revisionOf(r.UpdateRevision)
	}
	if s.bounds != "" && !s.earlier && boundsRead.of(s.bounds).Update != "" {
		update = revisionOf(boundsRead.of(s.bounds).Update)
	}
	return view{
		setup: [3]revision{0, stable, update}, objects: s.objects,
		accepted: s.net.of[s.objects].route == s.served, stable: s.endpoints(s.selectors, false), canary: s.endpoints(s.selectors, true),
	}
}

// look returns what is observed of the routing.
func (s *roleState) look(r *record.Release) *traffic.Observed {
	v := s.view(r)
	return s.net.look(v, func() (traffic.Setup, []string, []string) {
		var stable, canary []string
		s.entries(func(r revision, _ *roleChild, slice, g int, bit uint64) bool {
			name := roleMember{slice, 0}.leader(r, g)
			if v.stable&bit != 0 {
				stable = append(stable, name)
			}
			if v.canary&bit != 0 {
				canary = append(canary, name)
			}
			return true
		})
		return roleSetup(s.style, v.setup[1], v.setup[2]), stable, canary
	})
}

// named reports whether the bounds name the routes of a release.
func (s *roleState) named() bool { return s.bounds != "" && boundsRead.of(s.bounds).Routes != "" }

// released returns the recorded release, nil if there is none.
func (s *roleState) released() *record.Release {
	if s.record == "" {
		return nil
	}
	return records.of(s.record).record.Release
}

// routeRequests adds the routing to an observation.
func (s *roleState) routeRequests(o *Observation) {
	if r := o.release(); s.net != nil && (r != nil || s.named()) {
		o.Traffic, o.Policy.Drain = s.look(r), probe.Drain{Period: time.Minute}
		if s.warmUp {
			o.Policy.WarmUp, o.Policy.WarmUpRoles = probe.WarmUp{Timeout: time.Minute}, roleNames[:]
		}
	}
}

// drain adds the drain of an observation, which the engine asks for at once.
func (s *roleState) drain(o *Observation) {
	if o.Traffic == nil {
		return
	}
	draining := o.drainingGroups()
	if len(draining) == 0 {
		return
	}
	o.Drain = &Drain{leadersOf(draining), Answer{Done: true, Message: "requests are running"}}
	s.entries(func(r revision, c *roleChild, slice, g int, _ uint64) bool {
		if c.busy&(1<<g) != 0 && slices.Contains(o.Drain.Leaders, roleMember{slice, 0}.leader(r, g)) {
			o.Drain.Done, o.Drain.Recheck = false, time.Minute
		}
		return o.Drain.Done
	})
}

// label applies a serving label of the driver.
func (s *roleState) label(a LabelServing) error {
	for r := revision(1); r <= revisions; r++ {
		for slice := range s.children[r] {
			c := &s.children[r][slice][0]
			for g := range int(c.replicas) {
				if (roleMember{slice, 0}).leader(r, g) != a.Leader {
					continue
				}
				if c.serving &^= 1 << g; a.Serves {
					c.serving |= 1 << g
				}
				s.resync()
				return nil
			}
		}
	}
	return fmt.Errorf("%s: there is no such leader", a)
}

// resync has the endpoints follow the Services: their controller judges a pod that has changed by the selectors of that time.
func (s *roleState) resync() {
	if s.net != nil {
		s.selectors = s.net.of[s.objects].selectors
	}
}

// networkSteps returns what the controllers of endpoints, the gateway and the leaders do by themselves.
func (s roleState) networkSteps() (all []roleStep) {
	if s.net == nil {
		return nil
	}
	add := func(by string, n roleState) {
		if n.receive(); n != s {
			all = append(all, roleStep{by: by, next: n, own: true})
		}
	}
	n := s
	n.resync()
	add("the endpoints follow", n)
	n = s
	n.served = s.net.of[s.objects].route
	if !s.gatewayDown {
		add("the gateway accepts the routes", n)
	}
	n = s
	n.entries(func(_ revision, c *roleChild, _, _ int, _ uint64) bool { c.busy = 0; return true })
	add("the requests end", n)
	for r, m := range s.all() {
		if c, n := s.at(r, m), s; s.warmUp && c.ready&^c.warm != 0 && s.bounds != "" && r.String() == boundsRead.of(s.bounds).Update {
			n.at(r, m).warm = c.ready
			add(fmt.Sprintf("leaders of %s of %s answer their warm-up requests", m, r), n)
		}
	}
	return all
}

// sides returns how many whole units can receive requests behind the two Services, by some selectors.
func (s *roleState) sides(selectors uint8) (units [2]int) {
	for side := range units {
		behind := s.endpoints(selectors, side == 1)
		for r := revision(1); r <= revisions; r++ {
			for slice := range s.children[r] {
				of := uint64(1<<maxIndices-1) << ((int(r-1)*slicesOf + slice) * maxIndices)
				units[side] += min(bits.OnesCount64(behind&of), s.unitsIn(r, slice))
			}
		}
	}
	return units
}

// shortage returns how many units the sides lack for the requests that they get, by what the routes say and by what the gateway serves,
// whichever is worse, and which sides, as bits, get requests without any unit, and beside which the other one has some.
func (s *roleState) shortage() (worst, void, alone int) {
	n := int(s.wanted[0]) * int(s.slices)
	written, served := s.net.shares(s.objects, s.served)
	for _, share := range []int{written, served} {
		for _, selectors := range []uint8{s.net.of[s.objects].selectors, s.selectors} {
			lacks, units := 0, s.sides(selectors)
			for side, percent := range [2]int{100 - share, share} {
				lacks += max((n*percent+99)/100-units[side], 0)
				if percent > 0 && units[side] == 0 {
					void |= 1 << side
				}
				if units[1-side] > 0 {
					alone |= 1 << side
				}
			}
			worst = max(worst, lacks-roundedUp(n, share))
		}
	}
	return worst, void, alone
}

// breachOfRequests returns the rule about requests that a step breaks, or "" if there is none.
func (s roleState) breachOfRequests(o Observation, step roleStep) string {
	n := step.next
	if n.left && n.objects != s.net.untouched && !n.unnamed {
		return "rule 7: the record is removed, and the routing is not restored"
	}
	if s.record == "" || n.record == "" || s.bounds == "" || n.bounds == "" || step.disturbs || s.unnamed {
		return ""
	}
	phase := phaseOf(o.release())
	lacked, was, _ := s.shortage()
	lacks, void, alone := n.shortage()
	switch allowed := s.allowed(o, phase) + n.hurtUnits(anyRevision, -1) + int(s.wanted[0])*o.SlicesWaiting; {
	case lacks > max(lacked, allowed):
		return fmt.Sprintf("rule 2, 5: the sides lack %d units for their requests, and %d before; %d may be unavailable", lacks, lacked, allowed)
	case void&^was&alone != 0 && !s.forced() && (n.hurtUnits(anyRevision, -1) == 0 || n.objects != s.objects):
		return "rule 2: requests go to a side without a whole unit, and the other one has some"
	case void&^was != 0 && n.hurtUnits(anyRevision, -1) == 0 && n.objects == s.objects && strings.HasPrefix(step.by, driver.by) && !s.forced():
		return "rule 2: requests go to a side without a whole unit, since the driver takes it"
	}
	selected := func(s roleState) uint64 { return s.endpoints(s.net.of[s.objects].selectors, false) }
	if o.shiftsBack() && n.objects != s.objects && selected(s) != 0 && selected(n) == 0 && !s.forced() {
		return "rule 2: the stable Service selects no ready leader any more"
	}
	for r, m := range s.all() {
		c := *s.at(r, m)
		left := n.at(r, m)
		if cold := left.serving &^ (c.serving | c.warm); s.warmUp && r.String() == boundsRead.of(s.bounds).Update && cold != 0 {
			return fmt.Sprintf("rule 2: groups %03b of %s of revision %s may get requests, and have not answered their warm-up request", cold, m, r)
		}
		gone := c.busy &^ (1<<left.replicas - 1)
		if b := boundsRead.of(s.bounds); s.walk && r.String() != b.Stable && r.String() != b.Update {
			gone = 0 // no release has them: LeaderWorkerSet rolled to a template that waits, once another client let it
		}
		if r.String() == o.stableSide() || phase == record.HandingOver && m.slice < int(s.slices) {
			gone &= 1<<s.wanted[0] - 1 // the user has removed the others
			if b := boundsRead.of(s.bounds); s.walk && indexRole(b.Roles, roleNames[0]) >= 0 {
				gone &= 1<<b.Roles[indexRole(b.Roles, roleNames[0])].Replicas - 1 // the driver has not counted the others
			}
			if phase != record.HandingOver && !o.replacesUnits() {
				gone &= 1<<s.counted(*boundsRead.of(s.bounds), m) - 1
			}
		}
		if m.role == 0 && gone != 0 {
			return fmt.Sprintf("rule 3: %s of revision %s loses groups %03b, which have requests", m, r, gone)
		}
		if b := step.bounds; b != nil && m.role == 0 && r.String() == b.Update && phase != record.HandingOver && b.Exact[m.String()] > int(c.replicas) &&
			s.net.selects(endpoint{selectors: s.net.of[s.objects].selectors, revision: r}) {
			return fmt.Sprintf("rule 1: %s of revision %s gets groups, and the stable Service selects them", m, r)
		}
	}
	return ""
}

// allowed returns how many units may be unavailable.
func (s roleState) allowed(o Observation, phase record.Phase) int {
	switch {
	case s.forced():
		return int(s.wanted[0]) * int(s.slices) // a person wants the rollback whatever it costs
	case InPlace(s.style):
		return max(o.shiftLacks(), s.tolerated(o))
	case phase == record.RollingBack, phase == record.CleaningUp:
		return 1
	}
	return s.tolerated(o)
}

// forced reports whether the release is rolled back with force.
func (s roleState) forced() bool {
	r := s.released()
	return r != nil && r.Force && r.Phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
}

// tolerated returns how many units may be missing by the policy of the release.
func (s roleState) tolerated(o Observation) int {
	if s.threshold && o.release() != nil {
		return max(min(int(s.wanted[0])*int(s.slices)-1, 1), 0)
	}
	return 0
}

// misrouted returns what is wrong with the requests in a state in which nothing happens any more, or "" if nothing is.
func (s roleState) misrouted(o Observation, d Decision) string {
	if s.net == nil {
		return ""
	}
	phase := phaseOf(o.release())
	written, _ := s.net.shares(s.objects, s.served)
	lacks, _, _ := s.shortage()
	alone := max(int(s.wanted[0])*int(s.slices)-s.sides(s.selectors)[0], 0)
	switch d.State {
	case pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE:
		if s.objects != s.net.untouched {
			return "rule 7: the routing is not restored"
		}
	default:
	}
	if written > 0 && lacks > s.allowed(o, phase)+s.hurtUnits(anyRevision, -1)+int(s.wanted[0])*o.SlicesWaiting && alone < lacks {
		return fmt.Sprintf("rule 2: the requests stay where %d units are missing", lacks)
	}
	return ""
}

// course returns the states in which a host does one after another, each once nothing else happens, and what led to each.
func (s roleState) course(hosts ...string) (all []roleStep) {
	s.losses, s.deletes, s.reverts = 0, 0, 0
	for {
		steps := must(s.steps(s.observe()))
		i := slices.IndexFunc(steps, func(t roleStep) bool { return t.own })
		for i < 0 && len(hosts) > 0 {
			i = slices.IndexFunc(steps, func(t roleStep) bool { return strings.HasPrefix(t.by, hosts[0]) })
			hosts = hosts[1:]
		}
		if i < 0 {
			return all
		}
		s = steps[i].next
		all = append(all, steps[i])
	}
}
