// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// What scales a workload scales its successor from one request on, which gives it back as its user had it; whether it was
// held, was not, or carries an unreadable note.
func TestFollow(t *testing.T) {
	for name, note := range map[string]string{"held": "", "not held": "-", "unreadable": "{"} {
		h := hpa("Max", "Min", "")
		o := scaledObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", map[string]any{})
		if note != "-" {
			h = HPA{&autoscalingv2.HorizontalPodAutoscaler{}}
			p, err := hpa("Max", "Min", "").Hold("vllm", HoldAll)
			if err != nil {
				t.Fatal(err)
			}
			patched(t, hpa("Max", "Min", "").HorizontalPodAutoscaler, p, h.HorizontalPodAutoscaler)
			o = changed(t, o, func(o ScaledObject) (map[string]any, error) { return o.Hold("vllm", HoldAll) })
		}
		if note == "{" {
			h.Annotations[NoteAnnotation] = note
			o.SetAnnotations(map[string]string{NoteAnnotation: note, pausedAnnotation: paused})
		}
		var got HPA
		got.HorizontalPodAutoscaler = &autoscalingv2.HorizontalPodAutoscaler{}
		patched(t, h.HorizontalPodAutoscaler, Follow(h, "vllm-b"), got.HorizontalPodAutoscaler)
		moved := changed(t, o, func(o ScaledObject) (map[string]any, error) { return Follow(o, "vllm-b"), nil })
		for _, a := range []Autoscaler{got, moved} {
			if a.Workload() != "vllm-b" || a.Scales().Any() == (note == "{") {
				t.Errorf("%s: %T scales %q, at all %t", name, a, a.Workload(), a.Scales())
			}
		}
		for _, annotations := range []map[string]string{got.Annotations, moved.GetAnnotations()} {
			if left := annotations[NoteAnnotation]; (left != "") != (note == "{") {
				t.Errorf("%s: the note is %q", name, left)
			}
		}
		if got.Spec.ScaleTargetRef.Kind != "LeaderWorkerSet" || got.Spec.MaxReplicas != 8 {
			t.Errorf("%s: %+v", name, got.Spec)
		}
	}
}
