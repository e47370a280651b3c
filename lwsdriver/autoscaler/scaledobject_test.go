// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func scaledObject(version, kind string, annotations map[string]any) *unstructured.Unstructured {
	ref := map[string]any{"name": "vllm", "apiVersion": version, "kind": kind, "envSourceContainerName": "server"}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"name": "vllm", "annotations": annotations},
		"spec":     map[string]any{"scaleTargetRef": ref},
	}}
}

func TestScaledObject(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		// had is the annotation's value before, edit the user's change meanwhile, want the released value. A dash: none.
		had, edit, want string
	}{
		{"bare", "no annotation before, none after", "-", "", "-"},
		{"false", "what was said is said again", "false", "", "false"},
		{"edited", "a change meanwhile stays", "false", "0", "0"},
		{"removed", "so does a removal", "false", "-", "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			with := func(value string) map[string]any {
				if value == "-" {
					return map[string]any{}
				}
				return map[string]any{pausedAnnotation: value}
			}
			user := scaledObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", with(test.had))
			held := changed(t, user, func(a *Autoscaler) (map[string]any, error) { return a.Hold("vllm", HoldAll) })
			before, now := OfScaledObject(user).Scales, OfScaledObject(held).Scales
			require.True(t, before.Any() && !now.Any(), "scales %v, held %v", before, now)
			if test.edit != "" {
				note := held.GetAnnotations()[NoteAnnotation]
				held = scaledObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", with(test.edit))
				annotations := map[string]string{NoteAnnotation: note}
				for key, value := range held.GetAnnotations() {
					annotations[key] = value
				}
				held.SetAnnotations(annotations)
			}
			got := changed(t, held, (*Autoscaler).Release)
			value, ok := got.GetAnnotations()[pausedAnnotation]
			if !ok {
				value = "-"
			}
			_, left := got.GetAnnotations()[NoteAnnotation]
			assert.True(t, !left && value == test.want, "released with %q, want %q: %s", value, test.want, test.reason)
		})
	}
}

// A hold replaces the other in one write, and the user's annotations are restored.
func TestScaledObjectHolds(t *testing.T) {
	hold := func(o *unstructured.Unstructured, h Hold) *unstructured.Unstructured {
		return changed(t, o, func(a *Autoscaler) (map[string]any, error) { return a.Hold("vllm", h) })
	}
	for _, user := range []map[string]any{{}, {pausedAnnotation: "false"}, {pausedScaleInAnnotation: "false"}, {"a": "b"}} {
		o := scaledObject("", "", user)
		for _, holds := range [][]Hold{{HoldDown}, {HoldAll}, {HoldAll, HoldDown}, {HoldDown, HoldAll}, {HoldDown, HoldDown}} {
			held := o
			for _, h := range holds {
				held = hold(held, h)
			}
			want := Directions{Up: holds[len(holds)-1] == HoldDown}
			assert.Equal(t, want, OfScaledObject(held).Scales, "%v held %v: scales", user, holds)
			got := changed(t, held, (*Autoscaler).Release)
			assert.Empty(t, cmp.Diff(o.GetAnnotations(), got.GetAnnotations()), "%v held %v (-want +got)", user, holds)
		}
	}
}

// A value that is too long to be kept pauses KEDA, whatever it is: it is neither replaced nor restored.
func TestLongValueStays(t *testing.T) {
	user := scaledObject("", "", map[string]any{pausedScaleInAnnotation: strings.Repeat("x", maxSetting+10)})
	for _, holds := range [][]Hold{{HoldDown}, {HoldAll}, {HoldAll, HoldDown}} {
		held := user
		for _, h := range holds {
			held = changed(t, held, func(a *Autoscaler) (map[string]any, error) { return a.Hold("vllm", h) })
		}
		assert.False(t, OfScaledObject(held).Scales.Down, "held %v: scales down", holds)
		assert.Equal(t, user.Object, changed(t, held, (*Autoscaler).Release).Object, "held %v: restored", holds)
	}
}

func TestScaledObjectScales(t *testing.T) {
	both := Directions{Up: true, Down: true}
	for _, test := range []struct {
		annotations map[string]any
		want        Directions
	}{
		{nil, both},
		{map[string]any{pausedAnnotation: "false"}, both},
		{map[string]any{pausedAnnotation: "true"}, Directions{}},
		{map[string]any{pausedAnnotation: "yes"}, Directions{}},
		{map[string]any{pausedReplicasAnnotation: "4"}, Directions{}},
		{map[string]any{pausedScaleInAnnotation: "true"}, Directions{Up: true}},
		{map[string]any{pausedScaleOutAnnotation: "true"}, Directions{Down: true}},
	} {
		assert.Equal(t, test.want, OfScaledObject(scaledObject("", "", test.annotations)).Scales, "%v: scales", test.annotations)
	}
}

func changed(t *testing.T, o *unstructured.Unstructured, by func(*Autoscaler) (map[string]any, error)) *unstructured.Unstructured {
	t.Helper()
	p, err := by(OfScaledObject(o))
	require.NoError(t, err)
	next := map[string]any{}
	patched(t, o.Object, p, &next)
	return &unstructured.Unstructured{Object: next}
}

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
