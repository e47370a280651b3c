// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"reflect"

	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Facts are what a release's requests meet now, whatever is desired. They are zero while the objects are unread.
type Facts struct {
	// Prepared: the canary's Service and pool exist.
	Prepared bool
	// Weight is the canary's share in the routes and Ingresses, in percent: the largest of all.
	Weight int
	// StableEndpoints and CanaryEndpoints are the ready endpoints of the two Services.
	StableEndpoints, CanaryEndpoints int
	// CanaryPods are the pods behind CanaryEndpoints.
	CanaryPods []string
}

// View is how a release's traffic stands against what is desired.
type View struct {
	Facts

	// Stage is how far the requests are on their way.
	Stage Stage
	// Reason (CamelCase) and Message (a sentence) say what keeps them from the next stage. Empty if Verified.
	Reason, Message string
	// Next is the write that is due, in the stage Drifted.
	Next string
	// Fenced: the stable Service and pool select the leaders that they are desired to be pinned to, and no others.
	Fenced bool
	// Withdrawn: the canary gets no more than what is desired, and every gateway knows. It may be so while another write is
	// Blocked, and while a route leads to something else that does not exist: neither sends requests to the canary.
	Withdrawn bool
}

// Stage is how far requests are on the way to where they are desired. Each stage includes those before it, from Written on.
type Stage int

// The stages, in their order.
const (
	// Unread: the caches do not tell yet.
	Unread Stage = iota
	// Blocked: the next write can't be made, and a person must act.
	Blocked
	// Drifted: a write is due.
	Drifted
	// Written: no write is due.
	Written
	// Acknowledged: every gateway has accepted the routes and pools.
	Acknowledged
	// Verified: each side that gets requests has endpoints. An Ingress controller reports nothing about what it has accepted:
	// there, the objects are as desired, and no more is known.
	Verified
)

func (s Stage) String() string {
	return [...]string{"Unread", "Blocked", "Drifted", "Written", "Acknowledged", "Verified"}[s]
}

// Reasons that a View gives while it is not verified.
const (
	ReasonNotSynced           = "TrafficNotSynced"
	ReasonBlocked             = "TrafficBlocked"
	ReasonWriting             = "TrafficChanging"
	ReasonServiceMissing      = "StableServiceMissing"
	ReasonServiceDeleting     = "CanaryServiceDeleting"
	ReasonFenceNotInForce     = "FenceNotInForce"
	ReasonServiceNotOpen      = "ServiceNotOpen"
	ReasonNoCanaryEndpoints   = "NoCanaryEndpoints"
	ReasonNoStableEndpoints   = "NoStableEndpoints"
	ReasonRouteMissing        = "RouteMissing"
	ReasonRouteNotObserved    = "RouteNotObserved"
	ReasonRouteNotAccepted    = "RouteNotAccepted"
	ReasonRefsNotResolved     = "RouteRefsNotResolved"
	ReasonRouteUnreadable     = "RouteUnreadable"
	ReasonNothingToSplit      = "NothingToSplit"
	ReasonIngressMissing      = "IngressMissing"
	ReasonIngressDeleting     = "CanaryIngressDeleting"
	ReasonPoolMissing         = "InferencePoolMissing"
	ReasonPoolDeleting        = "CanaryPoolDeleting"
	ReasonPoolNotObserved     = "PoolNotObserved"
	ReasonPoolNotAccepted     = "PoolNotAccepted"
	ReasonPoolRefsNotResolved = "PoolRefsNotResolved"
	ReasonPoolUnreadable      = "PoolUnreadable"
	ReasonNoPicker            = "NoEndpointPicker"
)

// FactsOf returns what the release's requests meet in the world.
func FactsOf(s Setup, w World) Facts {
	return Facts{
		Prepared: w.prepared(s), Weight: w.weight(s),
		StableEndpoints: len(w.StableReady), CanaryEndpoints: len(w.CanaryReady), CanaryPods: w.CanaryReady,
	}
}

