// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// saveRevision creates or updates a revision of the history.
func (a *Applier) saveRevision(ctx context.Context, s *observe.Snapshot, t plan.SaveRevision) (bool, error) {
	client := a.core.AppsV1().ControllerRevisions(s.Key.Namespace)
	if have := a.observer.History.Find(s, t.Entry.Revision); have != nil {
		patch, err := history.Patch(t.Entry, have)
		if err != nil {
			return false, err
		}
		return a.patchRevision(ctx, have, patch, s.Key)
	}
	template, err := a.Template(s, t.Entry.Revision)
	if err != nil {
		return false, err
	}
	object, err := history.Object(s.StableObject, t.Entry, template)
	if err != nil {
		return false, err
	}
	got, err := client.Create(ctx, object, metav1.CreateOptions{FieldManager: record.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Another driver created it, or a request whose response was lost.
		got, err = client.Get(ctx, object.Name, metav1.GetOptions{})
		if err == nil && !history.Kept(got, s.StableObject) {
			err = drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
				"ControllerRevision %s/%s is not Lockstep's, and the history of %s needs its name: delete it", got.Namespace, got.Name, observe.Object(s.Key))
		}
	}
	if err != nil {
		return false, fmt.Errorf("create ControllerRevision %s/%s: %w", object.Namespace, object.Name, err)
	}
	return true, a.awaitRevision(ctx, got, false, s.Key)
}

// patchRevision sends a merge patch of a revision of the history, and returns once the cache shows it.
func (a *Applier) patchRevision(ctx context.Context, have *observe.HistoryRevision, patch []byte, keys ...types.NamespacedName) (bool, error) {
	got, err := a.core.AppsV1().ControllerRevisions(have.Namespace).
		Patch(ctx, have.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: record.FieldManager})
	if err != nil {
		return false, fmt.Errorf("patch ControllerRevision %s/%s: %w", have.Namespace, have.Name, err)
	}
	return true, a.awaitRevision(ctx, got, true, keys...)
}

// awaitRevision is awaitVersion of a revision of the history.
func (a *Applier) awaitRevision(ctx context.Context, wrote *appsv1.ControllerRevision, gone bool, keys ...types.NamespacedName) error {
	return awaitVersion(ctx, a, cachedHistory, wrote, gone, func() *observe.HistoryRevision { return a.observer.History.Get(observe.KeyOf(wrote)) }, keys...)
}

// deleteRevision deletes a revision of the history, on condition that it is the observed one.
func (a *Applier) deleteRevision(ctx context.Context, s *observe.Snapshot, t plan.DeleteRevision) (bool, error) {
	have := a.observer.History.Find(s, t.Revision)
	if have == nil {
		return false, nil
	}
	err := a.core.AppsV1().ControllerRevisions(have.Namespace).
		Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	return a.awaitDeleted(ctx, s.Key, cachedHistory, "", "ControllerRevision "+have.Namespace+"/"+have.Name, err, func() bool {
		now := a.observer.History.Find(s, t.Revision)
		return now == nil || now.UID != have.UID
	})
}

// Template returns the template of a revision: from the spec, or else from LWS's ControllerRevision or children.
func (a *Applier) Template(s *observe.Snapshot, revision string) (record.Template, error) {
	switch {
	case revision == s.Stable.Revision:
		return s.Template(), nil
	case s.Set != nil:
		return s.ChildrenTemplate(revision)
	}
	return a.observer.Caches.Template(s.StableObject, revision)
}

// restoreTemplate puts an older template into the spec. The same request sets the hold, without which the workload would roll at
// once.
func (a *Applier) restoreTemplate(ctx context.Context, s *observe.Snapshot, t plan.RestoreTemplate) (bool, error) {
	old, err := a.recordedTemplate(ctx, s, t.Revision)
	if err != nil {
		return false, err
	}
	if err := checkRoles(s, t.Revision, old); err != nil {
		return false, err
	}
	if observe.SameTemplate(old, s.Template()) {
		return false, nil // the spec has it, and LWS is about to record it
	}
	p := newPatch(s.StableObject, record.RecordAnnotation)
	// The history names the manager of a template: this one tells an undo from an edit by a user.
	p.manager = record.UndoManager
	if t.Record != nil {
		rec := *t.Record
		rec.UID = s.StableObject.UID
		value, err := rec.Encode()
		if err != nil {
			return false, err
		}
		p.annotate(record.RecordAnnotation, value)
		p.removeNotes()
		if hold := record.Hold(); !record.SameRolling(hold, s.Stable.Rolling) {
			p.setRolling(hold)
		}
	}
	p.setTemplate(old)
	return a.patch(ctx, s.Key, p)
}

// checkRoles refuses a template whose roles are not those in the spec: LWS makes a revision of their names and order, too.
func checkRoles(s *observe.Snapshot, revision string, old record.Template) error {
	names := func(t record.Template) (all []string) {
		for _, role := range t.Roles {
			all = append(all, role.Name)
		}
		return all
	}
	was, is := names(old), names(s.Template())
	if slices.Equal(was, is) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
		"revision %s of %s has the roles %s, and its spec has %s: an undo can't add, remove or reorder roles. Restore the template with kubectl apply or from Git",
		revision, observe.Object(s.Key), strings.Join(was, ", "), strings.Join(is, ", "))
}

// recordedTemplate returns the template of a revision from the history, or from LWS while it has it.
func (a *Applier) recordedTemplate(ctx context.Context, s *observe.Snapshot, revision string) (record.Template, error) {
	v := a.observer.History.Find(s, revision)
	if v == nil {
		return a.Template(s, revision)
	}
	// The cache drops the templates, which would take most of its memory.
	cr, err := a.core.AppsV1().ControllerRevisions(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return record.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"ControllerRevision %s/%s with revision %s of %s has just been deleted", v.Namespace, v.Name, revision, observe.Object(s.Key))
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
