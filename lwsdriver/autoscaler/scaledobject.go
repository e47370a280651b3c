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
	a.settings = a.Annotations
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
