// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ScaledObjects is KEDA's resource, which may not be installed.
var ScaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// ScaledObject is KEDA's ScaledObject. It is held by KEDA's own annotations. If it is paused, KEDA deletes the
// HorizontalPodAutoscaler that it created, and recreates it once the annotation is removed. If only its scale-in is paused,
// KEDA 2.18.2 or later disables scale-down in that HorizontalPodAutoscaler, and does not scale to 0 or to idleReplicaCount.
type ScaledObject struct{ *unstructured.Unstructured }

// KEDA's annotations that stop both directions or one.
const (
	pausedAnnotation         = "autoscaling.keda.sh/paused"
	pausedReplicasAnnotation = "autoscaling.keda.sh/paused-replicas"
	pausedScaleInAnnotation  = "autoscaling.keda.sh/paused-scale-in"
	pausedScaleOutAnnotation = "autoscaling.keda.sh/paused-scale-out"
)

const paused = "true"

// Type returns KindScaledObject.
func (o ScaledObject) Type() string { return KindScaledObject }

// Workload returns the name of what it scales.
func (o ScaledObject) Workload() string {
	field := func(name string) string {
		value, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", name)
		return value
	}
	return workload(field("apiVersion"), field("kind"), field("name"))
}

// Scales returns the directions that are not paused.
func (o ScaledObject) Scales() Directions {
	if _, ok := o.GetAnnotations()[pausedReplicasAnnotation]; ok || o.on(pausedAnnotation) {
		return Directions{}
	}
	return Directions{Up: !o.on(pausedScaleOutAnnotation), Down: !o.on(pausedScaleInAnnotation)}
}

// on reports whether KEDA reads an annotation as true: any value that is no boolean counts.
func (o ScaledObject) on(annotation string) bool {
	value, ok := o.GetAnnotations()[annotation]
	on, err := strconv.ParseBool(value)
	return ok && (err != nil || on)
}

// ToZero reports whether it scales to 0 when its triggers are inactive. That is KEDA's default.
func (o ScaledObject) ToZero() bool {
	return o.count("idleReplicaCount", o.count("minReplicaCount", 0)) == 0
}

// Max returns its maxReplicaCount. KEDA's default is 100.
func (o ScaledObject) Max() int { return o.count("maxReplicaCount", 100) }

// Limited is false: the HorizontalPodAutoscaler that KEDA created has the answer.
func (o ScaledObject) Limited() bool { return false }

// count returns a number in the spec. It is a float in objects from manifests.
func (o ScaledObject) count(field string, unset int) int {
	value, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", field)
	switch n := value.(type) {
	case int64:
		return int(n)
	case float64:
		return int(n)
	default:
		return unset
	}
}

// Hold pauses it, or only its scale-in, and restores an earlier hold's other annotation.
func (o ScaledObject) Hold(workload string, hold Hold) (map[string]any, error) {
	note := Note{Workload: workload, Hold: hold, Paused: o.user(pausedAnnotation), PausedScaleIn: o.user(pausedScaleInAnnotation)}
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	changes := map[string]any{NoteAnnotation: value}
	// What an earlier hold set is restored first, since this one may set the same annotation.
	o.restore(changes, note)
	changes[note.held()] = paused
	return annotate(changes), nil
}

// user returns the user's value of an annotation: the noted one while the annotation has the driver's.
func (o ScaledObject) user(annotation string) *string {
	value, ok := o.GetAnnotations()[annotation]
	if note, err := ReadNote(o.GetAnnotations()); err == nil && note != nil && value == paused && note.held() == annotation {
		return note.noted(annotation)
	}
	if !ok {
		return nil
	}
	return &value
}

// held returns the annotation that a hold sets.
func (n Note) held() string {
	if n.Hold == HoldAll {
		return pausedAnnotation
	}
	return pausedScaleInAnnotation
}

// noted returns the user's value of an annotation.
func (n Note) noted(annotation string) *string {
	if annotation == pausedAnnotation {
		return n.Paused
	}
	return n.PausedScaleIn
}

// Release restores KEDA's annotation, unless it was changed meanwhile.
func (o ScaledObject) Release() (map[string]any, error) {
	note, err := ReadNote(o.GetAnnotations())
	if err != nil || note == nil {
		return nil, err
	}
	changes := map[string]any{NoteAnnotation: nil}
	o.restore(changes, *note)
	return annotate(changes), nil
}

// restore adds the user's value of the annotation that the present note's hold has set.
func (o ScaledObject) restore(changes map[string]any, user Note) {
	note, err := ReadNote(o.GetAnnotations())
	if err != nil || note == nil || o.GetAnnotations()[note.held()] != paused {
		return
	}
	changes[note.held()] = nil
	if value := user.noted(note.held()); value != nil {
		changes[note.held()] = *value
	}
}

func annotate(changes map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": changes}}
}
