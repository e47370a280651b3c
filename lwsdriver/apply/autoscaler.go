// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func (a *Applier) holdAutoscaler(ctx context.Context, s *observe.Snapshot, t plan.HoldAutoscaler) (bool, error) {
	return a.writeAutoscaler(ctx, s.Key, t.Kind, t.Name, func(now *autoscaler.Autoscaler) (map[string]any, error) {
		return now.Hold(s.Key.Name, t.Hold)
	})
}

func (a *Applier) releaseAutoscaler(ctx context.Context, key types.NamespacedName, t plan.ReleaseAutoscaler) (bool, error) {
	return a.writeAutoscaler(ctx, key, t.Kind, t.Name, func(now *autoscaler.Autoscaler) (map[string]any, error) {
		if t.To != "" {
			return autoscaler.Follow(now, t.To), nil
		}
		return now.Release()
	})
}

// writeAutoscaler sends a patch of the cached object, and returns once the cache shows it.
func (a *Applier) writeAutoscaler(
	ctx context.Context, key types.NamespacedName, kind, name string, patch func(*autoscaler.Autoscaler) (map[string]any, error),
) (bool, error) {
	object := types.NamespacedName{Namespace: key.Namespace, Name: name}
	before := a.observer.Autoscalers.Get(kind, object)
	if before == nil {
		return false, nil // the next observation decides
	}
	p, err := patch(before)
	// Without a note there is nothing to release.
	if err != nil || p == nil {
		return false, err
	}
	wrote, err := a.patchAutoscaler(ctx, before, p)
	if err != nil {
		return false, err
	}
	cached := func() *autoscaler.Autoscaler { return a.observer.Autoscalers.Get(kind, object) }
	return true, awaitVersion(ctx, a, a.observer.Autoscalers.Resource(kind), wrote, true, cached, key)
}

// patchAutoscaler sends a patch, on condition that the object has not changed.
func (a *Applier) patchAutoscaler(ctx context.Context, s *autoscaler.Autoscaler, patch map[string]any) (wrote metav1.Object, err error) {
	// The patch restores values that were read from this version, so any newer one must refuse it.
	meta, _ := patch["metadata"].(map[string]any)
	meta["uid"], meta["resourceVersion"] = s.UID, s.ResourceVersion
	raw, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	namespace, options := s.Namespace, metav1.PatchOptions{FieldManager: record.FieldManager}
	if s.Kind == autoscaler.KindHPA {
		wrote, err = a.core.AutoscalingV2().HorizontalPodAutoscalers(namespace).Patch(ctx, s.Name, types.MergePatchType, raw, options)
	} else {
		wrote, err = a.dynamic.Resource(autoscaler.ScaledObjects).Namespace(namespace).Patch(ctx, s.Name, types.MergePatchType, raw, options)
	}
	if err != nil {
		return nil, fmt.Errorf("patch %s %s/%s: %w", s.Kind, namespace, s.Name, err)
	}
	return wrote, nil
}
