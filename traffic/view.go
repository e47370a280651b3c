// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Facts are the present state of a release's traffic, whatever is desired. They are zero while the objects are unread.
type Facts struct {
	// Prepared: the canary's Service and pool exist.
	Prepared bool
	// Isolated: the stable Service and pool select leaders of the stable side only.
	Isolated bool
	// HandedOver: the stable Service or pool selects leaders of the canary only.
	HandedOver bool
	// Weight is the canary's share in the routes and Ingresses, in percent: the largest of all.
	Weight int
	// StableEndpoints and CanaryEndpoints are the ready endpoints of the two Services.
	StableEndpoints, CanaryEndpoints int
	// StablePods and CanaryPods are the pods behind them.
	StablePods, CanaryPods []string
	// CanaryBroken is why all requests to the canary fail, although it may have endpoints. Empty means that they do not.
	CanaryBroken string
}

// View compares a release's traffic with what is desired.
type View struct {
	Facts

	// Stage is how far the traffic has come towards what is desired.
	Stage Stage
	// Reason (CamelCase) and Message (a sentence) say why the next stage is not reached. Empty if Verified.
	Reason, Message string
	// Write is due, in the stage Drifted.
	Write *Write
	// Pinned: the stable Service and pool are pinned as desired.
	Pinned bool
	// Withdrawn: the canary's share is no larger than desired, and every gateway has accepted that. It may be true while
	// another write is Blocked, and while a route has another backendRef that does not exist, or a pool no endpoint picker: none
	// sends requests to the canary.
	Withdrawn bool
}

// Stage is how far traffic has come towards what is desired. From Written on, each stage includes those before it.
type Stage int

// The stages, in their order.
const (
	// Unread: the caches are not synced.
	Unread Stage = iota
	// Blocked: the next write can't be made, and a user must act.
	Blocked
	// Drifted: a write is due.
	Drifted
	// Written: no write is due.
	Written
	// Acknowledged: every gateway has accepted the routes and pools.
	Acknowledged
	// Verified: each side that gets requests has endpoints. Ingress controllers report no acceptance: there, Verified means
	// only that the objects are as desired.
	Verified
)

func (s Stage) String() string {
	return [...]string{"Unread", "Blocked", "Drifted", "Written", "Acknowledged", "Verified"}[s]
}

// Reasons of a View that is not verified.
const (
	ReasonNotSynced             = "TrafficNotSynced"
	ReasonBlocked               = "TrafficBlocked"
	ReasonRecordInvalid         = "RecordInvalid"
	ReasonWriting               = "TrafficChanging"
	ReasonServiceMissing        = "StableServiceMissing"
	ReasonServiceDeleting       = "CanaryServiceDeleting"
	ReasonIsolationNotInForce   = "IsolationNotInForce"
	ReasonEndpointsNotFollowing = "EndpointsNotFollowing"
	ReasonNoCanaryEndpoints     = "NoCanaryEndpoints"
	ReasonNoStableEndpoints     = "NoStableEndpoints"
	ReasonRouteMissing          = "RouteMissing"
	ReasonRouteNotObserved      = "RouteNotObserved"
	ReasonRouteNotAccepted      = "RouteNotAccepted"
	ReasonRefsNotResolved       = "RouteRefsNotResolved"
	ReasonRouteUnreadable       = "RouteUnreadable"
	ReasonNothingToSplit        = "NothingToSplit"
	ReasonIngressMissing        = "IngressMissing"
	ReasonIngressDeleting       = "CanaryIngressDeleting"
	ReasonPoolMissing           = "InferencePoolMissing"
	ReasonPoolDeleting          = "CanaryPoolDeleting"
	ReasonPoolNotObserved       = "PoolNotObserved"
	ReasonPoolNotAccepted       = "PoolNotAccepted"
	ReasonPoolRefsNotResolved   = "PoolRefsNotResolved"
	ReasonPoolUnreadable        = "PoolUnreadable"
	ReasonNoPicker              = "NoEndpointPicker"
)

// factsOf returns the facts about a world.
func factsOf(s Setup, w World) Facts {
	return Facts{
		Prepared: w.prepared(s), Isolated: w.isolated(s, Desired{Isolated: true}), HandedOver: w.handedOver(s), Weight: w.canaryWeight(s),
		StableEndpoints: len(w.StableReady), CanaryEndpoints: len(w.CanaryReady), StablePods: w.StableReady, CanaryPods: w.CanaryReady,
		CanaryBroken: w.canaryBroken(s),
	}
}

