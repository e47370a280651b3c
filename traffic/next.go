// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Next returns the next write that leads from the world to what is desired, nil if there is none to make now. The order
// is safe in both directions: fence, canary Service and pool, routes and canary Ingresses on the way up; these, canary
// pool and Service, fence on the way down. Shares grow only while the canary has ready endpoints; they shrink whatever
// else is wrong.
//
// Where the two sides are the groups of one workload, the way down begins at its other end: the stable Service leads to
// all leaders before the share goes, since it led to the few stable ones only.
//
// That the gateways have taken the routes before the canary Service goes is for the caller to see to: see
// [View.Verified].
func Next(s Setup, d Desired, w World) (*Write, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	d = d.complete(s)
	if d.Unfenced {
		if write, err := unfence(s, d, w); write != nil || err != nil || w.unreachedPod(s, d) != "" {
			return write, err
		}
	}
	if d.HandedOver {
		if write, err := handOver(s, d, w); write != nil || err != nil || w.laggingPod(s, d) != "" {
			return write, err
		}
	}
	for _, step := range []func(Setup, Desired, World) (*Write, error){
		retreat, fence, fencePool, prepare, preparePool, checkSupported, advance, cleanUp, lift, disown,
	} {
		if write, err := step(s, d, w); write != nil || err != nil {
			return write, err
		}
	}
	return nil, nil //nolint:nilnil // no write is an answer
}

// unfence has the stable Service lead to the leaders of both revisions.
func unfence(s Setup, d Desired, w World) (*Write, error) {
	if w.Stable == nil && (d.Prepared || w.shares(s) && len(w.CanaryReady) > 0) {
		return nil, missing(s, Key{KindService, s.Policy.StableService})
	}
	return lift(s, d, w)
}

// handOver has the stable Service and pool lead to the canary's leaders, before requests return to them.
func handOver(s Setup, d Desired, w World) (*Write, error) {
	if w.Stable == nil {
		if w.shares(s) {
			return nil, missing(s, Key{KindService, s.Policy.StableService})
		}
		return none()
	}
	if !d.Prepared && !w.shares(s) {
		return none() // they did, and the fence may be lifted since
	}
	d.Fenced = true
	if write, err := fence(s, d, w); write != nil || err != nil {
		return write, err
	}
	return fencePool(s, d, w)
}

// fence pins the stable Service.
func fence(s Setup, d Desired, w World) (*Write, error) {
	if !d.Fenced {
		return none()
	}
	if w.Stable == nil {
		return nil, missing(s, Key{KindService, s.Policy.StableService})
	}
	return fenceOf(serviceSelector(w.Stable), s, d, w.Stable)
}

// fencePool pins the stable pool.
func fencePool(s Setup, d Desired, w World) (*Write, error) {
	if !d.Fenced || s.Policy.Pool == nil {
		return none()
	}
	if w.StablePool == nil {
		return nil, missing(s, Key{KindInferencePool, s.Policy.Pool.Stable})
	}
	return fenceOf(poolSelector(w.StablePool), s, d, w.StablePool)
}

// lift takes the fences off.
func lift(_ Setup, d Desired, w World) (*Write, error) {
	if d.Fenced {
		return none()
	}
	if w.StablePool != nil {
		if write, err := liftOf(poolSelector(w.StablePool), w.StablePool, poolLabels); write != nil || err != nil {
			return write, err
		}
	}
	if w.Stable == nil {
		return none()
	}
	return liftOf(serviceSelector(w.Stable), w.Stable, serviceLabels)
}

// serviceLabels is the path of the labels that a Service selects by.
var serviceLabels = []string{"spec", "selector"}

func fenceOf(sel selector, s Setup, d Desired, o metav1.Object) (*Write, error) {
	labels, note, changed, err := sel.fence(s, d)
	if err != nil || !changed {
		return nil, err
	}
	path, why := serviceLabels, "pin it to the stable leaders"
	if sel.of.Kind == KindInferencePool {
		path = poolLabels
	}
	if d.HandedOver {
		why = "have it lead to the leaders of " + s.Canary
	}
	return patchOf(sel.of, o, sel.fencePatch(labels, note, path...), why), nil
}

func liftOf(sel selector, o metav1.Object, path []string) (*Write, error) {
	labels, changed, err := sel.lift()
	if err != nil || !changed {
		return nil, err
	}
	return patchOf(sel.of, o, sel.fencePatch(labels, "", path...), "give back its selector"), nil
}

