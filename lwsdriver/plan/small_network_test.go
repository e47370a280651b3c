// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// network is the routing of the small world: real objects, written by the real code. Few differ, so each is computed once.
type network struct {
	worlds    table[string, model.Objects]
	selectors table[string, model.Objects] // by what both Services select
	routes    table[string, leads]         // by what the routes say

	policy    *traffic.Policy
	of        []struct{ selectors, route uint8 } // by world
	selected  map[endpoint]bool
	observed  map[view]*traffic.Observed
	written   map[writing]written
	setups    map[[3]revision]traffic.Setup
	edited    map[edit]uint8
	untouched uint8

	// labels returns those of a group's leader.
	labels func(endpoint) labels.Set
}

// leads is where routes lead: the share of the canary, and whether headers lead to it.
type leads struct {
	share   int
	least   int // of several routes
	headers bool
}

// testers is the header route of the host.
var testers = traffic.HeaderRoute{Name: "testers", Matches: []traffic.HeaderMatch{{Name: "x-canary", Value: "yes"}}}

type edit struct {
	objects uint8
	how     string
}

// endpoint is a leader and a Service.
type endpoint struct {
	selectors         uint8
	canary            bool
	carries, revision revision // carries: of its set, 0 for the user's own
	serving           bool
}

// view is what an observation of the routing depends on.
type view struct {
	setup           [3]revision // of the added set, and of both sides in place
	objects         uint8
	accepted, blind bool
	pickerDown      bool
	refused         bool   // the write of the first route
	stable, canary  uint64 // endpoints, as bits: the user's own groups first
	updated         uint8  // in place, the leaders that are not at the stable revision
}

type writing struct {
	view    view
	desired plainDesired
}

// plainDesired is a [traffic.Desired] that is comparable.
type plainDesired struct {
	weight, mirror                             int
	prepared, isolated, splitEnded, handedOver bool
	headers                                    int
}

type written struct {
	objects uint8
	err     error
}

func (w *world) newNetwork(s *state) {
	w.network = newNetwork(leaderLabels)
	w.network.policy = w.trafficPolicy()
	if w.routed {
		s.objects = w.begin(w.setup(s))
		s.selectors, s.route = w.of[s.objects].selectors, w.of[s.objects].route
	}
}

// trafficPolicy returns what the policy of a release routes by.
func (w *world) trafficPolicy() *traffic.Policy {
	switch {
	case w.pool:
		return &pooled
	case w.two:
		return &twoRoutes
	}
	return &routed
}

func newNetwork(labels func(endpoint) labels.Set) network {
	return network{
		edited: map[edit]uint8{}, selected: map[endpoint]bool{}, observed: map[view]*traffic.Observed{}, written: map[writing]written{},
		setups: map[[3]revision]traffic.Setup{}, of: make([]struct{ selectors, route uint8 }, 1), labels: labels, policy: &routed,
	}
}

// begin returns the objects before a release.
func (n *network) begin(setup traffic.Setup) uint8 {
	n.untouched = n.putObjects(model.New(setup))
	return n.untouched
}

func (w *world) setupKey(s *state) [3]revision {
	r := w.release(s)
	switch {
	case w.inPlace() && r != nil:
		return [3]revision{0, revisionOf(r.StableRevision), revisionOf(r.UpdateRevision)}
	case w.inPlace():
		return [3]revision{}
	case s.added.exists && (r == nil || !s.added.leftover()):
		return [3]revision{s.added.carries}
	case r != nil:
		return [3]revision{revisionOf(r.UpdateRevision)}
	}
	return [3]revision{}
}

// setup returns the traffic of the release.
func (w *world) setup(s *state) traffic.Setup {
	k := w.setupKey(s)
	if setup, ok := w.setups[k]; ok {
		return setup
	}
	o := Observation{Stable: Workload{Name: "vllm"}, Record: w.recordOf(s), Policy: record.Policy{Style: w.style}}
	if s.added.exists && k[0] == s.added.carries {
		o.Added = []Workload{{Name: addedName(s.added.carries)}}
	}
	setup := setupOf(o)
	setup.Policy = *w.trafficPolicy()
	w.setups[k] = setup
	return setup
}

func (w *world) inPlace() bool { return InPlace(w.style) }

