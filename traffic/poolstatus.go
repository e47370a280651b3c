// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
)

// Types of the conditions that a gateway gives a pool.
const (
	poolAccepted     = "Accepted"
	poolResolvedRefs = "ResolvedRefs"
)

// poolStatus is what is read, and never written, of a pool. Early versions of v1 had the list in "parent".
type poolStatus struct {
	Status struct {
		Parents []poolParent `json:"parents"`
		Parent  []poolParent `json:"parent"`
	} `json:"status"`
}

type poolParent struct {
	ParentRef  gateway.ParentReference `json:"parentRef"`
	Conditions []metav1.Condition      `json:"conditions"`
}

// PoolVerified says whether each of the gateways has taken the pool as it is. If not, reason and message say which has not
// and why. A gateway need not say that it has resolved the references, but must not say that it could not.
func PoolVerified(pool *unstructured.Unstructured, gateways []gateway.ParentReference) (ok bool, reason, message string) {
	var s poolStatus
	key := Key{KindInferencePool, pool.GetName()}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pool.Object, &s); err != nil {
		return false, ReasonPoolUnreadable, fmt.Sprintf("%s: %v", key, err)
	}
	parents := slices.Concat(s.Status.Parents, s.Status.Parent)
	for _, g := range gateways {
		at := slices.IndexFunc(parents, func(p poolParent) bool { return sameParent(p.ParentRef, g, pool.GetNamespace()) })
		if at < 0 {
			return false, ReasonPoolNotObserved, fmt.Sprintf("%s: %s has said nothing about it yet", key, g.Name)
		}
		if reason, message := parents[at].lacking(pool.GetGeneration()); reason != "" {
			return false, reason, fmt.Sprintf("%s: %s %s", key, g.Name, message)
		}
	}
	return true, "", ""
}

func (p poolParent) lacking(generation int64) (reason, message string) {
	for _, c := range []struct {
		condition, reason string
		required          bool
	}{
		{poolAccepted, ReasonPoolNotAccepted, true},
		{poolResolvedRefs, ReasonPoolRefsNotResolved, false},
	} {
		have := apimeta.FindStatusCondition(p.Conditions, c.condition)
		switch {
		case have == nil && !c.required:
		case have == nil || have.ObservedGeneration < generation:
			return ReasonPoolNotObserved, fmt.Sprintf("has not observed generation %d", generation)
		case have.Status != metav1.ConditionTrue:
			return c.reason, fmt.Sprintf("says %s=%s (%s): %s", c.condition, have.Status, have.Reason, have.Message)
		}
	}
	return "", ""
}

// gateways are those through which requests reach a side of the backend now: the parents of the routes that lead there.
// A parent that is no Gateway (a Service, in a mesh) says nothing about pools. Listeners are not told apart.
func (w World) gateways(s Setup, side func(ref object) bool) []gateway.ParentReference {
	var out []gateway.ParentReference
	for _, r := range w.routes(s) {
		var status routeStatus
		if !r.leadsTo(side) || runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, &status) != nil {
			continue // what can't be read is for RouteVerified to say
		}
		for _, p := range status.Spec.ParentRefs {
			ref := gateway.ParentReference{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
			same := func(have gateway.ParentReference) bool { return sameParent(have, ref, s.Namespace) }
			if isGateway(ref) && !slices.ContainsFunc(out, same) {
				out = append(out, ref)
			}
		}
	}
	return out
}

func isGateway(ref gateway.ParentReference) bool {
	return sameParent(ref, gateway.ParentReference{Name: ref.Name, Namespace: ref.Namespace}, "")
}

// lackingPools says which pool a gateway has not taken as it is. A gateway knows a pool only while a route leads there.
func lackingPools(s Setup, d Desired, w World) (reason, message string) {
	if s.Policy.Pool == nil || !d.Fenced && !d.Prepared {
		return "", ""
	}
	b := s.backend()
	for _, side := range []struct {
		pool *unstructured.Unstructured
		is   func(object) bool
	}{{w.StablePool, b.isStable}, {w.CanaryPool, b.isCanary}} {
		if side.pool == nil {
			continue
		}
		if ok, reason, message := PoolVerified(side.pool, w.gateways(s, side.is)); !ok {
			return reason, message
		}
	}
	return "", ""
}
