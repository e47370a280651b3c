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

// ScaledObject is KEDA's ScaledObject. It is held by KEDA's own annotation: KEDA deletes the HorizontalPodAutoscaler that it
// created, and recreates it once the annotation is removed.
type ScaledObject struct{ *unstructured.Unstructured }

// KEDA's annotations that stop both directions.
const (
	pausedAnnotation         = "autoscaling.keda.sh/paused"
	pausedReplicasAnnotation = "autoscaling.keda.sh/paused-replicas"
)

const paused = "true"

// Workload returns the name of the LeaderWorkerSet that it scales.
func (o ScaledObject) Workload() string {
	field := func(name string) string {
		value, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", name)
		return value
	}
	return workload(field("apiVersion"), field("kind"), field("name"))
}

// Scales reports whether it is not paused. KEDA parses a value that is no boolean as true.
func (o ScaledObject) Scales() bool {
	annotations := o.GetAnnotations()
	if _, ok := annotations[pausedReplicasAnnotation]; ok {
		return false
	}
	value, ok := annotations[pausedAnnotation]
	if !ok {
		return true
	}
	on, err := strconv.ParseBool(value)
	return err == nil && !on
}

// Hold pauses it.
func (o ScaledObject) Hold(workload string) (map[string]any, error) {
	note := Note{Workload: workload}
	if value, ok := o.GetAnnotations()[pausedAnnotation]; ok {
		note.Paused = &value
	}
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	return annotate(map[string]any{NoteAnnotation: value, pausedAnnotation: paused}), nil
}

// Release restores KEDA's annotation, unless it was changed meanwhile.
func (o ScaledObject) Release() (map[string]any, error) {
	note, err := ReadNote(o.GetAnnotations())
	if err != nil || note == nil {
		return nil, err
	}
	changes := map[string]any{NoteAnnotation: nil}
	if o.GetAnnotations()[pausedAnnotation] == paused {
		changes[pausedAnnotation] = nil
		if note.Paused != nil {
			changes[pausedAnnotation] = *note.Paused
		}
	}
	return annotate(changes), nil
}

func annotate(changes map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": changes}}
}
