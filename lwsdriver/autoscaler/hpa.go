// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// The settings of a HorizontalPodAutoscaler: the selectPolicy of each direction in its behavior.
const (
	scaleUp   = "scaleUp"
	scaleDown = "scaleDown"
	disabled  = string(autoscalingv2.DisabledPolicySelect)
)

// selectPolicies are the values of a selectPolicy.
var selectPolicies = []string{string(autoscalingv2.MaxChangePolicySelect), string(autoscalingv2.MinChangePolicySelect), disabled}

// OfHPA returns a HorizontalPodAutoscaler as an Autoscaler. It is held by the policy Disabled: it still computes and reports, and keeps
// replicas between the user's minReplicas and maxReplicas.
func OfHPA(h *autoscalingv2.HorizontalPodAutoscaler) *Autoscaler {
	ref, b, settings := h.Spec.ScaleTargetRef, ptr.Deref(h.Spec.Behavior, autoscalingv2.HorizontalPodAutoscalerBehavior{}), map[string]string{}
	for name, rules := range map[string]*autoscalingv2.HPAScalingRules{scaleUp: b.ScaleUp, scaleDown: b.ScaleDown} {
		if rules != nil && rules.SelectPolicy != nil {
			settings[name] = string(*rules.SelectPolicy)
		}
	}
	a := &Autoscaler{ObjectMeta: holdMetadata(h), settings: settings, bare: h.Spec.Behavior == nil, State: State{
		Kind: KindHPA, Workload: workloadName(ref.APIVersion, ref.Kind, ref.Name),
		Scales: Directions{Up: settings[scaleUp] != disabled, Down: settings[scaleDown] != disabled},
		ToZero: ptr.Deref(h.Spec.MinReplicas, 1) == 0, // which needs the feature gate HPAScaleToZero
		Max:    int(h.Spec.MaxReplicas),
		// The controller does not count what its stabilization window prevents.
		Limited: slices.ContainsFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return c.Type == autoscalingv2.ScalingLimited && c.Status == corev1.ConditionTrue && c.Reason == "ScaleDownLimit"
		}),
	}}
	if note, err := ReadNote(a.Annotations); err == nil && note != nil && note.Bare {
		a.bare = a.bare || equality.Semantic.DeepEqual(h.Spec.Behavior, heldBare(note.Hold))
	}
	if a.bare {
		a.settings = nil // the behavior is restored as a whole
	}
	return a
}

// heldBare is the held behavior of an autoscaler that had none: with all of the API server's defaults, so that it is recognized,
// and so that a field that its user sets meanwhile is beside these defaults. Without a hold it is nil.
func heldBare(hold Hold) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	if hold == HoldNone {
		return nil
	}
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	up := autoscalingv2.MaxChangePolicySelect
	if hold == HoldAll {
		up = autoscalingv2.DisabledPolicySelect
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0), SelectPolicy: &up,
			Policies: []autoscalingv2.HPAScalingPolicy{pods, percent},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect), Policies: []autoscalingv2.HPAScalingPolicy{percent},
		},
	}
}
