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

// HPA is a HorizontalPodAutoscaler. It is held by the policy Disabled: it still computes and reports, and keeps replicas
// between the user's minReplicas and maxReplicas.
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

// Type returns KindHPA.
func (h HPA) Type() string { return KindHPA }

// Workload returns the name of what it scales.
func (h HPA) Workload() string {
	ref := h.Spec.ScaleTargetRef
	return workload(ref.APIVersion, ref.Kind, ref.Name)
}

// Scales returns the directions that are not disabled.
func (h HPA) Scales() Directions {
	b := h.Spec.Behavior
	if b == nil {
		return Directions{Up: true, Down: true}
	}
	return Directions{Up: policyOf(b.ScaleUp) != disabled, Down: policyOf(b.ScaleDown) != disabled}
}

// ToZero reports whether its minReplicas is 0, which needs the feature gate HPAScaleToZero.
func (h HPA) ToZero() bool { return h.Spec.MinReplicas != nil && *h.Spec.MinReplicas == 0 }

func policyOf(r *autoscalingv2.HPAScalingRules) autoscalingv2.ScalingPolicySelect {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.SelectPolicy, "")
}

// Max returns its maxReplicas.
func (h HPA) Max() int { return int(h.Spec.MaxReplicas) }

// Limited reports whether the condition ScalingLimited says so. The controller does not count what its stabilization window
// prevents.
func (h HPA) Limited() bool {
	return slices.ContainsFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScalingLimited && c.Status == corev1.ConditionTrue && c.Reason == "ScaleDownLimit"
	})
}

// Hold disables the directions of the hold, restores an earlier hold's other one, and changes nothing else.
func (h HPA) Hold(workload string, hold Hold) (map[string]any, error) {
	note := h.note(workload, hold)
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	off := map[string]any{"selectPolicy": disabled}
	behavior := map[string]any{"scaleDown": off}
	switch {
	case note.Bare:
		return patch(value, map[string]any{"behavior": heldBare(hold)}), nil
	case hold == HoldAll:
		behavior["scaleUp"] = off
	case policyOf(h.Spec.Behavior.ScaleUp) == disabled:
		// An earlier hold of both directions disabled it, or the user did: the note tells.
		behavior["scaleUp"] = selectPolicy(note.ScaleUp)
	}
	return patch(value, map[string]any{"behavior": behavior}), nil
}

// note returns what to restore later: the current policies, or those of an earlier note where the current ones are disabled.
func (h HPA) note(workload string, hold Hold) Note {
	before, err := ReadNote(h.Annotations)
	// An unreadable note is replaced. What it could tell is lost unless it is still in the spec.
	if err != nil || before == nil {
		before = &Note{}
	}
	b := h.Spec.Behavior
	if b == nil || before.Bare && equality.Semantic.DeepEqual(b, heldBare(before.Hold)) {
		return Note{Workload: workload, Hold: hold, Bare: true}
	}
	next := Note{Workload: workload, Hold: hold, ScaleUp: string(policyOf(b.ScaleUp)), ScaleDown: string(policyOf(b.ScaleDown))}
	if before.Hold == HoldAll && policyOf(b.ScaleUp) == disabled {
		next.ScaleUp = before.ScaleUp
	}
	if before.Hold != HoldNone && policyOf(b.ScaleDown) == disabled {
		next.ScaleDown = before.ScaleDown
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
		// The user removed the behavior, so only the note is left to remove.
		return patch(nil, nil), nil
	case note.Bare && equality.Semantic.DeepEqual(b, heldBare(note.Hold)):
		// Nothing was changed since the hold, so the behavior is the driver's as a whole.
		return patch(nil, map[string]any{"behavior": nil}), nil
	}
	behavior := map[string]any{}
	if note.Hold == HoldAll && policyOf(b.ScaleUp) == disabled {
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
func heldBare(hold Hold) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	up := autoscalingv2.MaxChangePolicySelect
	if hold == HoldAll {
		up = disabled
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0), SelectPolicy: &up,
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
