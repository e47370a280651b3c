// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// labelsAtOnce is how many pods a pass labels before it lets others at the workload: a batch may have thousands, and a
// rollback must not wait for them.
const labelsAtOnce = 64

// labelLimit is how many pods a pass over the workload may label.
func (s *seen) labelLimit() int {
	if s.Policy.RolloutID == "" {
		return 0
	}
	return labelsAtOnce
}

// labelWrites is 1 if the action labels a pod, else 0.
func labelWrites(a plan.Action) int {
	if _, ok := a.(plan.LabelGroup); ok {
		return 1
	}
	return 0
}

// markOf is what a pod's labels say of its rollout.
func markOf(labels map[string]string) (none unique.Handle[plan.RolloutMark]) {
	id, batch := labels[record.RolloutIDLabel], labels[record.RolloutBatchLabel]
	if id == "" && batch == "" {
		return none
	}
	n, err := strconv.Atoi(batch)
	if err != nil || strconv.Itoa(n) != batch {
		n = -1 // whatever it is, it is put right
	}
	return unique.Make(plan.RolloutMark{ID: id, Batch: n})
}

func (v *podView) mark() plan.RolloutMark {
	if v.labelled == (unique.Handle[plan.RolloutMark]{}) {
		return plan.RolloutMark{}
	}
	return v.labelled.Value()
}

// stays says whether the pod belongs to its group as it is at the revision: what is left of others has no say.
func (v *podView) stays(revision string) bool { return !v.terminating && v.revision == revision }

// marksOf are the different marks of a group's pods that stay at its revision, nil if none of them has any.
func marksOf(objs []any, revision string) []plan.RolloutMark {
	var all []plan.RolloutMark
	bare := false
	for _, obj := range objs {
		pod, ok := obj.(*podView)
		if !ok || !pod.stays(revision) {
			continue
		}
		switch mark := pod.mark(); {
		case mark == plan.RolloutMark{}:
			bare = true
		case !slices.Contains(all, mark):
			all = append(all, mark)
		}
	}
	if bare && all != nil {
		all = append(all, plan.RolloutMark{})
	}
	slices.SortFunc(all, func(a, b plan.RolloutMark) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Batch, b.Batch))
	})
	return all
}

// labelGroup labels the group's next pod that lacks the mark, in the order of their names, so the leader first.
func (a *applier) labelGroup(ctx context.Context, s *seen, t plan.LabelGroup) (bool, error) {
	set, group := types.NamespacedName{Namespace: s.key.Namespace, Name: t.Name}, strconv.Itoa(t.Group)
	pod := a.caches.groups.lacking(set, group, t)
	if pod == nil {
		a.caches.groups.mark(set, group) // the cache is ahead of its events; the next look tells
		return false, nil
	}
	return a.labelPod(ctx, s.key, pod, map[string]any{
		record.RolloutIDLabel: t.Mark.ID, record.RolloutBatchLabel: strconv.Itoa(t.Mark.Batch),
	}, func(now *podView) bool { return now.mark() == t.Mark })
}

// lacking is the first pod of a group that lacks the mark, nil if all that stay have it.
func (g *groups) lacking(set types.NamespacedName, group string, t plan.LabelGroup) *podView {
	objs, err := g.pods.ByIndex(podGroupIndex, podGroupKey(set, group))
	if err != nil {
		return nil
	}
	var first *podView
	for _, obj := range objs {
		pod, ok := obj.(*podView)
		if ok && pod.stays(t.Revision) && pod.mark() != t.Mark && (first == nil || pod.Name < first.Name) {
			first = pod
		}
	}
	return first
}

// labelPod sets labels of a pod, or removes those whose value is nil, on condition that it is the one that was seen. It
// returns once the cache shows that, as done tells.
func (a *applier) labelPod(ctx context.Context, key types.NamespacedName, seen *podView, labels map[string]any, done func(*podView) bool) (bool, error) {
	pod := types.NamespacedName{Namespace: seen.Namespace, Name: seen.Name}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": seen.UID, "labels": labels}})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	// What follows goes by the groups, which are told by events that may come after the cache shows them.
	defer a.caches.groups.mark(seen.setKey(), seen.group)
	got, err := a.core.CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: record.FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is another pod by now, or none. Whoever looks before the cache shows it would ask for the same again.
		return false, a.until(ctx, func() bool {
			now := a.caches.pod(pod)
			return now == nil || now.UID != seen.UID || now.ResourceVersion != seen.ResourceVersion
		}, key)
	}
	if err != nil {
		return false, fmt.Errorf("patch Pod %s: %w", pod, err)
	}
	return true, a.until(ctx, func() bool {
		now := a.caches.pod(pod)
		return now == nil || now.UID != got.UID || done(now)
	}, key)
}