// Look returns how the world stands against what is desired.
func Look(s Setup, d Desired, w World) View {
	d = d.complete(s)
	v := View{Facts: FactsOf(s, w), Fenced: w.fenced(s, d)}
	write, err := Next(s, d, w)
	shut := d.Unfenced && w.unreachedPod(s, d) != "" || d.HandedOver && w.laggingPod(s, d) != ""
	switch {
	case err != nil:
		v.Stage, v.Reason, v.Message = Blocked, ReasonBlocked, status.Convert(err).Message()
		less, bad := retreat(s, d, w)
		v.Withdrawn = less == nil && bad == nil && known(s, d, w) && !shut
	case write != nil:
		v.Stage, v.Reason, v.Message, v.Next = Drifted, ReasonWriting, write.String(), write.String()
	default:
		v.Stage, v.Withdrawn = Written, known(s, d, w) && !shut
		v.Reason, v.Message = lacking(s, d, w)
		switch {
		case v.Reason == "":
			v.Stage = Verified
		case acknowledged(s, d, w) && !shut:
			v.Stage = Acknowledged
		}
	}
	return v
}

func (w World) fenced(s Setup, d Desired) bool {
	return w.Stable != nil && serviceSelector(w.Stable).fenced(s.pin(d)) &&
		(s.Policy.Pool == nil || w.StablePool != nil && poolSelector(w.StablePool).fenced(s.pin(d)))
}

func (w World) prepared(s Setup) bool {
	return w.Canary != nil && madeFor(w.Canary, s) && w.Canary.DeletionTimestamp == nil &&
		(s.Policy.Pool == nil || w.CanaryPool != nil && madeFor(w.CanaryPool, s) && w.CanaryPool.GetDeletionTimestamp() == nil)
}

// acknowledged reports whether every gateway has accepted what was written, whether or not a pod is ready to serve.
func acknowledged(s Setup, d Desired, w World) bool {
	for _, part := range []func(Setup, Desired, World) (string, string){lackingRoute, lackingIngress, lackingPools} {
		if reason, _ := part(s, d, w); reason != "" {
			return false
		}
	}
	return true
}

// known reports whether every gateway knows what was written, whether or not it finds everything that the routes lead to.
func known(s Setup, d Desired, w World) bool {
	for _, r := range w.routes(s) {
		if ok, _, _ := routeVerified(r, ReasonRefsNotResolved); !ok {
			return false
		}
	}
	for _, part := range []func(Setup, Desired, World) (string, string){lackingIngress, lackingPools} {
		if reason, _ := part(s, d, w); reason != "" {
			return false
		}
	}
	return true
}

// lacking returns what is missing although no write is due, "" if nothing is.
func lacking(s Setup, d Desired, w World) (reason, message string) {
	for _, part := range []func(Setup, Desired, World) (string, string){
		lackingObject, lackingEndpoint, lackingRoute, lackingIngress, lackingPools,
	} {
		if reason, message := part(s, d, w); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

func lackingObject(s Setup, d Desired, w World) (reason, message string) {
	asked := d.Weight > 0 || d.Fenced || d.Prepared
	switch {
	case w.Canary != nil && w.Canary.DeletionTimestamp != nil && d.Prepared:
		return ReasonServiceDeleting, fmt.Sprintf("Service %s is being deleted; it will be made again", w.Canary.Name)
	case w.CanaryPool != nil && w.CanaryPool.GetDeletionTimestamp() != nil && d.Prepared:
		return ReasonPoolDeleting, fmt.Sprintf("InferencePool %s is being deleted; it will be made again", w.CanaryPool.GetName())
	case w.Stable == nil && asked:
		return ReasonServiceMissing, fmt.Sprintf("Service %s is gone", s.Policy.StableService)
	case s.Policy.Pool != nil && w.StablePool == nil && asked:
		return ReasonPoolMissing, fmt.Sprintf("InferencePool %s is gone", s.Policy.Pool.Stable)
	}
	return "", ""
}

func lackingEndpoint(s Setup, d Desired, w World) (reason, message string) {
	used := d.Weight > 0 || d.Mirror > 0 || len(d.HeaderRoutes) > 0
	switch {
	case w.Stable == nil:
		return "", ""
	case d.Unfenced && w.unreachedPod(s, d) != "":
		return ReasonServiceNotOpen, fmt.Sprintf("Service %s does not lead to pod %s of the update revision yet", w.Stable.Name, w.unreachedPod(s, d))
	case d.HandedOver && w.laggingPod(s, d) != "":
		return ReasonServiceNotOpen, fmt.Sprintf("the endpoints of Service %s do not follow yet: pod %s", w.Stable.Name, w.laggingPod(s, d))
	case d.Fenced && w.leakedPod(s) != "" && !d.HandedOver:
		return ReasonFenceNotInForce, fmt.Sprintf("Service %s still leads to pod %s of the canary", w.Stable.Name, w.leakedPod(s))
	case used && len(w.CanaryReady) == 0:
		return ReasonNoCanaryEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.CanaryService)
	case used && w.lackingPool(s) == ReasonNoPicker:
		return ReasonNoPicker, fmt.Sprintf("Service %s, the endpoint picker of InferencePool %s, has no ready endpoint", s.Policy.Pool.Picker, s.Policy.Pool.Canary)
	case (d.Fenced || d.Prepared) && d.Weight < 100 && len(w.StableReady) == 0:
		return ReasonNoStableEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.StableService)
	}
	return "", ""
}

