// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// restartGroup deletes a leader pod, and with it its workers, on condition that the group has not changed: a late request must not
// delete a group that serves by then.
func (a *Applier) restartGroup(ctx context.Context, s *observe.Snapshot, t plan.RestartGroup) (bool, error) {
	key := types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Leader}
	pod := a.observer.Caches.Pod(key)
	if pod == nil {
		return false, nil // the next observation decides
	}
	// The next observation must not restart the group again before the cache shows the deletion.
	defer a.observer.Caches.Groups.Invalidate(s.Key, pod.Group)
	if pod.Terminating {
		return false, nil
	}
	if changed, err := a.groupChanged(ctx, s.Key, pod); changed || err != nil {
		return false, err
	}
	err := a.core.CoreV1().Pods(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("delete Pod %s: %w", key, err)
	}
	if err == nil {
		a.observer.Caches.Groups.CountRestart(s.Key, pod.Group, pod.Revision)
	}
	return err == nil, a.until(ctx, func() bool {
		now := a.observer.Caches.Pod(key)
		return now == nil || now.UID != pod.UID || now.Terminating || err != nil && now.ResourceVersion != pod.ResourceVersion
	}, s.Key)
}

// groupChanged reports whether the pods of a leader's group are no longer the observed ones. If the group has become ready, LWS may
// already be replacing the next one. The leader's own precondition does not cover its workers. It returns once the caches show that.
func (a *Applier) groupChanged(ctx context.Context, key types.NamespacedName, leader *observe.Pod) (bool, error) {
	set := leader.Workload()
	seen := a.observer.Caches.Groups.Versions(set, leader.Group)
	selector := labels.Set{lws.SetNameLabelKey: set.Name, lws.GroupIndexLabelKey: leader.Group}
	live, err := a.core.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return false, fmt.Errorf("list the pods of group %s of LeaderWorkerSet %s: %w", leader.Group, set, err)
	}
	now := make(map[types.UID]string, len(live.Items))
	for i := range live.Items {
		now[live.Items[i].UID] = live.Items[i].ResourceVersion
	}
	if maps.Equal(seen, now) {
		return false, nil
	}
	return true, a.until(ctx, func() bool { return !maps.Equal(seen, a.observer.Caches.Groups.Versions(set, leader.Group)) }, key)
}

// saveTemplate reads the stable revision's template into the record.
func (a *Applier) saveTemplate(ctx context.Context, s *observe.Snapshot, rec *record.Record) error {
	hash := rec.Release.StableRevision
	if _, ok := a.observer.Caches.RevisionNamed(s.StableObject, hash); !ok {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"there is no ControllerRevision of LeaderWorkerSet %s for revision %s any more, so the last group that runs it can't be replaced "+
				"without losing the template to roll back to: promote the release, or roll it back", s.Key, hash)
	}
	template, err := a.Template(ctx, s, hash)
	if err != nil {
		return err
	}
	r := *rec.Release
	r.StableTemplate = &template
	rec.Release = &r
	return nil
}
