// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// How autoscalers are held and given back. What there is of them is in autoscaler.go.

// readAutoscalers looks for what scales the workload, or the one that it is about to be succeeded by.
func (o *observer) readAutoscalers(s *seen) {
	if o.scalers == nil {
		return
	}
	var err error
	s.Autoscalers, err = o.scalers.of(s.key)
	s.Unscanned = drivererr.ProblemOf(err)
	if s.Record == nil || s.Record.Release == nil || s.Record.Release.Successor == "" {
		return
	}
	successors, _ := o.scalers.of(types.NamespacedName{Namespace: s.key.Namespace, Name: s.Record.Release.Successor})
	for _, a := range successors {
		if !a.Targets {
			continue
		}
		a.Targets, a.Passed = false, true
		s.Autoscalers = slices.DeleteFunc(s.Autoscalers, func(b plan.Autoscaler) bool { return a.Kind == b.Kind && a.Name == b.Name })
		s.Autoscalers = append(s.Autoscalers, a)
	}
	slices.SortFunc(s.Autoscalers, func(a, b plan.Autoscaler) int { return strings.Compare(a.String(), b.String()) })
}

func (a *applier) holdAutoscaler(ctx context.Context, s *seen, t plan.HoldAutoscaler) (bool, error) {
	return a.writeAutoscaler(ctx, s.key, t.Kind, t.Name, func(now *scaler) (map[string]any, error) { return now.Hold(s.key.Name) })
}

func (a *applier) releaseAutoscaler(ctx context.Context, key types.NamespacedName, t plan.ReleaseAutoscaler) (bool, error) {
	return a.writeAutoscaler(ctx, key, t.Kind, t.Name, func(now *scaler) (map[string]any, error) {
		if t.To != "" {
			return autoscaler.Follow(now, t.To), nil
		}
		return now.Release()
	})
}

// writeAutoscaler sends a patch of what the cache has, and returns once the cache has seen it.
func (a *applier) writeAutoscaler(ctx context.Context, key types.NamespacedName, kind, name string, patch func(*scaler) (map[string]any, error)) (bool, error) {
	object := types.NamespacedName{Namespace: key.Namespace, Name: name}
	before := a.scalers.get(kind, object)
	if before == nil {
		return false, nil // the next look tells
	}
	p, err := patch(before)
	if err != nil || p == nil {
		return false, err
	}
	wrote, err := a.scalers.write(ctx, before, p)
	if err != nil {
		return false, err
	}
	return true, a.until(ctx, func() bool {
		now := a.scalers.get(kind, object)
		if now == nil || now.meta.GetUID() != before.meta.GetUID() {
			return true
		}
		order, err := resourceversion.CompareResourceVersion(now.meta.GetResourceVersion(), wrote)
		return err != nil || order >= 0
	}, key)
}

// tellAutoscaler tells people that their autoscaler was changed, as an event on the workload.
func (d *Driver) tellAutoscaler(s *seen, action plan.Action) {
	if s.stable == nil {
		return
	}
	switch a := action.(type) {
	case plan.HoldAutoscaler:
		d.events.recorder.Eventf(reference(s.stable), nil, corev1.EventTypeNormal, "AutoscalerHeld", "Release",
			"%s %s is held until the release is over", a.Kind, a.Name)
	case plan.ReleaseAutoscaler:
		d.events.recorder.Eventf(reference(s.stable), nil, corev1.EventTypeNormal, "AutoscalerReleased", "Release",
			"%s %s scales again as its user set it", a.Kind, a.Name)
	}
}