// Look compares the world with what is desired.
func Look(s Setup, d Desired, w World) View {
	d = d.complete(s)
	v := View{Facts: factsOf(s, w), Pinned: w.isolated(s, d)}
	write, err := Next(s, d, w)
	lagging := d.SplitEnded && w.unreachedPod(s, d) != "" || d.HandedOver && w.laggingPod(s, d) != ""
	switch {
	case err != nil:
		v.Stage, v.Reason, v.Message = Blocked, ReasonBlocked, status.Convert(err).Message()
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_RECORD_INVALID {
			v.Reason = ReasonRecordInvalid
		}
		// An abort waits for the withdrawn share alone, and must not wait until a user has mended something else.
		write, err := shrinkShare(s, d, w)
		v.Withdrawn = write == nil && err == nil && acceptedByGateways(s, d, w) && !lagging
	case write != nil:
		v.Stage, v.Reason, v.Message, v.Write = Drifted, ReasonWriting, write.String(), write
		v.Withdrawn = write.Verb == Delete && acceptedByGateways(s, d, w) && !lagging // objects are deleted after all shares
	default:
		v.Stage, v.Withdrawn = Written, acceptedByGateways(s, d, w) && !lagging
		v.Reason, v.Message = firstReason(s, d, w, unverifiedObjects, unverifiedEndpoints, unverifiedRoutes, unverifiedIngresses, unverifiedPools, unverifiedStable)
		switch {
		case v.Reason == "":
			v.Stage = Verified
		case isAcknowledged(s, d, w) && !lagging:
			v.Stage = Acknowledged
		}
	}
	return v
}

func (w World) isolated(s Setup, d Desired) bool {
	return w.Stable != nil && serviceSelector(w.Stable).isolated(s.pin(KindService, d)) &&
		(s.Policy.Pool == nil || w.StablePool != nil && poolSelector(w.StablePool).isolated(s.pin(KindInferencePool, d)))
}

// handedOver reports whether the stable Service or pool selects leaders of the canary only.
func (w World) handedOver(s Setup) bool {
	return slices.ContainsFunc(w.selectors(), func(sel selector) bool {
		return sel.isolated(s.pin(sel.of.Kind, Desired{HandedOver: true})) && !sel.isolated(s.pin(sel.of.Kind, Desired{}))
	})
}

func (w World) prepared(s Setup) bool {
	return w.Canary != nil && madeFor(w.Canary, s) && w.Canary.DeletionTimestamp == nil &&
		(s.Policy.Pool == nil || w.CanaryPool != nil && madeFor(w.CanaryPool, s) && w.CanaryPool.GetDeletionTimestamp() == nil)
}

// isAcknowledged reports whether every gateway has accepted the routes and pools, whether or not any endpoint is ready.
func isAcknowledged(s Setup, d Desired, w World) bool {
	reason, _ := firstReason(s, d, w, unverifiedRoutes, unverifiedIngresses, unverifiedPools)
	return reason == ""
}

// acceptedByGateways is acknowledged, except that it ignores unresolved references, dropped rules and missing routes.
func acceptedByGateways(s Setup, d Desired, w World) bool {
	for _, r := range w.routes(s) {
		if reason, _ := unverifiedRoute(r, false); reason != "" {
			return false
		}
	}
	ingresses, _ := unverifiedIngresses(s, d, w)
	pools, _ := w.unverifiedPools(s, d, false)
	return ingresses == "" && pools == ""
}

func firstReason(s Setup, d Desired, w World, parts ...func(Setup, Desired, World) (string, string)) (reason, message string) {
	for _, part := range parts {
		if reason, message := part(s, d, w); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

func unverifiedObjects(s Setup, d Desired, w World) (reason, message string) {
	needed := d.Weight > 0 || d.Isolated || d.Prepared
	switch {
	case w.Canary != nil && w.Canary.DeletionTimestamp != nil && d.Prepared:
		// Next repairs no object that is being deleted, so it has no write to report.
		return ReasonServiceDeleting, fmt.Sprintf("Service %s is being deleted; it will be recreated", w.Canary.Name)
	case w.CanaryPool != nil && w.CanaryPool.GetDeletionTimestamp() != nil && d.Prepared:
		return ReasonPoolDeleting, fmt.Sprintf("InferencePool %s is being deleted; it will be recreated", w.CanaryPool.GetName())
	case w.Stable == nil && needed:
		return ReasonServiceMissing, fmt.Sprintf("Service %s does not exist", s.Policy.StableService)
	case s.Policy.Pool != nil && w.StablePool == nil && needed:
		return ReasonPoolMissing, fmt.Sprintf("InferencePool %s does not exist", s.Policy.Pool.Stable)
	}
	return "", ""
}

func unverifiedEndpoints(s Setup, d Desired, w World) (reason, message string) {
	used := d.Weight > 0 || d.Mirror > 0 || len(d.HeaderRoutes) > 0
	switch {
	case w.Stable == nil:
		return "", ""
	case d.SplitEnded && w.unreachedPod(s, d) != "":
		return ReasonEndpointsNotFollowing, fmt.Sprintf("Service %s has no endpoint for pod %s of the update revision yet", w.Stable.Name, w.unreachedPod(s, d))
	case d.HandedOver && w.laggingPod(s, d) != "":
		return ReasonEndpointsNotFollowing, fmt.Sprintf("the endpoints of Service %s have not caught up with its selector: pod %s", w.Stable.Name, w.laggingPod(s, d))
	case d.Isolated && w.leakedPod(s) != "" && !d.HandedOver:
		// After a handover the canary's leaders are meant to be behind the stable Service.
		return ReasonIsolationNotInForce, fmt.Sprintf("Service %s still has an endpoint for pod %s of the canary", w.Stable.Name, w.leakedPod(s))
	case used && len(w.CanaryReady) == 0 && len(w.CanaryPortless) > 0:
		// The pod is in a slice without that port, from which a gateway gets no address.
		return ReasonNoCanaryEndpoints, fmt.Sprintf("pod %s is ready, but lacks a port to which requests are sent: the targetPort of each of the ports %q of Service %s must be in its template",
			w.CanaryPortless[0], w.RoutedPorts(s), s.Policy.CanaryService)
	case used && len(w.CanaryReady) == 0:
		return ReasonNoCanaryEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.CanaryService)
	case used && w.canaryPoolUnusable(s) == ReasonNoPicker:
		return ReasonNoPicker, w.noPicker(s)
	}
	return "", ""
}

// unverifiedStable comes last: a share can be withdrawn although no stable leader is ready.
func unverifiedStable(s Setup, d Desired, w World) (reason, message string) {
	// At 100 % the stable side gets no requests and needs no endpoints.
	if (d.Isolated || d.Prepared) && d.Weight < 100 && w.Stable != nil && len(w.StableReady) == 0 {
		return ReasonNoStableEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.StableService)
	}
	return "", ""
}

