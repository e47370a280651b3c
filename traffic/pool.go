// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// An InferencePool is handled as JSON, as routes are: what this package does not know of it stays.

// poolLabels is the path of the labels that a pool selects by.
var poolLabels = []string{"spec", "selector", "matchLabels"}

func poolSelector(pool *unstructured.Unstructured) selector {
	labels, _, err := unstructured.NestedStringMap(pool.Object, poolLabels...)
	if err != nil {
		labels = nil // no selector, as the schema has it
	}
	return selector{Key{KindInferencePool, pool.GetName()}, labels, pool.GetAnnotations(), pool}
}

// CanaryPool generates the canary's InferencePool from the stable one: the same ports, the canary's leaders, and the
// endpoint picker that the policy names. Only spec is taken over, with all that this version of the API does not know.
func CanaryPool(stable *unstructured.Unstructured, s Setup) (*unstructured.Unstructured, error) {
	labels, err := poolSelector(stable).forCanary(s)
	if err != nil {
		return nil, err
	}
	from, _ := stable.Object["spec"].(object)
	spec := clone(from)
	picker, err := canaryPicker(stable, s)
	if err != nil {
		return nil, err
	}
	spec["endpointPickerRef"] = picker
	selector, _ := spec["selector"].(object)
	selector["matchLabels"] = anyMap(labels)

	pool := &unstructured.Unstructured{Object: object{"spec": spec}}
	pool.SetAPIVersion(InferenceGroup + "/" + InferenceVersion)
	pool.SetKind(KindInferencePool)
	pool.SetNamespace(s.Namespace)
	pool.SetName(s.Policy.Pool.Canary)
	marks := WithoutToolMarks(stable.GetLabels())
	marks[RoleLabel], marks[StableLabel] = RoleCanary, s.Stable
	pool.SetLabels(marks)
	pool.SetAnnotations(WithoutToolMarks(stable.GetAnnotations()))
	pool.SetOwnerReferences([]metav1.OwnerReference{s.Owner})
	return pool, nil
}

// canaryPicker is the canary pool's reference to its endpoint picker.
func canaryPicker(stable *unstructured.Unstructured, s Setup) (object, error) {
	policy := s.Policy.Pool
	from := pickerOf(stable)
	if isService(from) && text(from, "name", "") == policy.Picker {
		return nil, unusable("InferencePool %s has endpoint picker %s already, and a picker serves one pool only: deploy another for pool %s, and name its Service in %s.inference_pool.canary_endpoint_picker",
			stable.GetName(), policy.Picker, policy.Canary, policyField)
	}
	ref := clone(from)
	ref["group"], ref["kind"], ref["name"] = "", KindService, policy.Picker
	if policy.PickerPort > 0 {
		ref["port"] = object{"number": int64(policy.PickerPort)}
	}
	if pickerPort(ref) == 0 {
		return nil, unusable("InferencePool %s names no port of its endpoint picker that the canary's could share: set %s.inference_pool.canary_endpoint_picker_port",
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
	return text(ref, "group", "") == "" && text(ref, "kind", KindService) == KindService
}

func pickerPort(ref object) int64 {
	port, _ := ref["port"].(object)
	return number(port, "number", 0)
}

// poolDrift returns the merge patch that makes have what want asks for, nil if it is so.
func poolDrift(have, want *unstructured.Unstructured) map[string]any {
	p := patch{}
	haveSpec, _ := have.Object["spec"].(object)
	wantSpec, _ := want.Object["spec"].(object)
	if diff := mergePatch(haveSpec, wantSpec); len(diff) > 0 {
		p.set(diff, "spec")
	}
	p.copyMarks(have, want)
	if len(p) == 0 {
		return nil
	}
	return p
}

// mergePatch is the JSON merge patch that turns one object into another, empty if they are equal.
func mergePatch(have, want object) object {
	out := object{}
	for k := range have {
		if _, stays := want[k]; !stays {
			out[k] = nil
		}
	}
	for k, v := range want {
		old, was := have[k].(object)
		next, is := v.(object)
		switch {
		case was && is:
			if diff := mergePatch(old, next); len(diff) > 0 {
				out[k] = diff
			}
		case !reflect.DeepEqual(have[k], v):
			out[k] = v
		}
	}
	return out
}

// checkPool sees to it that the pool can be split: by its selector, and with a picker for each half.
func checkPool(s Setup, w World) error {
	policy := s.Policy.Pool
	if policy == nil {
		return nil
	}
	key := Key{KindInferencePool, policy.Stable}
	if w.StablePool == nil {
		return missing(s, key)
	}
	if err := poolSelector(w.StablePool).check(s); err != nil {
		return err
	}
	if w.CanaryPool != nil && !madeFor(w.CanaryPool, s) {
		return takenPool(s)
	}
	want, err := CanaryPool(w.StablePool, s)
	if err != nil {
		return err
	}
	return checkPicker(s, w.Picker, pickerPort(pickerOf(want)))
}

func checkPicker(s Setup, svc *corev1.Service, port int64) error {
	if svc == nil {
		return missing(s, Key{KindService, s.Policy.Pool.Picker})
	}
	for i := range svc.Spec.Ports {
		if int64(svc.Spec.Ports[i].Port) == port {
			return nil
		}
	}
	return unusable("Service %s, the canary pool's endpoint picker, has no port %d: correct its ports, or set %s.inference_pool.canary_endpoint_picker_port",
		svc.Name, port, policyField)
}

func takenPool(s Setup) error {
	return taken(s, Key{KindInferencePool, s.Policy.Pool.Canary}, "rename it")
}

func anyMap(in map[string]string) object {
	out := make(object, len(in))
	for k, v := range in {
		out[k] = v
	}
	return out
}
