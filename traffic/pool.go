// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
)

// An InferencePool is handled as JSON, as routes are: unknown fields are kept.

// poolLabels is the path of the labels that a pool selects by.
var poolLabels = []string{"spec", "selector", "matchLabels"}

// PoolLabels returns the labels that an InferencePool selects by.
func PoolLabels(pool *unstructured.Unstructured) map[string]string { return poolSelector(pool).labels }

func poolSelector(pool *unstructured.Unstructured) selector {
	labels, _, err := unstructured.NestedStringMap(pool.Object, poolLabels...)
	if err != nil {
		labels = nil // not a selector by the schema
	}
	return selector{Key{KindInferencePool, pool.GetName()}, labels, pool, poolLabels}
}

// CanaryPool generates the canary's InferencePool from the stable one: the same ports, the canary's leaders, and the
// endpoint picker of the policy. Unknown fields of the spec are copied too.
func CanaryPool(stable *unstructured.Unstructured, s Setup) (*unstructured.Unstructured, error) {
	selected, err := poolSelector(stable).forCanary(s)
	if err != nil {
		return nil, err
	}
	from, _ := stable.Object["spec"].(object)
	spec := cloneObject(from)
	picker, err := canaryPicker(stable, s)
	if err != nil {
		return nil, err
	}
	spec["endpointPickerRef"] = picker
	selector, _ := spec["selector"].(object)
	selector["matchLabels"] = anyMap(selected)

	pool := &unstructured.Unstructured{Object: object{"spec": spec}}
	pool.SetAPIVersion(InferenceGroup + "/" + InferenceVersion)
	pool.SetKind(KindInferencePool)
	meta := generatedMeta(s, s.Policy.Pool.Canary, stable)
	pool.SetNamespace(meta.Namespace)
	pool.SetName(meta.Name)
	pool.SetLabels(meta.Labels)
	pool.SetAnnotations(meta.Annotations)
	pool.SetOwnerReferences(meta.OwnerReferences)
	return pool, nil
}

// canaryPicker returns the canary pool's reference to its endpoint picker.
func canaryPicker(stable *unstructured.Unstructured, s Setup) (object, error) {
	policy := s.Policy.Pool
	from := pickerOf(stable)
	if isService(from) && stringField(from, "name", "") == policy.Picker {
		return nil, unusableError("InferencePool %s already uses endpoint picker %s, and a picker serves one pool only: deploy another for pool %s, and name its Service in %s.inference_pool.canary_endpoint_picker",
			stable.GetName(), policy.Picker, policy.Canary, policyField)
	}
	ref := cloneObject(from)
	ref["group"], ref["kind"], ref["name"] = "", KindService, policy.Picker
	if policy.PickerPort > 0 {
		ref["port"] = object{"number": int64(policy.PickerPort)}
	}
	if pickerPort(ref) == 0 {
		return nil, unusableError("InferencePool %s has no endpoint picker port to use for the canary pool: set %s.inference_pool.canary_endpoint_picker_port",
			stable.GetName(), policyField)
	}
	return ref, nil
}

func pickerOf(pool *unstructured.Unstructured) object {
	spec, _ := pool.Object["spec"].(object)
	ref, _ := spec["endpointPickerRef"].(object)
	if ref == nil {
		ref = object{}
	}
	return ref
}

func isService(ref object) bool {
	return stringField(ref, "group", "") == "" && stringField(ref, "kind", KindService) == KindService
}

func pickerPort(ref object) int64 {
	port, _ := ref["port"].(object)
	return intField(port, "number", 0)
}

// checkPool requires a pool with a selector that can be isolated and an endpoint picker for the canary's pool.
func checkPool(s Setup, w World) error {
	policy := s.Policy.Pool
	if policy == nil {
		return nil
	}
	key := Key{KindInferencePool, policy.Stable}
	if w.StablePool == nil {
		return missingError(s, key)
	}
	if err := poolSelector(w.StablePool).check(s); err != nil {
		return err
	}
	if w.CanaryPool != nil && !madeFor(w.CanaryPool, s) {
		return nameTaken(s, Key{KindInferencePool, policy.Canary}, renamePool)
	}
	want, err := CanaryPool(w.StablePool, s)
	if err != nil {
		return err
	}
	return checkPicker(s, w.Picker, pickerPort(pickerOf(want)))
}

