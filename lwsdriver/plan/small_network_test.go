// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"

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

	of        []struct{ selectors, route uint8 } // by world
	selected  map[endpoint]bool
	observed  map[view]*traffic.Observed
	written   map[writing]written
	setups    map[[3]revision]traffic.Setup
	edited    map[edit]uint8
	untouched uint8
}

// leads is where routes lead: the share of the canary, and whether headers lead to it.
type leads struct {
	share   int
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
	stable, canary  uint8 // endpoints, as bits: the user's own groups first
	updated         uint8 // in place, the leaders that are not at the stable revision
}

type writing struct {
	view    view
	desired plainDesired
}

// plainDesired is a [traffic.Desired] that is comparable.
type plainDesired struct {
	weight, mirror                         int
	prepared, fenced, unfenced, handedOver bool
	headers                                int
}

type written struct {
	objects uint8
	err     error
}

func (w *world) newNetwork(s *state) {
	n := &w.network
	n.edited = map[edit]uint8{}
	n.selected, n.observed, n.written, n.setups = map[endpoint]bool{}, map[view]*traffic.Observed{}, map[writing]written{}, map[[3]revision]traffic.Setup{}
	n.of = make([]struct{ selectors, route uint8 }, 1)
	if !w.routed {
		return
	}
	s.objects = w.putObjects(model.New(w.setup(s)))
	n.untouched = s.objects
	s.selectors, s.route = n.of[s.objects].selectors, n.of[s.objects].route
}

func (w *world) setupKey(s *state) [3]revision {
	r := w.release(s)
	switch {
	case w.inPlace() && r != nil:
		return [3]revision{0, revisionOf(r.StableRevision), revisionOf(r.UpdateRevision)}
	case w.inPlace():
		return [3]revision{}
	case s.added.exists:
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
	if s.added.exists {
		o.Added = []Workload{{Name: addedName(s.added.carries)}}
	}
	setup := setupOf(o)
	w.setups[k] = setup
	return setup
}

func (w *world) inPlace() bool { return InPlace(w.style) }

// putObjects numbers objects. Their generations are only compared with what the gateway has observed.
func (w *world) putObjects(o model.Objects) uint8 {
	o.StableReady, o.CanaryReady = nil, nil
	service := func(svc *corev1.Service) any {
		if svc == nil {
			return nil
		}
		return []any{svc.Spec.Selector, svc.Annotations, svc.Labels, svc.ManagedFields}
	}
	var rules, fields []any
	var to leads
	for _, key := range routed.Routes {
		r := o.Routes[key]
		if r == nil {
			continue
		}
		r = r.DeepCopy()
		r.SetGeneration(1)
		o.Routes = map[traffic.Key]*unstructured.Unstructured{key: r}
		rules = append(rules, r.Object["spec"])
		fields = append(fields, r.GetManagedFields())
		to.share = traffic.RouteWeight(traffic.Route{Key: key, Object: r}, traffic.Setup{Policy: routed})
	}
	to.headers = addedRoutes(o.World) > len(rules)
	o = o.Accept()
	id := uint8(w.worlds.put(encoded(service(o.Stable), service(o.Canary), rules, fields), o))
	if int(id) == len(w.of) {
		selector := func(svc *corev1.Service) any {
			if svc == nil {
				return nil
			}
			return svc.Spec.Selector
		}
		w.of = append(w.of, struct{ selectors, route uint8 }{
			uint8(w.selectors.put(encoded(selector(o.Stable), selector(o.Canary)), o)),
			uint8(w.routes.put(encoded(rules), to)),
		})
	}
	return id
}

func encoded(v ...any) string { return string(must(json.Marshal(v))) }

// selects reports whether a Service selects a group, ready or not.
func (w *world) selects(k endpoint) bool {
	if yes, known := w.selected[k]; known {
		return yes
	}
	o := w.selectors.values[k.selectors]
	svc, name := o.Stable, "vllm"
	if k.canary {
		svc = o.Canary
	}
	if k.carries != 0 {
		name = addedName(k.carries)
	}
	pod := labels.Set{lws.SetNameLabelKey: name, lws.WorkerIndexLabelKey: "0", lws.RevisionKey: k.revision.String()}
	if k.serving {
		pod[record.ServingLabel] = record.Serving
	}
	yes := svc != nil && labels.SelectorFromSet(svc.Spec.Selector).Matches(pod)
	w.selected[k] = yes
	return yes
}

// endpoints returns the ready groups behind a Service with some selectors, as bits.
func (w *world) endpoints(s *state, selectors uint8, canary bool) (bits uint8) {
	for at, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			m := &set.groups[i]
			k := endpoint{selectors: selectors, canary: canary, revision: m.revision, serving: m.serving}
			if at == 1 {
				k.carries = set.carries
			}
			if m.ready && w.selects(k) {
				bits |= 1 << (at*maxIndices + i)
			}
		}
	}
	return bits
}

func (w *world) viewOf(s *state) view {
	v := view{setup: w.setupKey(s), objects: s.objects, accepted: w.of[s.objects].route == s.route, blind: s.blind}
	v.stable, v.canary = w.endpoints(s, s.selectors, false), w.endpoints(s, s.selectors, true)
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
	if o, ok := w.observed[v]; ok {
		return o
	}
	m := w.worlds.values[v.objects]
	setup := w.setup(s)
	if setup.Updated = nil; v.updated != 0 {
		setup.Updated = w.names(s, v.updated)
	}
	if !v.accepted {
		for key, r := range m.Accept().Routes {
			r.SetGeneration(r.GetGeneration() + 1)
			m.Routes = map[traffic.Key]*unstructured.Unstructured{key: r}
		}
	}
	m.StableReady, m.CanaryReady = w.names(s, v.stable), w.names(s, v.canary)
	o := &traffic.Observed{Setup: setup, World: m.World}
	if v.blind {
		o = &traffic.Observed{Setup: setup, Unread: &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_NOT_SYNCED, Message: "the caches are not filled yet"}}
	}
	w.observed[v] = o
	return o
}

// names returns the leaders of groups.
func (w *world) names(s *state, bits uint8) (out []string) {
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
func (w *world) write(s *state, d traffic.Desired) error {
	v := w.viewOf(s)
	v.blind = false // a write reads the objects themselves
	k := writing{v, plainDesired{d.Weight, d.Mirror, d.Prepared, d.Fenced, d.Unfenced, d.HandedOver, len(d.HeaderRoutes)}}
	made, ok := w.written[k]
	if !ok {
		sees := *s
		sees.blind = false
		o := w.observeTraffic(&sees)
		next, err := model.Objects{World: o.World}.Next(o.Setup, d)
		if made = (written{s.objects, err}); err == nil {
			made.objects = w.putObjects(next)
		}
		w.written[k] = made
	}
	s.objects = made.objects
	return made.err
}

// share returns the percentages that the routes and the gateway send to the canary.
func (w *world) share(s *state) (written, served int) {
	return w.routes.values[w.of[s.objects].route].share, w.routes.values[s.route].share
}

// headers reports whether the routes or the gateway send some requests to the canary by a header.
func (w *world) byHeader(s *state) bool {
	return w.routes.values[w.of[s.objects].route].headers || w.routes.values[s.route].headers
}

// editObjects has a user change the objects.
func (w *world) editObjects(s *state, how string, change func(*model.Objects)) {
	k := edit{s.objects, how}
	if id, known := w.edited[k]; known {
		s.objects = id
		return
	}
	o := w.worlds.values[s.objects]
	change(&o)
	s.objects = w.putObjects(o)
	w.edited[k] = s.objects
}