func lackingRoute(s Setup, d Desired, w World) (reason, message string) {
	for _, key := range s.Policy.Routes {
		object := w.Routes[key]
		if object == nil {
			if d.Weight == 0 && len(d.HeaderRoutes) == 0 {
				continue // it leads nowhere, so not to the canary either
			}
			return ReasonRouteMissing, key.String() + " is gone"
		}
		r := Route{key, object}
		if d.Weight > 0 && !RouteUses(r, s) {
			b := s.backend()
			return ReasonNothingToSplit, fmt.Sprintf("no rule of %s leads to %s %s", key, b.kind, b.stable)
		}
		if ok, reason, message := RouteVerified(r); !ok {
			return reason, message
		}
	}
	return "", ""
}

func lackingIngress(s Setup, d Desired, w World) (reason, message string) {
	for _, name := range s.Policy.Ingresses {
		canary := w.Ingresses[canaryName(name)]
		if canary != nil && canary.DeletionTimestamp != nil && madeFor(canary, s) {
			return ReasonIngressDeleting, fmt.Sprintf("Ingress %s is being deleted", canary.Name)
		}
		switch user := w.Ingresses[name]; {
		case d.Weight == 0 && len(d.HeaderRoutes) == 0:
		case user == nil:
			return ReasonIngressMissing, fmt.Sprintf("Ingress %s is gone", name)
		case CanaryIngress(user, s, d) == nil:
			return ReasonNothingToSplit, fmt.Sprintf("no backend of Ingress %s is Service %s", name, s.Policy.StableService)
		}
	}
	return "", ""
}

// Observed is one look at a release's traffic, as plain data: it can be compared, written down and read back. It is not
// for concurrent use.
type Observed struct {
	Setup Setup
	World World
	// Unread is why the objects can't be read. Nil: World has them.
	Unread *drivererr.Problem `json:",omitempty"`

	facts *Facts
	views []answer
}

// answer is a view that was computed before.
type answer struct {
	desired Desired
	view    View
}

// Facts returns what the requests meet now. It computes them once.
func (o *Observed) Facts() Facts {
	if o.facts == nil {
		o.facts = new(Facts)
		if o.Unread == nil {
			*o.facts = FactsOf(o.Setup, o.World)
		}
	}
	return *o.facts
}

// Look is [Look] on the objects that were observed. It computes each view once.
func (o *Observed) Look(d Desired) View {
	for _, a := range o.views {
		if reflect.DeepEqual(a.desired, d) {
			return a.view
		}
	}
	a := answer{desired: d}
	if o.Unread != nil {
		a.view = unreadView(o.Unread)
	} else {
		a.view = Look(o.Setup, d, o.World)
	}
	o.views = append(o.views, a)
	return a.view
}

// unreadView is the view while the objects can't be read.
func unreadView(why *drivererr.Problem) View {
	if why.Reason == pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		return View{Reason: ReasonNotSynced, Message: why.Message}
	}
	return View{Stage: Blocked, Reason: ReasonBlocked, Message: why.Message}
}