func checkPicker(s Setup, svc *corev1.Service, port int64) error {
	if svc == nil {
		return missingError(s, Key{KindService, s.Policy.Pool.Picker})
	}
	if slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == port }) {
		return nil
	}
	return unusableError("Service %s, the canary pool's endpoint picker, has no port %d: correct its ports, or set %s.inference_pool.canary_endpoint_picker_port",
		svc.Name, port, policyField)
}

// renamePool is the remedy for a pool's name that is taken.
const renamePool = "rename it"

// failOpen is the failure mode of an endpoint picker without which gateways choose endpoints themselves.
const failOpen = "FailOpen"

// Types of a pool's conditions.
const (
	poolAccepted     = "Accepted"
	poolResolvedRefs = "ResolvedRefs"
)

// poolStatus is the part of a pool's status that is read. Early versions of v1 had the list in "parent".
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

// unverifiedPool returns which of the gateways has not accepted the present generation of the pool, and why. Both are empty if all have. The
// condition ResolvedRefs may be missing, but must not be false if all must serve.
func unverifiedPool(pool *unstructured.Unstructured, gateways []gateway.ParentReference, allServe bool) (reason, message string) {
	var s poolStatus
	key := Key{KindInferencePool, pool.GetName()}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pool.Object, &s); err != nil {
		return ReasonPoolUnreadable, fmt.Sprintf("%s: %v", key, err)
	}
	parents := slices.Concat(s.Status.Parents, s.Status.Parent)
	for _, g := range gateways {
		at := slices.IndexFunc(parents, func(p poolParent) bool { return sameParent(p.ParentRef, g, pool.GetNamespace()) })
		if at < 0 {
			return ReasonPoolNotObserved, fmt.Sprintf("%s: %s has not reported a status yet", key, g.Name)
		}
		if reason, message := parents[at].unverified(pool.GetGeneration(), allServe); reason != "" {
			return reason, fmt.Sprintf("%s: %s %s", key, g.Name, message)
		}
	}
	return "", ""
}

func (p poolParent) unverified(generation int64, allServe bool) (reason, message string) {
	resolves := apimeta.FindStatusCondition(p.Conditions, poolResolvedRefs) != nil
	return unmetCondition(p.Conditions, generation, ReasonPoolNotObserved, []expected{
		{poolAccepted, metav1.ConditionTrue, ReasonPoolNotAccepted, true, false},
		{poolResolvedRefs, metav1.ConditionTrue, ReasonPoolRefsNotResolved, resolves, !allServe},
	})
}

// gateways returns the gateways that route requests to a backend now: the parents of the routes with such a backendRef.
// Parents of another kind (a Service, in a mesh) are skipped: they report no status of pools. Listeners are ignored.
func (w World) gateways(s Setup, side func(ref object) bool) []gateway.ParentReference {
	var out []gateway.ParentReference
	for _, r := range w.routes(s) {
		var status routeStatus
		if !r.leadsTo(side) || runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object.Object, &status) != nil {
			continue // unverifiedRoute reports unreadable routes
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

// unverifiedPools returns the pool that a gateway has not accepted. A gateway reports on a pool only while a route leads to it.
func unverifiedPools(s Setup, d Desired, w World) (reason, message string) {
	return w.unverifiedPools(s, d, true)
}

func (w World) unverifiedPools(s Setup, d Desired, allServe bool) (reason, message string) {
	if s.Policy.Pool == nil || !d.Isolated && !d.Prepared {
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
		if reason, message := unverifiedPool(side.pool, w.gateways(s, side.is), allServe); reason != "" {
			return reason, message
		}
	}
	return "", ""
}
