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

// Fenced says whether the Service selects none but stable leaders.
func Fenced(svc *corev1.Service, s Setup) bool { return serviceSelector(svc).fenced(s.StablePin) }

// Fence pins the stable Service to stable leaders. A label that its selector had before stays the user's: only what is
// added is noted, and goes again with [Lift].
func Fence(svc *corev1.Service, s Setup) (want *corev1.Service, changed bool, err error) {
	labels, note, changed, err := serviceSelector(svc).fence(s, Desired{})
	if err != nil || !changed {
		return svc, false, err
	}
	want = svc.DeepCopy()
	want.Spec.Selector = labels
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	if want.Annotations[FenceAnnotation] = note; note == "" {
		delete(want.Annotations, FenceAnnotation)
	}
	return want, true, nil
}

// Lift takes away what Fence added. What somebody has changed since is theirs and stays.
func Lift(svc *corev1.Service) (want *corev1.Service, changed bool, err error) {
	labels, changed, err := serviceSelector(svc).lift()
	if err != nil || !changed {
		return svc, false, err
	}
	want = svc.DeepCopy()
	want.Spec.Selector = labels
	delete(want.Annotations, FenceAnnotation)
	return want, true, nil
}

// selector is one that can be fenced: that of a Service or of an InferencePool. It is never modified.
type selector struct {
	of     Key
	labels map[string]string
	// notes are the annotations of the object.
	notes map[string]string
	// marked is the object itself.
	marked metav1.Object
}

func serviceSelector(svc *corev1.Service) selector {
	return selector{Key{KindService, svc.Name}, svc.Spec.Selector, svc.Annotations, svc}
}

func (s selector) fenced(pin map[string]string) bool {
	for k, v := range pin {
		if s.labels[k] != v {
			return false
		}
	}
	return true
}

// fence returns the labels to select by, and the note about what was added to them.
func (s selector) fence(setup Setup, d Desired) (labels map[string]string, note string, changed bool, err error) {
	pin := setup.pin(d)
	if s.fenced(pin) {
		return s.labels, "", false, nil
	}
	added, err := s.added()
	if err != nil {
		return nil, "", false, err
	}
	if s.labels == nil {
		return nil, "", false, unusable("%s has no selector, so it can't be kept to the stable leaders: give it one", s.of)
	}
	labels = maps.Clone(s.labels)
	for _, k := range slices.Sorted(maps.Keys(pin)) {
		have, has := labels[k]
		if has && have == pin[k] {
			continue
		}
		if has && added[k] != have && setup.names(k, have) {
			labels[k] = pin[k] // the user selects by the workload's name, and it is another object that serves
			continue
		}
		if has && added[k] != have {
			return nil, "", false, unusable("%s selects %s=%q, but the stable leaders have %q: correct that label in its selector, or remove it",
				s.of, k, have, pin[k])
		}
		labels[k], added[k] = pin[k], pin[k]
	}
	if len(added) == 0 {
		return labels, "", true, nil
	}
	raw, err := json.Marshal(added)
	if err != nil {
		return nil, "", false, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "encode fence: %v", err)
	}
	return labels, string(raw), true, nil
}

// lift returns the labels without those that the fence added.
func (s selector) lift() (labels map[string]string, changed bool, err error) {
	if _, noted := s.notes[FenceAnnotation]; !noted {
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

// added reads what the fence added. It is never nil without an error.
func (s selector) added() (map[string]string, error) {
	added := map[string]string{}
	note, ok := s.notes[FenceAnnotation]
	if !ok {
		return added, nil
	}
	if err := json.Unmarshal([]byte(note), &added); err != nil || added == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"annotation %s of %s can't be trusted (%v): restore it, or remove it together with what does not belong into the selector",
			FenceAnnotation, s.of, err)
	}
	return added, nil
}

// forCanary are the labels by which the canary's counterpart selects: what the user selects by, and the canary's leaders
// among those. Workers are never selected.
func (s selector) forCanary(setup Setup) (map[string]string, error) {
	user, _, err := s.lift()
	if err != nil {
		return nil, err
	}
	if user == nil {
		return nil, unusable("%s has no selector, so none for the canary can be made from it: give it one", s.of)
	}
	labels := maps.Clone(user)
	maps.Copy(labels, setup.CanaryPin)
	maps.Copy(labels, leaders)
	return labels, nil
}

// fencePatch is what makes one object's selector, at a path, another. An empty note goes.
func (s selector) fencePatch(labels map[string]string, note string, path ...string) patch {
	p := patch{}
	p.set(replaced(s.labels, labels), path...)
	if note == "" {
		p.set(nil, "metadata", "annotations", FenceAnnotation)
	} else {
		p.set(note, "metadata", "annotations", FenceAnnotation)
	}
	return p
}
