// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// selector is the label selector of a Service or an InferencePool. It is never modified.
type selector struct {
	of     Key
	labels map[string]string
	object metav1.Object
	// path is that of the labels in the object.
	path []string
}

func serviceSelector(svc *corev1.Service) selector {
	return selector{Key{KindService, svc.Name}, svc.Spec.Selector, svc, []string{"spec", "selector"}}
}

// selectors returns those of the stable Service and of the stable pool, as far as they exist.
func (w World) selectors() (all []selector) {
	if w.Stable != nil {
		all = append(all, serviceSelector(w.Stable))
	}
	if w.StablePool != nil {
		all = append(all, poolSelector(w.StablePool))
	}
	return all
}

func (s selector) isolated(pin map[string]string) bool {
	for k, v := range pin {
		if s.labels[k] != v {
			return false
		}
	}
	return true
}

// isolatedLabels returns the isolated labels, and the annotation that lists which of them were added.
func (s selector) isolatedLabels(setup Setup, d Desired) (labels map[string]string, note string, changed bool, err error) {
	pin := setup.pin(s.of.Kind, d)
	if s.isolated(pin) {
		return s.labels, "", false, nil
	}
	added, err := s.added()
	if err != nil {
		return nil, "", false, err
	}
	if s.labels == nil {
		return nil, "", false, unusableError("%s has no selector, so it can't be pinned to the stable leaders: add a selector", s.of)
	}
	labels = maps.Clone(s.labels)
	for _, k := range slices.Sorted(maps.Keys(pin)) {
		have, has := labels[k]
		if has && have == pin[k] {
			continue
		}
		if has && added[k] != have && setup.namesWorkload(k, have) {
			labels[k] = pin[k] // the user selects by the workload's name, which a handover changes
			continue
		}
		if has && added[k] != have {
			return nil, "", false, unusableError("%s selects %s=%q, but the stable leaders have %q: correct that label in its selector, or remove it",
				s.of, k, have, pin[k])
		}
		labels[k], added[k] = pin[k], pin[k]
	}
	if len(added) == 0 {
		return labels, "", true, nil
	}
	raw, err := json.Marshal(added)
	if err != nil {
		return nil, "", false, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "encode isolation: %v", err)
	}
	return labels, string(raw), true, nil
}

// withoutIsolation returns the labels without the isolation's.
func (s selector) withoutIsolation() (labels map[string]string, changed bool, err error) {
	if _, noted := s.object.GetAnnotations()[IsolationAnnotation]; !noted {
		return s.labels, false, nil
	}
	added, err := s.added()
	if err != nil {
		return nil, false, err
	}
	labels = maps.Clone(s.labels)
	maps.DeleteFunc(labels, func(k, v string) bool { return added[k] == v })
	return labels, true, nil
}

// added returns the labels that the isolation added. It is never nil without an error.
func (s selector) added() (map[string]string, error) {
	added := map[string]string{}
	note, ok := s.object.GetAnnotations()[IsolationAnnotation]
	if !ok {
		return added, nil
	}
	if err := json.Unmarshal([]byte(note), &added); err != nil || added == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"annotation %s of %s is invalid (%v): restore it, or remove it together with the labels that the isolation added to the selector",
			IsolationAnnotation, s.of, err)
	}
	return added, nil
}

// forCanary returns the selector labels of the canary's counterpart: the user's labels, restricted to canary leaders.
func (s selector) forCanary(setup Setup) (map[string]string, error) {
	user, _, err := s.withoutIsolation()
	if err != nil {
		return nil, err
	}
	if user == nil {
		return nil, unusableError("%s has no selector from which the canary's could be generated: add a selector", s.of)
	}
	labels := maps.Clone(user)
	maps.Copy(labels, pinOf(s.of.Kind, setup.CanaryPin))
	maps.Copy(labels, leaders)
	return labels, nil
}

// patchWrite returns the patch that sets the labels and the annotation. An empty note removes it.
func (s selector) patchWrite(labels map[string]string, note, why string) *Write {
	p := patch{}
	p.set(mergePatch(anyMap(s.labels), anyMap(labels)), s.path...)
	if note == "" {
		p.set(nil, "metadata", "annotations", IsolationAnnotation)
	} else {
		p.set(note, "metadata", "annotations", IsolationAnnotation)
	}
	return patchOf(s.of, s.object, p, why)
}
