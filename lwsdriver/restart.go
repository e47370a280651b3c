// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// restartGroup deletes a leader pod, on condition that it is as it was seen: a request that arrives late must not take down
// a group that serves by then. Its workers go with it.
func (a *applier) restartGroup(ctx context.Context, s *seen, t plan.RestartGroup) (bool, error) {
	key := types.NamespacedName{Namespace: s.key.Namespace, Name: t.Leader}
	pod := a.caches.pod(key)
	if pod == nil {
		return false, nil // the next look tells
	}
	// The pod may be there already of which the counts are told in a moment: the next look must not ask for the same again.
	defer a.caches.groups.mark(s.key, pod.group)
	if pod.terminating {
		return false, nil
	}
	err := a.core.CoreV1().Pods(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("delete Pod %s: %w", key, err)
	}
	if err == nil {
		a.caches.groups.restarted(s.key, pod.group, pod.revision)
	}
	return err == nil, a.until(ctx, func() bool {
		now := a.caches.pod(key)
		return now == nil || now.UID != pod.UID || now.terminating || err != nil && now.ResourceVersion != pod.ResourceVersion
	}, s.key)
}

// saveTemplate reads the stable revision's template into the record.
func (a *applier) saveTemplate(ctx context.Context, s *seen, rec *record.Record) error {
	hash := rec.Release.StableRevision
	if a.caches.revisionNamed(s.stable, hash) == nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"there is no ControllerRevision of LeaderWorkerSet %s for revision %s any more, so the last group that runs it can't be replaced "+
				"without losing the way back: promote the release, or roll it back", s.key, hash)
	}
	template, err := a.template(ctx, s, hash)
	if err != nil {
		return err
	}
	r := *rec.Release
	r.StableTemplate = &template
	rec.Release = &r
	return nil
}
