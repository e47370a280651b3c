// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"
)

// Next returns the next write from the world towards what is desired, nil if none is due. The order is safe in both
// directions. Up: isolation, canary Service and pool, routes and canary Ingresses. Down: routes and canary Ingresses, canary pool
// and Service, isolation. Shares grow only while the canary has ready endpoints; they shrink whatever else is wrong.
//
// In place, the isolation is removed first on the way down: the stable Service selects the few remaining stable leaders, and must
// select all leaders before the canary's share is removed.
//
// The caller must wait until the gateways have accepted the routes before the canary Service may be deleted: see
// [View.Withdrawn].
func Next(s Setup, d Desired, w World) (*Write, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	d = d.complete(s)
	if d.SplitEnded {
		if write, err := endSplit(s, d, w); write != nil || err != nil {
			return write, err
		}
		// While endpoints lag behind the selector, the steps below would send all requests to the few stable leaders.
		if w.unreachedPod(s, d) != "" {
			return noWrite()
		}
	}
	if d.HandedOver {
		if write, err := handOver(s, d, w); write != nil || err != nil {
			return write, err
		}
		// Requests return to the stable Service only once it has the canary's endpoints and no stable ones.
		if w.laggingPod(s, d) != "" {
			return noWrite()
		}
	}
	if !d.HandedOver && d.Weight > 0 && w.handedOver(s) {
		if write, err := returnRequests(s, d, w); write != nil || err != nil || !acceptedByGateways(s, d, w) {
			return write, err
		}
	}
	for _, step := range []func(Setup, Desired, World) (*Write, error){
		// shrinkShare comes before every step that can fail on a missing or foreign object, so that none of these keeps a share.
		shrinkShare, isolateStable, ensureCanaryService, ensureCanaryPool, checkSupported, growShare, cleanUp, removeIsolation, relinquish,
	} {
		if write, err := step(s, d, w); write != nil || err != nil {
			return write, err
		}
	}
	return noWrite()
}

// endSplit has the stable Service select the leaders of both revisions.
func endSplit(s Setup, d Desired, w World) (*Write, error) {
	// Without the stable Service, the canary's endpoints are all that can serve. Their share must not be removed.
	if w.Stable == nil && (d.Prepared || w.sendsToCanary(s) && len(w.CanaryReady) > 0) {
		return nil, missingError(s, Key{KindService, s.Policy.StableService})
	}
	return removeIsolation(s, d, w)
}

// handOver has the stable Service and pool select the canary's leaders, before requests return to them.
func handOver(s Setup, d Desired, w World) (*Write, error) {
	if w.Stable == nil {
		if w.sendsToCanary(s) {
			return nil, missingError(s, Key{KindService, s.Policy.StableService})
		}
		return noWrite()
	}
	if !d.Prepared && !w.sendsToCanary(s) {
		return noWrite() // requests have returned, and the isolation may be removed already
	}
	// Requests may still use the canary's Service although no share is desired any more.
	d.Isolated = true
	return isolateStable(s, d, w)
}

// returnRequests sends the canary's share from the stable Service, which a handover has given the canary's leaders, to the canary's Service: before
// the stable one selects the stable leaders again.
func returnRequests(s Setup, d Desired, w World) (*Write, error) {
	for _, step := range []func(Setup, Desired, World) (*Write, error){ensureCanaryService, ensureCanaryPool, checkSupported, growShare} {
		if write, err := step(s, d, w); write != nil || err != nil {
			return write, err
		}
	}
	return noWrite()
}

// isolateStable pins the stable Service, and then the stable pool.
func isolateStable(s Setup, d Desired, w World) (*Write, error) {
	switch {
	case !d.Isolated:
		return noWrite()
	case w.Stable == nil:
		return nil, missingError(s, Key{KindService, s.Policy.StableService})
	}
	if write, err := w.pinSelector(serviceSelector(w.Stable), s, d); write != nil || err != nil || s.Policy.Pool == nil {
		return write, err
	}
	if w.StablePool == nil {
		return nil, missingError(s, Key{KindInferencePool, s.Policy.Pool.Stable})
	}
	return w.pinSelector(poolSelector(w.StablePool), s, d)
}

func (w World) pinSelector(sel selector, s Setup, d Desired) (*Write, error) {
	labels, note, changed, err := sel.isolatedLabels(s, d)
	if err != nil || !changed {
		return nil, err
	}
	// The name of the Service is from an annotation that any editor of the workload can write.
	if err := w.verify(sel, s); err != nil {
		return nil, err
	}
	why := "pin the selector to the stable leaders"
	if d.HandedOver {
		why = "select the leaders of " + s.Canary
	}
	write := sel.patchWrite(labels, note, why)
	write.Pins = true
	return write, nil
}

// removeIsolation removes the isolation of the workload's releases, that of the pool first.
func removeIsolation(s Setup, d Desired, w World) (*Write, error) {
	if d.Isolated {
		return noWrite()
	}
	for _, sel := range slices.Backward(w.selectors()) {
		labels, changed, err := sel.withoutIsolation()
		if err != nil {
			return nil, err
		}
		// The annotation may be that of another workload's release, which depends on its isolation.
		if changed && sel.ownIsolation(s) {
			return sel.patchWrite(labels, "", "restore the selector"), nil
		}
	}
	return noWrite()
}