// putObjects numbers objects. Their generations are only compared with what the gateway has observed.
func (n *network) putObjects(o model.Objects) uint8 {
	o.StableReady, o.CanaryReady = nil, nil
	service := func(svc *corev1.Service) any {
		if svc == nil {
			return nil
		}
		return []any{svc.Spec.Selector, svc.Annotations, svc.Labels, svc.ManagedFields}
	}
	var rules, fields []any
	to, routes := leads{least: 100}, map[traffic.Key]*unstructured.Unstructured{}
	for _, key := range n.policy.Routes {
		r := o.Routes[key]
		if r == nil {
			continue
		}
		r = r.DeepCopy()
		r.SetGeneration(1)
		routes[key] = r
		rules = append(rules, r.Object["spec"])
		fields = append(fields, fmt.Sprint(r.GetAnnotations()), r.GetManagedFields())
		share := traffic.RouteWeight(traffic.Route{Key: key, Object: r}, traffic.Setup{Policy: *n.policy})
		to.share, to.least = max(to.share, share), min(to.least, share)
	}
	o.Routes = routes
	for _, pool := range []**unstructured.Unstructured{&o.StablePool, &o.CanaryPool} {
		if *pool != nil {
			*pool = (*pool).DeepCopy()
			(*pool).SetGeneration(1)
			fields = append(fields, (*pool).Object["spec"], fmt.Sprint((*pool).GetLabels(), (*pool).GetAnnotations()), (*pool).GetManagedFields())
		}
	}
	to.headers = ruleCount(o.World) > len(rules)
	o = o.Accept()
	id := uint8(n.worlds.put(encoded(service(o.Stable), service(o.Canary), rules, fields), o))
	if int(id) == len(n.of) {
		selector := func(svc *corev1.Service) any {
			if svc == nil {
				return nil
			}
			return svc.Spec.Selector
		}
		n.of = append(n.of, struct{ selectors, route uint8 }{
			uint8(n.selectors.put(encoded(selector(o.Stable), selector(o.Canary)), o)),
			uint8(n.routes.put(encoded(rules), to)),
		})
	}
	return id
}

func encoded(v ...any) string { return string(must(json.Marshal(v))) }

// leaderLabels are those of a group of a LeaderWorkerSet.
func leaderLabels(k endpoint) labels.Set {
	name := "vllm"
	if k.carries != 0 {
		name = addedName(k.carries)
	}
	return labels.Set{lws.SetNameLabelKey: name, lws.WorkerIndexLabelKey: "0", lws.RevisionKey: k.revision.String()}
}

// selects reports whether a Service selects a group, ready or not.
func (n *network) selects(k endpoint) bool {
	if yes, known := n.selected[k]; known {
		return yes
	}
	o, pod := n.selectors.values[k.selectors], n.labels(k)
	svc := o.Stable
	if k.canary {
		svc = o.Canary
	}
	if k.serving {
		pod[record.ServingLabel] = record.Serving
	}
	yes := svc != nil && labels.SelectorFromSet(svc.Spec.Selector).Matches(pod)
	n.selected[k] = yes
	return yes
}

// endpoints returns the ready groups behind a Service with some selectors, as bits. Without a picker, requests to the canary's fail.
func (w *world) endpoints(s *state, selectors uint8, canary bool) (bits uint64) {
	if canary && s.pickerDown {
		return 0
	}
	return w.leaders(s, selectors, canary, sound)
}

// leaders returns the ready leaders behind a Service with some selectors, as bits, up to a fault of their groups.
func (w *world) leaders(s *state, selectors uint8, canary bool, most fault) (bits uint64) {
	for at, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			m := &set.groups[i]
			k := endpoint{selectors: selectors, canary: canary, revision: m.revision, serving: m.serving}
			if at == 1 {
				k.carries = set.carries
			}
			if (m.ready || m.fault != sound && m.fault <= most) && w.selects(k) {
				bits |= 1 << (at*maxIndices + i)
			}
		}
	}
	return bits
}

func (w *world) viewOf(s *state) view {
	v := view{setup: w.setupKey(s), objects: s.objects, accepted: w.of[s.objects].route == s.route, blind: s.blind, pickerDown: s.pickerDown, refused: s.refused && refusals[s.refuses] == refusalOne}
	v.stable, v.canary = w.leaders(s, s.selectors, false, workerUnready), w.leaders(s, s.selectors, true, workerUnready)
	if w.inPlace() {
		for i := range s.own.groups {
			if m := s.own.groups[i]; m.revision != 0 && m.revision != v.setup[1] {
				v.updated |= 1 << i
			}
		}
	}
	return v
}

