// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// labelGroup labels the group's next pod that lacks the mark, in the order of their names, so the leader first.
func (a *Applier) labelGroup(ctx context.Context, s *observe.Snapshot, t plan.LabelGroup) (bool, error) {
	set, group := types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Name}, strconv.Itoa(t.Group)
	pod := a.observer.Caches.Groups.UnmarkedPod(set, group, t)
	if pod == nil {
		a.observer.Caches.Groups.Invalidate(set, group) // the cache is ahead of its events; the next observation decides
		return false, nil
	}
	return a.labelPod(ctx, s.Key, pod, map[string]any{
		record.RolloutIDLabel: t.Mark.ID, record.RolloutBatchLabel: strconv.Itoa(t.Mark.Batch),
	}, func(now *observe.Pod) bool { return now.Mark() == t.Mark })
}

// labelPod sets labels of a pod, or removes those whose value is nil, on condition that it is the observed one. It returns once
// done holds, which checks the cache.
func (a *Applier) labelPod(ctx context.Context, key types.NamespacedName, seen *observe.Pod, labels map[string]any, done func(*observe.Pod) bool) (bool, error) {
	pod := types.NamespacedName{Namespace: seen.Namespace, Name: seen.Name}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": seen.UID, "labels": labels}})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	// Groups are invalidated by events, which may come after the cache shows the pod.
	defer a.observer.Caches.Groups.Invalidate(seen.Workload(), seen.Group)
	_, err = a.core.CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: record.FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It was deleted or recreated. An observation before the cache shows that would decide the same again.
		return false, a.untilChanged(ctx, seen, key)
	}
	if err != nil {
		return false, fmt.Errorf("patch Pod %s: %w", pod, err)
	}
	return true, a.untilPod(ctx, seen, key, done)
}
