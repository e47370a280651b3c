// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// HPA is a HorizontalPodAutoscaler. It is held by the policy Disabled in both directions: it still computes and reports, and
// keeps replicas between the user's minReplicas and maxReplicas.
type HPA struct {
	*autoscalingv2.HorizontalPodAutoscaler
}

const disabled = autoscalingv2.DisabledPolicySelect

func knownPolicy(p string) bool {
	switch autoscalingv2.ScalingPolicySelect(p) {
	case "", autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, disabled:
		return true
	}
	return false
}

// Workload returns the name of the LeaderWorkerSet that it scales.
func (h HPA) Workload() string {
	ref := h.Spec.ScaleTargetRef
	return workload(ref.APIVersion, ref.Kind, ref.Name)
}

// Scales reports whether a direction is not disabled.
func (h HPA) Scales() bool {
	b := h.Spec.Behavior
	return b == nil || policyOf(b.ScaleUp) != disabled || policyOf(b.ScaleDown) != disabled
}

func policyOf(r *autoscalingv2.HPAScalingRules) autoscalingv2.ScalingPolicySelect {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.SelectPolicy, "")
}

// Hold disables both directions and changes nothing else.
func (h HPA) Hold(workload string) (map[string]any, error) {
	note := h.note(workload)
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	off := map[string]any{"selectPolicy": disabled}
	var behavior any = map[string]any{"scaleUp": off, "scaleDown": off}
	if note.Bare {
		behavior = heldBare()
	}
	return patch(value, map[string]any{"behavior": behavior}), nil
}

// note returns what to restore later: the current policies, or those of an earlier note where the current ones are disabled.
func (h HPA) note(workload string) Note {
	before, err := ReadNote(h.Annotations)
	if err != nil || before == nil {
		before = &Note{ScaleUp: string(disabled), ScaleDown: string(disabled)}
	}
	b := h.Spec.Behavior
	if b == nil {
		return Note{Workload: workload, Bare: true}
	}
	next := Note{Workload: workload, ScaleUp: before.ScaleUp, ScaleDown: before.ScaleDown}
	if p := policyOf(b.ScaleUp); p != disabled {
		next.ScaleUp = string(p)
	}
	if p := policyOf(b.ScaleDown); p != disabled {
		next.ScaleDown = string(p)
	}
	return next
}

// Release restores the policy of each direction that is still disabled.
func (h HPA) Release() (map[string]any, error) {
	note, err := ReadNote(h.Annotations)
	if err != nil {
		return nil, err
	}
	b := h.Spec.Behavior
	switch {
	case note == nil:
		return nil, nil //nolint:nilnil // no patch: it is not held
	case b == nil:
		return patch(nil, nil), nil
	case note.Bare && equality.Semantic.DeepEqual(b, heldBare()):
		return patch(nil, map[string]any{"behavior": nil}), nil
	}
	behavior := map[string]any{}
	if policyOf(b.ScaleUp) == disabled {
		behavior["scaleUp"] = selectPolicy(note.ScaleUp)
	}
	if policyOf(b.ScaleDown) == disabled {
		behavior["scaleDown"] = selectPolicy(note.ScaleDown)
	}
	return patch(nil, map[string]any{"behavior": behavior}), nil
}

// selectPolicy sets a policy; an empty one gets the API server's default.
func selectPolicy(p string) map[string]any {
	if p == "" {
		return map[string]any{"selectPolicy": nil}
	}
	return map[string]any{"selectPolicy": p}
}

// heldBare is the held behavior of an autoscaler that had none: with all of the API server's defaults, so that it is recognized,
// and so that a field that its user sets meanwhile is beside these defaults.
func heldBare() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0), SelectPolicy: ptr.To(disabled),
			Policies: []autoscalingv2.HPAScalingPolicy{pods, percent},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			SelectPolicy: ptr.To(disabled), Policies: []autoscalingv2.HPAScalingPolicy{percent},
		},
	}
}

// patch returns a merge patch of the note, nil to remove it, and of the other changes.
func patch(note any, spec map[string]any) map[string]any {
	p := map[string]any{"metadata": map[string]any{"annotations": map[string]any{NoteAnnotation: note}}}
	if spec != nil {
		p["spec"] = spec
	}
	return p
}
