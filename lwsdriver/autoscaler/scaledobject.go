// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ScaledObjects is KEDA's API. A cluster may not have it.
var ScaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// ScaledObject is one of KEDA's. It is held by KEDA's own annotation, upon which KEDA deletes the HorizontalPodAutoscaler
// that it had made, and makes it again once the annotation is gone.
type ScaledObject struct{ *unstructured.Unstructured }

// KEDA's annotations that stop both directions.
const (
	pausedAnnotation         = "autoscaling.keda.sh/paused"
	pausedReplicasAnnotation = "autoscaling.keda.sh/paused-replicas"
)

const paused = "true"

// Workload is the name of the LeaderWorkerSet that it scales.
func (o ScaledObject) Workload() string {
	field := func(name string) string {
		value, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", name)
		return value
	}
	return workload(field("apiVersion"), field("kind"), field("name"))
}

// Scales says whether KEDA does not take it for paused. What is no boolean it takes for true.
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

// Release gives it back, unless somebody changed KEDA's annotation meanwhile.
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
