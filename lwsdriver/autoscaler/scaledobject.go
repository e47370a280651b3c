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

// KEDA's annotations that stop both directions or one.
const (
	kedaPrefix               = "autoscaling.keda.sh/"
	pausedAnnotation         = kedaPrefix + "paused"
	pausedReplicasAnnotation = kedaPrefix + "paused-replicas"
	pausedScaleInAnnotation  = kedaPrefix + "paused-scale-in"
	pausedScaleOutAnnotation = kedaPrefix + "paused-scale-out"
)

const paused = "true"

// OfScaledObject returns KEDA's ScaledObject as an Autoscaler. It is held by KEDA's own annotations. If it is paused, KEDA deletes the
// HorizontalPodAutoscaler that it created, and recreates it once the annotation is removed. If only its scale-in is paused,
// KEDA 2.18.2 or later disables scale-down in that HorizontalPodAutoscaler, and does not scale to 0 or to idleReplicaCount. It is never
// Limited: that HorizontalPodAutoscaler has the answer.
func OfScaledObject(o *unstructured.Unstructured) *Autoscaler {
	field := func(name string) string {
		value, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", name)
		return value
	}
	a := &Autoscaler{ObjectMeta: holdMetadata(o), State: State{
		Kind: KindScaledObject, Workload: workloadName(field("apiVersion"), field("kind"), field("name")),
		// These are KEDA's defaults. It scales to 0 or to idleReplicaCount while its triggers are inactive.
		ToZero: specCount(o, "idleReplicaCount", specCount(o, "minReplicaCount", 0)) == 0, Max: specCount(o, "maxReplicaCount", 100),
	}}
	if _, ok := a.Annotations[pausedReplicasAnnotation]; !ok && !a.on(pausedAnnotation) {
		a.Scales = Directions{Up: !a.on(pausedScaleOutAnnotation), Down: !a.on(pausedScaleInAnnotation)}
	}
	return a
}

// on reports whether KEDA reads an annotation as true: any value that is no boolean counts.
func (a *Autoscaler) on(annotation string) bool {
	value, ok := a.Annotations[annotation]
	on, err := strconv.ParseBool(value)
	return ok && (err != nil || on)
}

// specCount returns a number in the spec. It is a float in objects from manifests.
func specCount(o *unstructured.Unstructured, field string, unset int) int {
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

// holdScaledObject pauses it, or only its scale-in, and restores an earlier hold's other annotation.
func (a *Autoscaler) holdScaledObject(workload string, hold Hold) (map[string]any, error) {
	note := Note{Workload: workload, Hold: hold, Paused: a.user(pausedAnnotation), PausedScaleIn: a.user(pausedScaleInAnnotation)}
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	changes := map[string]any{NoteAnnotation: value}
	// What an earlier hold set is restored first, since this one may set the same annotation.
	a.restore(changes, note)
	changes[note.held()] = paused
	return annotationPatch(changes), nil
}

// user returns the user's value of an annotation: the noted one while the annotation has the driver's.
func (a *Autoscaler) user(annotation string) *string {
	value, ok := a.Annotations[annotation]
	if note, err := ReadNote(a.Annotations); err == nil && note != nil && value == paused && note.held() == annotation {
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

// releaseScaledObject restores KEDA's annotation, unless it was changed meanwhile.
func (a *Autoscaler) releaseScaledObject(note *Note) map[string]any {
	changes := map[string]any{NoteAnnotation: nil}
	a.restore(changes, *note)
	return annotationPatch(changes)
}

// restore adds the user's value of the annotation that the present note's hold has set.
func (a *Autoscaler) restore(changes map[string]any, user Note) {
	note, err := ReadNote(a.Annotations)
	if err != nil || note == nil || a.Annotations[note.held()] != paused {
		return
	}
	changes[note.held()] = nil
	if value := user.noted(note.held()); value != nil {
		changes[note.held()] = *value
	}
}

func annotationPatch(changes map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": changes}}
}