// ensureCanaryService creates the canary Service and repairs drift.
func ensureCanaryService(s Setup, d Desired, w World) (*Write, error) {
	if !d.Prepared {
		return noWrite()
	}
	want, err := CanaryService(w.Stable, s)
	if err != nil {
		return nil, err
	}
	key := Key{KindService, s.Policy.CanaryService}
	// An existing Service was verified when it was created. Its labels show for whom.
	if w.Canary != nil {
		return reconcileGenerated(s, key, w.Canary, nameAnotherService, serviceDrift(w.Canary, want), "follow the stable Service")
	}
	if err := w.verifyNew(s, s.Policy.CanaryService); err != nil {
		return nil, err
	}
	return createOf(key, want, "select the canary's leaders")
}

// ensureCanaryPool creates the canary pool and repairs drift.
func ensureCanaryPool(s Setup, d Desired, w World) (*Write, error) {
	if !d.Prepared || s.Policy.Pool == nil {
		return noWrite()
	}
	if w.StablePool == nil {
		return nil, missingError(s, Key{KindInferencePool, s.Policy.Pool.Stable})
	}
	want, err := CanaryPool(w.StablePool, s)
	if err != nil {
		return nil, err
	}
	key := Key{KindInferencePool, s.Policy.Pool.Canary}
	if have := w.CanaryPool; have != nil {
		return reconcileGenerated(s, key, have, renamePool, driftOf(have, want, have.Object["spec"], want.Object["spec"]), "follow the stable pool")
	}
	if err := w.verifyNew(s, s.Policy.Pool.Canary); err != nil {
		return nil, err
	}
	return &Write{Verb: Create, Key: key, Body: want.Object, Why: "select the canary's leaders"}, nil
}

// checkSupported returns an error for what can't be expressed. It runs after shrinkShare and isolate, which must not be blocked by it.
func checkSupported(s Setup, d Desired, _ World) (*Write, error) { return nil, Supported(s.Policy, d) }

// shrinkShare reduces the canary's share to what is desired: in all objects, before it returns the error of one.
func shrinkShare(s Setup, d Desired, w World) (*Write, error) { return shareWrite(s, d, w, true) }

// growShare raises the canary's share to what is desired, if it can serve.
func growShare(s Setup, d Desired, w World) (*Write, error) {
	// A gateway answers requests to a Service without endpoints with errors.
	if w.Canary == nil || len(w.CanaryReady) == 0 || w.canaryPoolUnusable(s) != "" {
		return noWrite()
	}
	write, err := shareWrite(s, d, w, false)
	if write != nil {
		write.Grows = true
	}
	return write, err
}

// shareWrite returns the first write that is due on a route or canary Ingress, or else the first error. It begins after the object whose write
// the API server refused, so that each is tried.
func shareWrite(s Setup, d Desired, w World, shrinkOnly bool) (*Write, error) {
	keys := slices.Clone(s.Policy.Routes)
	for _, name := range s.Policy.Ingresses {
		keys = append(keys, Key{KindIngress, canaryName(name)})
	}
	first := slices.Index(keys, w.Refused) + 1
	var failed error
	for i := range keys {
		at := (first + i) % len(keys)
		var write *Write
		var err error
		if ingress := at - len(s.Policy.Routes); ingress >= 0 {
			write, err = ingressWrite(s, d, w, s.Policy.Ingresses[ingress], shrinkOnly)
		} else {
			write, err = w.routeWrite(s, d, keys[at], shrinkOnly)
		}
		if write != nil {
			write.Moves, write.AfterOthers = true, at < first
			return write, nil
		}
		if failed == nil {
			failed = err
		}
	}
	return nil, failed
}

// routeWrite returns the write that is due on a route.
func (w World) routeWrite(s Setup, d Desired, key Key, shrinkOnly bool) (*Write, error) {
	r := Route{key, w.Routes[key]}
	// While a route that is being deleted has a finalizer gateways may serve it, so its share may shrink.
	if r.Object == nil || !shrinkOnly && r.Object.GetDeletionTimestamp() != nil {
		return noWrite()
	}
	p, err := RoutePatch(r, s, d, shrinkOnly)
	if err != nil || len(p) == 0 {
		return nil, err
	}
	// Rules with this canary may be another release's, or written by hand, if the record is forged.
	if err := w.verifyRoute(s, r); err != nil {
		return nil, err
	}
	return patchOf(r.Key, r.Object, p, weightChange(RouteWeight(r, s), d)), nil
}

// weightChange describes a write that changes the canary's share.
func weightChange(from int, d Desired) string {
	return fmt.Sprintf("from %d %% to the canary towards %d %%", from, d.Weight)
}

// cleanUp deletes the canary pool and Service, but no foreign objects with their names.
func cleanUp(s Setup, d Desired, w World) (*Write, error) {
	if d.Prepared {
		return noWrite()
	}
	const why = "no request is sent to the canary"
	if o := w.CanaryPool; o != nil && o.GetDeletionTimestamp() == nil && madeFor(o, s) {
		return deleteOf(Key{KindInferencePool, o.GetName()}, o, why), nil
	}
	if o := w.Canary; o != nil && o.DeletionTimestamp == nil && madeFor(o, s) {
		return deleteOf(Key{KindService, s.Policy.CanaryService}, o, why), nil
	}
	return noWrite()
}
