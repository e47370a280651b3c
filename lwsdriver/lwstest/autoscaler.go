// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
)

// HPA returns an HPA that scales a workload.
func HPA(target string, change ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: VLLM.Namespace, Name: "scale", UID: "hpa", ResourceVersion: "1"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: target},
			MaxReplicas:    4,
		},
	}
	for _, c := range change {
		c(h)
	}
	return h
}

// HeldFor returns an option: the HPA is held for a workload.
func HeldFor(workload string) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(h *autoscalingv2.HorizontalPodAutoscaler) {
		off := &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)}
		h.Annotations = map[string]string{autoscaler.NoteAnnotation: `{"hold":"all","workload":"` + workload + `","scaleUp":"Max"}`}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: off, ScaleDown: off}
	}
}
