// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import "fmt"

// View is how a release's traffic stands against what is desired.
type View struct {
	// Fenced: the stable Service selects stable leaders only. Prepared: the canary Service exists.
	Fenced, Prepared bool
	// Weight is the canary's share in the routes now, in percent: the largest of all routes.
	Weight int
	// Drift: a write is due now. Next says which; it is empty if the write can't be made, see Err.
	Drift bool
	Next  string
	// Verified: there is no drift, every gateway has taken the routes, and each side that gets requests has endpoints.
	Verified bool
	// Reason (CamelCase) and Message (a sentence) say what is missing. Empty if Verified.
	Reason, Message string
	// Err is why the next write can't be made; a person must act. Nil otherwise.
	Err error
	// StableEndpoints and CanaryEndpoints are the ready endpoints of the two Services.
	StableEndpoints, CanaryEndpoints int
}

// Reasons that a View gives while it is not verified.
const (
	ReasonNotSynced         = "TrafficNotSynced"
	ReasonBlocked           = "TrafficBlocked"
	ReasonWriting           = "TrafficChanging"
	ReasonServiceMissing    = "StableServiceMissing"
	ReasonServiceDeleting   = "CanaryServiceDeleting"
	ReasonFenceNotInForce   = "FenceNotInForce"
	ReasonNoCanaryEndpoints = "NoCanaryEndpoints"
	ReasonNoStableEndpoints = "NoStableEndpoints"
	ReasonRouteMissing      = "RouteMissing"
	ReasonRouteNotObserved  = "RouteNotObserved"
	ReasonRouteNotAccepted  = "RouteNotAccepted"
	ReasonRefsNotResolved   = "RouteRefsNotResolved"
	ReasonRouteUnreadable   = "RouteUnreadable"
	ReasonNothingToSplit    = "NothingToSplit"
)

// Look says how the world stands against what is desired.
func Look(s Setup, d Desired, w World) View {
	d = d.complete()
	v := View{
		Fenced:   w.Stable != nil && Fenced(w.Stable, s),
		Prepared: w.Canary != nil && madeFor(w.Canary, s) && w.Canary.DeletionTimestamp == nil,
		Weight:   w.weight(s), StableEndpoints: len(w.StableReady), CanaryEndpoints: len(w.CanaryReady),
	}
	write, err := Next(s, d, w)
	switch {
	case err != nil:
		v.Drift, v.Err = true, err
		v.Reason, v.Message = ReasonBlocked, err.Error()
	case write != nil:
		v.Drift, v.Next = true, write.String()
		v.Reason, v.Message = ReasonWriting, v.Next
	default:
		v.Reason, v.Message = lacking(s, d, w)
	}
	v.Verified = v.Reason == ""
	return v
}

// lacking says what is missing although no write is due, "" if nothing is.
func lacking(s Setup, d Desired, w World) (reason, message string) {
	switch {
	case w.Canary != nil && w.Canary.DeletionTimestamp != nil && d.Prepared:
		return ReasonServiceDeleting, fmt.Sprintf("Service %s is being deleted; it will be made again", w.Canary.Name)
	case w.Stable == nil:
		if d.Weight == 0 && !d.Fenced {
			break // nothing was asked of it
		}
		return ReasonServiceMissing, fmt.Sprintf("Service %s is gone", s.Policy.StableService)
	case d.Fenced && w.leaked(s) != "":
		return ReasonFenceNotInForce, fmt.Sprintf("Service %s still leads to pod %s of the canary", w.Stable.Name, w.leaked(s))
	case (d.Weight > 0 || d.Mirror > 0 || len(d.HeaderRoutes) > 0) && len(w.CanaryReady) == 0:
		return ReasonNoCanaryEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.CanaryService)
	case d.Fenced && d.Weight < 100 && len(w.StableReady) == 0:
		return ReasonNoStableEndpoints, fmt.Sprintf("Service %s has no ready endpoint", s.Policy.StableService)
	}
	return lackingRoute(s, d, w)
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
			return ReasonNothingToSplit, fmt.Sprintf("no rule of %s leads to Service %s", key, s.Policy.StableService)
		}
		if ok, reason, message := RouteVerified(r); !ok {
			return reason, message
		}
	}
	return "", ""
}