func (w *world) observeTraffic(s *state) *traffic.Observed {
	v := w.viewOf(s)
	return w.look(v, func() (traffic.Setup, []string, []string) {
		setup := w.setup(s)
		if setup.Updated = nil; v.updated != 0 {
			setup.Updated = w.names(s, uint64(v.updated))
		}
		return setup, w.names(s, v.stable), w.names(s, v.canary)
	})
}

// look returns what is observed of the routing. Of a view it asks once for the setup, and for the names of the endpoints.
func (n *network) look(v view, of func() (setup traffic.Setup, stable, canary []string)) *traffic.Observed {
	if o, ok := n.observed[v]; ok {
		return o
	}
	m := n.worlds.values[v.objects]
	setup, stable, canary := of()
	if !v.accepted {
		m.Routes = m.Accept().Routes
		for _, r := range m.Routes {
			r.SetGeneration(r.GetGeneration() + 1)
		}
	}
	if m.StableReady, m.CanaryReady, m.PickerReady = stable, canary, nil; !v.pickerDown {
		m.PickerReady = []string{"picker-0"}
	}
	if v.refused {
		m.Refused = n.policy.Routes[0]
	}
	o := &traffic.Observed{Setup: setup, World: m.World}
	if v.blind {
		o = &traffic.Observed{Setup: setup, Unread: &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_NOT_SYNCED, Message: "the caches are not filled yet"}}
	}
	n.observed[v] = o
	return o
}

// names returns the leaders of groups.
func (w *world) names(s *state, bits uint64) (out []string) {
	for i := range 2 * maxIndices {
		switch {
		case bits&(1<<i) == 0:
		case i < maxIndices:
			out = append(out, leaderNames["vllm"][i])
		default:
			out = append(out, leaderNames[addedName(s.added.carries)][i-maxIndices])
		}
	}
	return out
}

// write makes the next write towards a desired routing.
func (w *world) write(s *state, d traffic.Desired) (err error) {
	sees := *s
	sees.blind = false // a write reads the objects themselves
	s.objects, err = w.advance(w.viewOf(&sees), d, func() *traffic.Observed { return w.observeTraffic(&sees) })
	return err
}

// advance returns the objects after the next write towards a desired routing.
func (n *network) advance(v view, d traffic.Desired, observe func() *traffic.Observed) (uint8, error) {
	k := writing{v, plainDesired{d.Weight, d.Mirror, d.Prepared, d.Isolated, d.SplitEnded, d.HandedOver, len(d.HeaderRoutes)}}
	made, ok := n.written[k]
	if !ok {
		o := observe()
		next, err := model.Objects{World: o.World}.Next(o.Setup, d)
		if made = (written{v.objects, err}); err == nil {
			made.objects = n.putObjects(next)
		}
		n.written[k] = made
	}
	return made.objects, made.err
}

// eachShare returns the percentages that each route, as written and as the gateway serves it, sends to the canary.
func (w *world) eachShare(s *state) []int {
	written, served := w.routes.values[w.of[s.objects].route], w.routes.values[s.route]
	if !w.two {
		return []int{written.share, served.share}
	}
	return []int{written.share, written.least, served.share, served.least}
}

// share returns the percentages that the routes and the gateway send to the canary, the largest of all routes.
func (w *world) share(s *state) (written, served int) { return w.shares(s.objects, s.route) }

func (n *network) shares(objects, route uint8) (written, served int) {
	return n.routes.values[n.of[objects].route].share, n.routes.values[route].share
}

// headers reports whether the routes or the gateway send some requests to the canary by a header.
func (w *world) byHeader(s *state) bool {
	return w.routes.values[w.of[s.objects].route].headers || w.routes.values[s.route].headers
}

// editObjects has a user change the objects.
func (w *world) editObjects(s *state, how string, change func(*model.Objects)) {
	s.objects = w.edit(s.objects, how, change)
}

// edit returns the objects after a change by another client, which has a name.
func (n *network) edit(objects uint8, how string, change func(*model.Objects)) uint8 {
	k := edit{objects, how}
	id, known := n.edited[k]
	if !known {
		o := n.worlds.values[objects]
		change(&o)
		id = n.putObjects(o)
		n.edited[k] = id
	}
	return id
}