func unverifiedRoutes(s Setup, d Desired, w World) (reason, message string) {
	for _, key := range s.Policy.Routes {
		object := w.Routes[key]
		if object == nil {
			if d.Weight == 0 && len(d.HeaderRoutes) == 0 {
				continue // no route sends no requests to the canary
			}
			return ReasonRouteMissing, key.String() + " does not exist"
		}
		r := Route{key, object}
		if d.Weight > 0 && !RouteUses(r, s) {
			// A gateway accepts such a route, so its status would not show that nothing was split.
			b := s.backend()
			return ReasonNothingToSplit, fmt.Sprintf("no rule of %s leads to %s %s", key, b.kind, b.stable)
		}
		if reason, message := unverifiedRoute(r, true); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

func unverifiedIngresses(s Setup, d Desired, w World) (reason, message string) {
	for _, name := range s.Policy.Ingresses {
		canary := w.Ingresses[canaryName(name)]
		if canary != nil && canary.DeletionTimestamp != nil && madeFor(canary, s) {
			// Controllers may route by the Ingress until it is gone.
			return ReasonIngressDeleting, fmt.Sprintf("Ingress %s is being deleted", canary.Name)
		}
		switch user := w.Ingresses[name]; {
		case d.Weight == 0:
		case user == nil:
			return ReasonIngressMissing, fmt.Sprintf("Ingress %s does not exist", name)
		case CanaryIngress(user, s, d) == nil:
			return ReasonNothingToSplit, fmt.Sprintf("Ingress %s has no backend with Service %s", name, s.Policy.StableService)
		}
	}
	return "", ""
}

// Observed is an observation of a release's traffic, as plain data that can be compared and serialized. It is not safe for
// concurrent use.
type Observed struct {
	Setup Setup
	World World
	// Unread is why the objects can't be read. Nil means that World is complete.
	Unread *drivererr.Problem `json:",omitempty"`

	facts *Facts
	views []answer
}

// answer is a cached view.
type answer struct {
	desired Desired
	view    View
}

// Facts returns the facts about the objects. They are computed once.
func (o *Observed) Facts() Facts {
	if o.facts == nil {
		o.facts = new(Facts)
		if o.Unread == nil {
			*o.facts = factsOf(o.Setup, o.World)
		}
	}
	return *o.facts
}

// Pending reports whether the objects are being read for the first time.
func (o *Observed) Pending() bool {
	return o.Unread != nil && o.Unread.Reason == pb.ErrorReason_ERROR_REASON_NOT_SYNCED
}

// AfterRefusal returns the observation with the object whose write the API server refused last, if any.
func (o *Observed) AfterRefusal(of Key) *Observed {
	if of == (Key{}) {
		return o
	}
	next := &Observed{Setup: o.Setup, World: o.World, Unread: o.Unread}
	next.World.Refused = of
	return next
}

// Look is [Look] on the observed objects. Each view is computed once.
func (o *Observed) Look(d Desired) View {
	for _, a := range o.views {
		if a.desired.equal(d) {
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

// CheckHeaderRoutes returns why a route can't carry all header routes of a release, or nil if each can, or the objects are not read yet.
func (o *Observed) CheckHeaderRoutes(all []HeaderRoute) error {
	for _, r := range o.World.routes(o.Setup) {
		if _, err := RoutePatch(r, o.Setup, Desired{HeaderRoutes: all}, false); err != nil {
			return err
		}
	}
	return nil
}

// unreadView returns the view while the objects can't be read.
func unreadView(why *drivererr.Problem) View {
	if why.Reason == pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		return View{Reason: ReasonNotSynced, Message: why.Message}
	}
	return View{Stage: Blocked, Reason: ReasonBlocked, Message: why.Message}
}
