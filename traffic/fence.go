// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Fenced says whether the Service selects none but stable leaders.
func Fenced(svc *corev1.Service, s Setup) bool {
	for k, v := range s.StablePin {
		if svc.Spec.Selector[k] != v {
			return false
		}
	}
	return true
}

// Fence pins the stable Service to stable leaders. A label that its selector had before stays the user's: only what is
// added is noted, and goes again with [Lift].
func Fence(svc *corev1.Service, s Setup) (want *corev1.Service, changed bool, err error) {
	if Fenced(svc, s) {
		return svc, false, nil
	}
	added, err := fenceOf(svc)
	if err != nil {
		return nil, false, err
	}
	want = svc.DeepCopy()
	for _, k := range slices.Sorted(maps.Keys(s.StablePin)) {
		have, has := want.Spec.Selector[k]
		if has && have == s.StablePin[k] {
			continue
		}
		if has && added[k] != have {
			return nil, false, unusable("Service %s selects %s=%q, but the stable leaders have %q: correct that label in its selector, or remove it",
				svc.Name, k, have, s.StablePin[k])
		}
		if want.Spec.Selector == nil {
			return nil, false, unusable("Service %s has no selector, so it can't be kept to the stable leaders: give it one", svc.Name)
		}
		want.Spec.Selector[k], added[k] = s.StablePin[k], s.StablePin[k]
	}
	note, err := json.Marshal(added)
	if err != nil {
		return nil, false, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "encode fence: %v", err)
	}
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	want.Annotations[FenceAnnotation] = string(note)
	return want, true, nil
}

// Lift takes away what Fence added. What somebody has changed since is theirs and stays.
func Lift(svc *corev1.Service) (want *corev1.Service, changed bool, err error) {
	if _, noted := svc.Annotations[FenceAnnotation]; !noted {
		return svc, false, nil
	}
	added, err := fenceOf(svc)
	if err != nil {
		return nil, false, err
	}
	want = svc.DeepCopy()
	maps.DeleteFunc(want.Spec.Selector, func(k, v string) bool { return added[k] == v })
	delete(want.Annotations, FenceAnnotation)
	return want, true, nil
}

// fenceOf reads what the fence added. It is never nil without an error.
func fenceOf(svc *corev1.Service) (map[string]string, error) {
	added := map[string]string{}
	note, ok := svc.Annotations[FenceAnnotation]
	if !ok {
		return added, nil
	}
	if err := json.Unmarshal([]byte(note), &added); err != nil || added == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"annotation %s of Service %s can't be trusted (%v): restore it, or remove it together with what does not belong into the selector",
			FenceAnnotation, svc.Name, err)
	}
	return added, nil
}

// unfenced is the selector without what the fence added.
func unfenced(svc *corev1.Service) (map[string]string, error) {
	lifted, _, err := Lift(svc)
	if err != nil {
		return nil, err
	}
	return maps.Clone(lifted.Spec.Selector), nil
}
