// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// What scales a workload scales its successor from one request on, which gives it back as its user had it; whether it was
// held, was not, or carries an unreadable note.
func TestFollow(t *testing.T) {
	for name, note := range map[string]string{"held": "", "not held": "-", "unreadable": "{"} {
		h := hpa("Max", "Min", "")
		o := scaledObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", map[string]any{})
		if note != "-" {
			h = h.hold(t, HoldAll)
			o = changed(t, o, func(a *Autoscaler) (map[string]any, error) { return a.Hold("vllm", HoldAll) })
		}
		if note == "{" {
			h.Annotations[NoteAnnotation] = note
			o.SetAnnotations(map[string]string{NoteAnnotation: note, pausedAnnotation: paused})
		}
		got := &autoscalingv2.HorizontalPodAutoscaler{}
		patched(t, h.HorizontalPodAutoscaler, Follow(OfHPA(h.HorizontalPodAutoscaler), "vllm-b"), got)
		moved := changed(t, o, func(a *Autoscaler) (map[string]any, error) { return Follow(a, "vllm-b"), nil })
		for _, a := range []*Autoscaler{OfHPA(got), OfScaledObject(moved)} {
			assert.True(t, a.Workload == "vllm-b" && a.Scales.Any() != (note == "{"),
				"%s: %s scales %q, at all %t", name, a.Kind, a.Workload, a.Scales)
			left := a.Annotations[NoteAnnotation]
			assert.Equal(t, note == "{", left != "", "%s: the note is %q", name, left)
		}
		assert.True(t, got.Spec.ScaleTargetRef.Kind == "LeaderWorkerSet" && got.Spec.MaxReplicas == 8, "%s: %+v", name, got.Spec)
	}
}
