// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const pausedAnnotation = "autoscaling.keda.sh/paused"

func (w *workload) scaledObjects() dynamic.ResourceInterface {
	return w.dynamic.Resource(schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}).Namespace(w.namespace)
}

// keda creates a ScaledObject for the workload. Its HorizontalPodAutoscaler, by which a running driver notices KEDA, does not
// stay: this cluster has no KEDA that would delete it when the driver pauses the ScaledObject.
func (w *workload) keda(annotations map[string]any) {
	w.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"name": w.name, "annotations": annotations},
		"spec": map[string]any{
			"scaleTargetRef":  map[string]any{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": w.name},
			"minReplicaCount": int64(1), "maxReplicaCount": int64(4),
			"triggers": []any{map[string]any{"type": "cron", "metadata": map[string]any{
				"timezone": "UTC", "start": "0 6 * * *", "end": "0 20 * * *", "desiredReplicas": "4",
			}}},
		},
	}}
	created := suite.CreateObject(w.t, w.scaledObjects(), object)
	hpas := w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace)
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "keda-hpa-" + w.name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(created, created.GroupVersionKind())},
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: w.name},
			MaxReplicas:    4,
		},
	}
	suite.Create(w.t, hpas, h)
	suite.Delete(w.t, hpas, h.Name)
}

// pause sets KEDA's annotation as a user would; nil removes it.
func (w *workload) pause(value any) {
	w.t.Helper()
	patch := asJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{pausedAnnotation: value}}})
	suite.Patch(w.t, w.scaledObjects(), w.name, patch)
}

// awaitPaused waits until KEDA's annotation has the value, "" for none, and the driver's annotation exists or not.
func (w *workload) awaitPaused(value string, noted bool) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("paused is %q, noted %t", value, noted), func(ctx context.Context) error {
		object, err := w.scaledObjects().Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := object.GetAnnotations()
		if now[pausedAnnotation] != value || (now[heldAnnotation] != "") != noted {
			return fmt.Errorf("annotations are %v", now)
		}
		return nil
	})
}

// KEDA is installed while the driver runs. A ScaledObject is paused during a blue-green release, also when the annotation is
// removed, and has the user's annotation afterwards.
//
// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerScaledObject(t *testing.T) {
	t.Parallel()
	e := autoscaled(t)
	w := e.adopt(model("model", 2, 1))
	require.NoError(t, e.cluster.InstallKEDA(t.Context()))
	w.keda(map[string]any{"example.com/team": "serving"})
	w.edit(image("v2"))
	w.initialize("r1", blueGreen())
	w.awaitPaused("true", true) // the driver may have discovered the API only now
	w.upgrade("r1", 0)
	w.pause(nil) // a GitOps tool prunes what is not in Git
	w.awaitPaused("true", true)
	w.finalize("r1", promote)
	w.awaitPaused("", false)

	w.pause("false")
	w.edit(image("v3"))
	mustWarn(t, w.initialize("r2", blueGreen()).GetWarnings(), "AutoscalerHeld", "ScaledObject model")
	w.awaitPaused("true", true)
	w.driver.Kill()
	w.driver.Restart()
	w.awaitPaused("true", true)
	w.finalize("r2", rollback)
	w.awaitPaused("false", false)
	w.mustBeIdle()
}

// A ScaledObject may scale to 0 by KEDA's default. It is kept from it as soon as a template waits, also without a release,
// and during a canary release, and has its user's annotations afterwards.
//
// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerScaledObjectToZero(t *testing.T) {
	t.Parallel()
	e := autoscaled(t)
	require.NoError(t, e.cluster.InstallKEDA(t.Context()))
	w := e.adopt(model("model", 2, 1))
	w.keda(map[string]any{"example.com/team": "serving"})
	w.keepsOne(false)
	w.edit(image("v2"))
	w.awaitScaleInPaused(true)
	w.edit(image("v1"))
	w.awaitScaleInPaused(false)
	w.edit(image("v2"))
	w.awaitScaleInPaused(true)
	mustWarn(t, w.initialize("r1", policy("50%", "100%")).GetWarnings(), "AutoscalerToZero", "ScaledObject model may remove the last group")
	w.upgrade("r1", 1)
	w.awaitState(pb.State_STATE_READY)
	w.awaitScaleInPaused(true)
	w.finalize("r1", promote)
	w.awaitScaleInPaused(false)
	w.mustBeIdle()
	assert.Equal(t, 4, w.autoscalerWrites(), "writes of the autoscaler, want 2 for each time that a template waits")
	w.keepsOne(true)
	w.edit(image("v3"))
	w.initialize("r2", policy("50%", "100%"))
	w.awaitState(pb.State_STATE_HOLDING)
	w.awaitScaleInPaused(false) // nothing is moved yet, and the last group is safe
	w.upgrade("r2", 0)
	w.awaitScaleInPaused(true)
	w.finalize("r2", rollback)
	w.awaitScaleInPaused(false)
}

// keepsOne sets minReplicaCount to 1, or to 0.
func (w *workload) keepsOne(one bool) {
	w.t.Helper()
	patch := `{"spec":{"minReplicaCount":0}}`
	if one {
		patch = `{"spec":{"minReplicaCount":1}}`
	}
	suite.Patch(w.t, w.scaledObjects(), w.name, patch)
}

// awaitScaleInPaused waits until KEDA's annotation stops scale-in with the driver's note, or neither exists.
func (w *workload) awaitScaleInPaused(paused bool) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("scale-in paused: %t", paused), func(ctx context.Context) error {
		object, err := w.scaledObjects().Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := object.GetAnnotations()
		if (now["autoscaling.keda.sh/paused-scale-in"] == "true") != paused || (now[heldAnnotation] != "") != paused || now[pausedAnnotation] != "" {
			return fmt.Errorf("annotations are %v", now)
		}
		return nil
	})
}
