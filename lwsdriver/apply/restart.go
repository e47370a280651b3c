// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// restartGroup deletes a leader pod, and with it its workers, on condition that the pod has not changed: a late request must not
// delete a group that serves by then. If a worker keeps the group from being ready, it is deleted before the leader, on the same
// condition. Otherwise it could become ready meanwhile, and LWS would update the next group, too.
//
// The leader of a whole group finishes its requests with its workers, which Kubernetes deletes once it is gone. A group that is not
// whole is deleted in the foreground, as LWS does it: its workers are deleted before the leader is gone. Otherwise a worker that starts
// while the leader terminates would join the next leader, which is then ready, and gets requests, until the worker is deleted.
func (a *Applier) restartGroup(ctx context.Context, s *observe.Snapshot, t plan.RestartGroup) (bool, error) {
	leader := a.observer.Caches.Pod(types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Leader})
	if leader == nil {
		return false, nil // the next observation decides
	}
	// The next observation must not restart the group again before the cache shows the deletion.
	defer a.observer.Caches.Groups.Invalidate(s.Key, leader.Group)
	if leader.Terminating {
		return false, nil
	}
	version := &leader.ResourceVersion
	propagation := metav1.DeletePropagationForeground
	worker := a.observer.Caches.Groups.UnreadyWorker(leader)
	if worker != nil {
		deleted, err := a.deletePod(ctx, worker, &worker.ResourceVersion, metav1.DeletePropagationBackground)
		if err != nil {
			return false, err
		}
		if !deleted { // the pod has changed; a pass before the cache shows that would make the same request again
			return false, a.awaitPodChange(ctx, worker, s.Key)
		}
		version = nil // without the worker the group does not serve
	} else if hasReadyPods(s, t.Leader) {
		propagation = metav1.DeletePropagationBackground
	}
	wrote := worker != nil
	deleted, err := a.deletePod(ctx, leader, version, propagation)
	if err != nil {
		return wrote, err
	}
	if !deleted {
		return wrote, a.awaitPodChange(ctx, leader, s.Key)
	}
	a.observer.Caches.Groups.CountRestart(s.Key, leader.Group, leader.Revision)
	return true, a.awaitPod(ctx, leader, s.Key, "", func(now *observe.Pod) bool { return now.Terminating })
}

// hasReadyPods reports whether all pods of a leader's group were ready when it was observed.
func hasReadyPods(s *observe.Snapshot, leader string) bool {
	return slices.ContainsFunc(s.Stable.Groups, func(g plan.Group) bool { return g.Leader == leader && g.ReadyPods >= g.Pods })
}

// deletePod deletes a pod, on condition that it has this version, if one is given. False means that the pod has changed or is gone.
func (a *Applier) deletePod(ctx context.Context, pod *observe.Pod, version *string, how metav1.DeletionPropagation) (bool, error) {
	err := a.core.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: version}, PropagationPolicy: &how,
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return true, nil
}

// saveTemplate copies the stable revision's template into the record: from LWS, or from the history if LWS has deleted it.
func (a *Applier) saveTemplate(ctx context.Context, s *observe.Snapshot, rec *record.Record) error {
	// The observation shares the release, and must not change if the write fails.
	r := *rec.Release
	template, err := a.Template(s, r.StableRevision)
	if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND {
		template, err = a.recordedTemplate(ctx, s, r.StableRevision)
	}
	if err != nil {
		return fmt.Errorf("the last group that runs revision %s can't be replaced without losing the template to roll back to: promote "+
			"the release, or roll it back: %w", r.StableRevision, err)
	}
	r.StableTemplate = &template
	rec.Release = &r
	return nil
}

// labelGroup labels the group's next pod that lacks the labels, in the order of their names, so the leader first.
func (a *Applier) labelGroup(ctx context.Context, s *observe.Snapshot, t plan.LabelGroup) (bool, error) {
	set := types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Name}
	group := strconv.Itoa(t.Group)
	pod := a.observer.Caches.Groups.UnlabelledPod(set, group, t)
	if pod == nil {
		a.observer.Caches.Groups.Invalidate(set, group) // the cache is ahead of its events; the next observation decides
		return false, nil
	}
	return a.labelPod(ctx, s.Key, pod, false, map[string]any{
		record.RolloutIDLabel: t.Labels.ID, record.RolloutBatchLabel: strconv.Itoa(t.Labels.Batch),
	}, func(now *observe.Pod) bool { return now.Rollout == t.Labels })
}

// labelPod sets labels of a pod, or removes the ones whose value is nil, on condition that it is the observed pod, and with unchanged that nothing
// of it has changed. It returns once done holds, which checks the cache.
func (a *Applier) labelPod(
	ctx context.Context, key types.NamespacedName, seen *observe.Pod, unchanged bool, labels map[string]any, done func(*observe.Pod) bool,
) (bool, error) {
	pod := types.NamespacedName{Namespace: seen.Namespace, Name: seen.Name}
	metadata := map[string]any{"uid": seen.UID, "labels": labels}
	if unchanged { // most labels do without: the kubelet changes the resourceVersion with each status
		metadata["resourceVersion"] = seen.ResourceVersion
	}
	raw, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	// Groups are invalidated by events, which may come after the cache shows the pod.
	defer a.observer.Caches.Groups.Invalidate(seen.Workload(), seen.Group)
	wrote, err := a.core.CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: record.FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It was deleted or recreated. An observation before the cache shows that would decide the same again.
		return false, a.awaitPodChange(ctx, seen, key)
	}
	if err != nil {
		return false, fmt.Errorf("patch Pod %s: %w", pod, err)
	}
	return true, a.awaitPod(ctx, seen, key, wrote.ResourceVersion, done)
}