// prepare makes the canary Service and keeps it as it should be.
func prepare(s Setup, d Desired, w World) (*Write, error) {
	if !d.Prepared {
		return none()
	}
	want, err := CanaryService(w.Stable, s)
	if err != nil {
		return nil, err
	}
	key := Key{KindService, s.Policy.CanaryService}
	switch {
	case w.Canary == nil:
		return createOf(key, want, "select the canary's leaders")
	case !madeFor(w.Canary, s):
		return nil, taken(s, key, otherService)
	case w.Canary.DeletionTimestamp != nil:
		return none() // it will be made again once it is gone
	case !ownedBy(w.Canary, s):
		return deleteOf(key, w.Canary, "it belongs to an earlier workload of the same name"), nil
	}
	if p := serviceDrift(w.Canary, want); p != nil {
		return patchOf(key, w.Canary, p, "make it follow the stable Service"), nil
	}
	return none()
}

// preparePool makes the canary pool and keeps it as it should be.
func preparePool(s Setup, d Desired, w World) (*Write, error) {
	if !d.Prepared || s.Policy.Pool == nil {
		return none()
	}
	if w.StablePool == nil {
		return nil, missing(s, Key{KindInferencePool, s.Policy.Pool.Stable})
	}
	want, err := CanaryPool(w.StablePool, s)
	if err != nil {
		return nil, err
	}
	key := Key{KindInferencePool, s.Policy.Pool.Canary}
	switch {
	case w.CanaryPool == nil:
		return &Write{Verb: Create, Key: key, Body: want.Object, Why: "select the canary's leaders"}, nil
	case !madeFor(w.CanaryPool, s):
		return nil, takenPool(s)
	case w.CanaryPool.GetDeletionTimestamp() != nil:
		return none() // it will be made again once it is gone
	case !ownedBy(w.CanaryPool, s):
		return deleteOf(key, w.CanaryPool, "it belongs to an earlier workload of the same name"), nil
	}
	if p := poolDrift(w.CanaryPool, want); p != nil {
		return patchOf(key, w.CanaryPool, p, "make it follow the stable pool"), nil
	}
	return none()
}

// checkSupported stops at what can't be expressed. It comes after what takes from the canary and what keeps both sides apart.
func checkSupported(s Setup, d Desired, _ World) (*Write, error) { return nil, Supported(s.Policy, d) }

// retreat takes from the canary what it should no longer get.
func retreat(s Setup, d Desired, w World) (*Write, error) {
	if write, err := steer(s, d, w, RouteRetreat); write != nil || err != nil {
		return write, err
	}
	return steerIngresses(s, d, w, true)
}

// advance gives the canary what it should get, if it can serve.
func advance(s Setup, d Desired, w World) (*Write, error) {
	if w.Canary == nil || len(w.CanaryReady) == 0 || w.lackingPool(s) != "" {
		return none()
	}
	if write, err := steer(s, d, w, RouteRules); write != nil || err != nil {
		return write, err
	}
	return steerIngresses(s, d, w, false)
}

// steerIngresses makes the first write that is due on a canary Ingress.
func steerIngresses(s Setup, d Desired, w World, less bool) (*Write, error) {
	for _, name := range s.Policy.Ingresses {
		if write, err := ingressWrite(s, d, w, name, less); write != nil || err != nil {
			return write, err
		}
	}
	return none()
}

// steer writes the rules of the first route that has others. A route that is gone leads nowhere.
func steer(s Setup, d Desired, w World, rulesOf func(Route, Setup, Desired) ([]any, bool, error)) (*Write, error) {
	for _, r := range w.routes(s) {
		if r.Object.GetDeletionTimestamp() != nil {
			continue
		}
		rules, changed, err := rulesOf(r, s, d)
		if err != nil {
			return nil, err
		}
		if changed {
			p := patch{}
			p.set(rules, "spec", "rules")
			return patchOf(r.Key, r.Object, p, fmt.Sprintf("from %d %% to the canary towards %d %%", RouteWeight(r, s), d.Weight)), nil
		}
	}
	return none()
}

// cleanUp deletes the canary pool and Service. Others' objects of their names are left alone.
func cleanUp(s Setup, d Desired, w World) (*Write, error) {
	if d.Prepared {
		return none()
	}
	const why = "no request goes to the canary"
	if o := w.CanaryPool; o != nil && o.GetDeletionTimestamp() == nil && madeFor(o, s) {
		return deleteOf(Key{KindInferencePool, o.GetName()}, o, why), nil
	}
	if o := w.Canary; o != nil && o.DeletionTimestamp == nil && madeFor(o, s) {
		return deleteOf(Key{KindService, s.Policy.CanaryService}, o, why), nil
	}
	return none()
}
