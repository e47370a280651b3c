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

// OfHPA returns a HorizontalPodAutoscaler as an Autoscaler. It is held by the policy Disabled: it still computes and reports, and keeps
// replicas between the user's minReplicas and maxReplicas.
func OfHPA(h *autoscalingv2.HorizontalPodAutoscaler) *Autoscaler {
	ref, b := h.Spec.ScaleTargetRef, ptr.Deref(h.Spec.Behavior, autoscalingv2.HorizontalPodAutoscalerBehavior{})
	return &Autoscaler{ObjectMeta: holdMetadata(h), Behavior: h.Spec.Behavior, State: State{
		Kind: KindHPA, Workload: workloadName(ref.APIVersion, ref.Kind, ref.Name),
		Scales: Directions{Up: policyOf(b.ScaleUp) != disabled, Down: policyOf(b.ScaleDown) != disabled},
		ToZero: ptr.Deref(h.Spec.MinReplicas, 1) == 0, // which needs the feature gate HPAScaleToZero
		Max:    int(h.Spec.MaxReplicas),
		// The controller does not count what its stabilization window prevents.
		Limited: slices.ContainsFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return c.Type == autoscalingv2.ScalingLimited && c.Status == corev1.ConditionTrue && c.Reason == "ScaleDownLimit"
		}),
	}}
}

const disabled = autoscalingv2.DisabledPolicySelect

func knownPolicy(p string) bool {
	switch autoscalingv2.ScalingPolicySelect(p) {
	case "", autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, disabled:
		return true
	}
	return false
}

func policyOf(r *autoscalingv2.HPAScalingRules) autoscalingv2.ScalingPolicySelect {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.SelectPolicy, "")
}

// holdHPA disables the directions of the hold, restores an earlier hold's other one, and changes nothing else.
func (a *Autoscaler) holdHPA(workload string, hold Hold) (map[string]any, error) {
	note := a.note(workload, hold)
	value, err := note.encode()
	if err != nil {
		return nil, err
	}
	off := map[string]any{"selectPolicy": disabled}
	behavior := map[string]any{"scaleDown": off}
	switch {
	case note.Bare:
		return notePatch(value, map[string]any{"behavior": heldBare(hold)}), nil
	case hold == HoldAll:
		behavior["scaleUp"] = off
	case policyOf(a.Behavior.ScaleUp) == disabled:
		// An earlier hold of both directions disabled it, or the user did: the note tells.
		behavior["scaleUp"] = selectPolicy(note.ScaleUp)
	}
	return notePatch(value, map[string]any{"behavior": behavior}), nil
}

// note returns what to restore later: the current policies, or those of an earlier note where the current ones are disabled.
func (a *Autoscaler) note(workload string, hold Hold) Note {
	before, err := ReadNote(a.Annotations)
	// An unreadable note is replaced. What it could tell is lost unless it is still in the spec.
	if err != nil || before == nil {
		before = &Note{}
	}
	b := a.Behavior
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

// releaseHPA restores the policy of each direction that is still disabled.
func (a *Autoscaler) releaseHPA(note *Note) map[string]any {
	b := a.Behavior
	switch {
	case b == nil:
		// The user removed the behavior, so only the note is left to remove.
		return notePatch(nil, nil)
	case note.Bare && equality.Semantic.DeepEqual(b, heldBare(note.Hold)):
		// Nothing was changed since the hold, so the behavior is the driver's as a whole.
		return notePatch(nil, map[string]any{"behavior": nil})
	}
	behavior := map[string]any{}
	if note.Hold == HoldAll && policyOf(b.ScaleUp) == disabled {
		behavior["scaleUp"] = selectPolicy(note.ScaleUp)
	}
	if policyOf(b.ScaleDown) == disabled {
		behavior["scaleDown"] = selectPolicy(note.ScaleDown)
	}
	return notePatch(nil, map[string]any{"behavior": behavior})
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

// notePatch returns a merge patch of the note, nil to remove it, and of the other changes.
func notePatch(note any, spec map[string]any) map[string]any {
	p := map[string]any{"metadata": map[string]any{"annotations": map[string]any{NoteAnnotation: note}}}
	if spec != nil {
		p["spec"] = spec
	}
	return p
}
