// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// isHistory says whether an action writes the history and nothing else.
func isHistory(action plan.Action) bool {
	switch action.(type) {
	case plan.Remember, plan.Forget:
		return true
	default:
		return false
	}
}

// recordHistory is do for what nobody must wait for: a write that is refused, as without the right to it, keeps no release
// from going on. What may pass by itself is an error like any other.
func (d *Driver) recordHistory(ctx context.Context, s *seen, action plan.Action) (bool, error) {
	wrote, err := d.do(ctx, s, action)
	if err == nil {
		d.snapshots.resume(s.key)
		return wrote, nil
	}
	if drivererr.Retryable(err) {
		return false, err
	}
	if _, before := d.snapshots.pausing(s.key, s.Now); before == nil || before.Error() != err.Error() {
		d.log.Warn("history can't be written, the release goes on without", slog.String("workload", s.key.String()), slog.Any("error", err))
	}
	d.snapshots.pause(s.key, err, d.options.now())
	return false, nil
}

// remember writes an entry of the history.
func (a *applier) remember(ctx context.Context, s *seen, t plan.Remember) (bool, error) {
	client := a.core.AppsV1().ControllerRevisions(s.key.Namespace)
	if have := a.snapshots.find(s.stable, t.Entry.Revision); have != nil {
		patch, err := history.Patch(t.Entry, have)
		if err != nil {
			return false, err
		}
		got, err := client.Patch(ctx, have.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: record.FieldManager})
		if err != nil {
			return false, fmt.Errorf("patch ControllerRevision %s/%s: %w", have.Namespace, have.Name, err)
		}
		return true, a.sawSnapshot(ctx, s, got)
	}
	template, err := a.template(ctx, s, t.Entry.Revision)
	if err != nil {
		return false, err
	}
	object, err := history.Object(s.stable, t.Entry, template)
	if err != nil {
		return false, err
	}
	got, err := client.Create(ctx, object, metav1.CreateOptions{FieldManager: record.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Another driver made it, or a request whose answer was lost.
		if got, err = client.Get(ctx, object.Name, metav1.GetOptions{}); err == nil && !kept(got, s.stable) {
			err = drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
				"ControllerRevision %s/%s is not Lockstep's, and the history of %s needs its name: delete it", got.Namespace, got.Name, s.key)
		}
	}
	if err != nil {
		return false, fmt.Errorf("create ControllerRevision %s/%s: %w", object.Namespace, object.Name, err)
	}
	return true, a.sawSnapshot(ctx, s, got)
}

// kept says whether a ControllerRevision is in the history of a workload.
func kept(cr *appsv1.ControllerRevision, w *workload) bool {
	return cr.Labels[record.RoleLabel] == record.RoleSnapshot && cr.Labels[record.StableLabel] == w.Name && metav1.IsControlledBy(cr, w)
}

// sawSnapshot waits until the cache has what was written, or something newer.
func (a *applier) sawSnapshot(ctx context.Context, s *seen, wrote *appsv1.ControllerRevision) error {
	return a.until(ctx, func() bool {
		obj, there, err := a.snapshots.informer.GetIndexer().GetByKey(keyOf(wrote).String())
		v, ok := obj.(*snapshotView)
		return err == nil && there && ok && !older(v, wrote)
	}, s.key)
}

// forget deletes an entry, on condition that it is the one that was seen.
func (a *applier) forget(ctx context.Context, s *seen, t plan.Forget) (bool, error) {
	have := a.snapshots.find(s.stable, t.Revision)
	if have == nil {
		return false, nil
	}
	err := a.core.AppsV1().ControllerRevisions(have.Namespace).
		Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete ControllerRevision %s/%s: %w", have.Namespace, have.Name, err)
	}
	return err == nil, a.until(ctx, func() bool {
		now := a.snapshots.find(s.stable, t.Revision)
		return now == nil || now.UID != have.UID
	}, s.key)
}

// template is the one of a revision that is in the spec, or that LWS has.
func (a *applier) template(ctx context.Context, s *seen, revision string) (record.Template, error) {
	if revision == s.Stable.Revision {
		return specTemplate(s.stable), nil
	}
	view := a.caches.revisionNamed(s.stable, revision)
	if view == nil {
		return record.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"there is no ControllerRevision of LeaderWorkerSet %s for revision %s any more", s.key, revision)
	}
	cr, err := a.core.AppsV1().ControllerRevisions(view.Namespace).Get(ctx, view.Name, metav1.GetOptions{})
	if err != nil {
		return record.Template{}, fmt.Errorf("get ControllerRevision %s/%s: %w", view.Namespace, view.Name, err)
	}
	return history.Decode(cr)
}

// specTemplate is the template in the spec.
func specTemplate(w *workload) record.Template {
	return record.Template{LeaderWorkerTemplate: w.Spec.LeaderWorkerTemplate, NetworkConfig: w.Spec.NetworkConfig}
}

// bringBack puts an older template into the spec. A workload that is not held would roll at once, so the same request holds
// it.
func (a *applier) bringBack(ctx context.Context, s *seen, t plan.BringBack) (bool, error) {
	old, err := a.oldTemplate(ctx, s, t.Revision)
	if err != nil {
		return false, err
	}
	if sameTemplate(old, specTemplate(s.stable)) {
		return false, nil // it is there, and LWS is about to record it
	}
	p := newPatch(s.stable, record.RecordAnnotation)
	p.manager = record.UndoManager
	if t.Record != nil {
		rec := *t.Record
		rec.UID = s.stable.UID
		value, err := rec.Encode()
		if err != nil {
			return false, err
		}
		p.annotate(record.RecordAnnotation, value)
		p.takeNotes()
		if hold := record.Hold(); !record.SameRolling(hold, s.Stable.Rolling) {
			p.rolling(hold)
		}
	}
	p.template(old)
	return a.patch(ctx, s.key, p)
}

// oldTemplate is the template of a revision from the history, or from LWS as long as that has it.
func (a *applier) oldTemplate(ctx context.Context, s *seen, revision string) (record.Template, error) {
	v := a.snapshots.find(s.stable, revision)
	if v == nil {
		return a.template(ctx, s, revision)
	}
	cr, err := a.core.AppsV1().ControllerRevisions(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return record.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"ControllerRevision %s/%s with revision %s of LeaderWorkerSet %s was deleted a moment ago", v.Namespace, v.Name, revision, s.key)
	}
	if err != nil {
		return record.Template{}, fmt.Errorf("get ControllerRevision %s/%s: %w", v.Namespace, v.Name, err)
	}
	t, err := history.Template(cr)
	if err != nil {
		return t, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%v", err)
	}
	return t, nil
}
