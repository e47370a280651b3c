// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// The writes of DisaggregatedSets.

// patchSet sends the patch of a set.
func (a *Applier) patchSet(ctx context.Context, key types.NamespacedName, p *patch, raw []byte) (bool, error) {
	got, err := a.dynamic.Resource(observe.SetsResource).Namespace(p.base.Namespace).
		Patch(ctx, p.base.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: p.manager})
	if testFailed(err) {
		err = fmt.Errorf("%w: %w", observe.ErrChanged, err)
	}
	if err != nil {
		return false, fmt.Errorf("patch %s: %w", observe.Object(key), err)
	}
	return true, a.awaitCondition(ctx, func() bool {
		now := a.observer.Disaggregated.Get(key)
		return now == nil || now.UID != got.GetUID() || !isOlder(now, got)
	}, key)
}

func (a *Applier) boundsClient(s *observe.Snapshot) dynamic.ResourceInterface {
	return a.dynamic.Resource(observe.BoundsResource).Namespace(s.Key.Namespace)
}

// setBounds creates or replaces the bounds, on condition that they have not changed since.
func (a *Applier) setBounds(ctx context.Context, s *observe.Snapshot, t plan.SetBounds) (bool, error) {
	if left := s.BoundsObject; left != nil && left.DeletionTimestamp != nil { // another client has deleted them, and they are written again
		return a.dropBoundsFinalizer(ctx, s)
	}
	note := ""
	if t.Bounds.Routes != "" {
		var err error
		if note, err = trafficNote(s); err != nil {
			return false, err
		}
	}
	object, err := observe.BoundsFor(s.Set, t.Bounds, note)
	if err != nil {
		return false, err
	}
	got := object
	if s.BoundsObject == nil {
		got, err = a.boundsClient(s).Create(ctx, object, metav1.CreateOptions{FieldManager: record.FieldManager})
	} else {
		// Both together make the update conflict with any change, and with bounds that were deleted and recreated.
		object.SetUID(s.BoundsObject.UID)
		object.SetResourceVersion(s.BoundsObject.ResourceVersion)
		got, err = a.boundsClient(s).Update(ctx, object, metav1.UpdateOptions{FieldManager: record.FieldManager})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		err = fmt.Errorf("%w: %w", observe.ErrChanged, err)
	}
	if err != nil {
		return false, fmt.Errorf("write the bounds of %s: %w", observe.Object(s.Key), err)
	}
	return true, a.awaitCondition(ctx, func() bool {
		now := a.observer.Disaggregated.Bounds(s.Key)
		return now != nil && (now.UID != got.GetUID() || !isOlder(now, got))
	}, s.Key)
}

// dropBoundsFinalizer removes the driver's finalizer from the bounds of a set, which may be gone.
func (a *Applier) dropBoundsFinalizer(ctx context.Context, s *observe.Snapshot) (bool, error) {
	left := s.BoundsObject
	b := left.Bounds
	// BoundsFor adds the finalizer to bounds that note routes.
	b.Routes = ""
	object, err := observe.BoundsFor(&observe.Set{ObjectMeta: metav1.ObjectMeta{Namespace: left.Namespace, Name: left.Name}}, b, "")
	if err != nil {
		return false, err
	}
	object.SetOwnerReferences(left.OwnerReferences)
	object.SetFinalizers(slices.DeleteFunc(slices.Clone(left.Finalizers), func(f string) bool { return f == record.Finalizer }))
	object.SetUID(left.UID)
	object.SetResourceVersion(left.ResourceVersion)
	_, err = a.boundsClient(s).Update(ctx, object, metav1.UpdateOptions{FieldManager: record.FieldManager})
	if apierrors.IsConflict(err) {
		err = fmt.Errorf("%w: %w", observe.ErrChanged, err)
	}
	return a.awaitDeleted(ctx, s.Key, "the finalizer of the bounds of "+observe.Object(s.Key), err, func() bool {
		now := a.observer.Disaggregated.Bounds(s.Key)
		return now == nil || now.UID != left.UID || now.ResourceVersion != left.ResourceVersion
	})
}

// removeBounds deletes the bounds, if there are any.
func (a *Applier) removeBounds(ctx context.Context, s *observe.Snapshot) error {
	if s.BoundsObject == nil {
		return nil
	}
	// The finalizer would keep the deleted bounds in force until another pass.
	if slices.Contains(s.BoundsObject.Finalizers, record.Finalizer) {
		if _, err := a.dropBoundsFinalizer(ctx, s); err != nil {
			return err
		}
	}
	err := a.boundsClient(s).Delete(ctx, s.BoundsObject.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.BoundsObject.UID}})
	_, err = a.awaitDeleted(ctx, s.Key, "the bounds of "+observe.Object(s.Key), err, func() bool {
		now := a.observer.Disaggregated.Bounds(s.Key)
		return now == nil || now.UID != s.BoundsObject.UID
	})
	return err
}

// scaleChild scales a child. LWS takes a child above its noted number of groups down to it, so the note is raised in the same request.
func (a *Applier) scaleChild(ctx context.Context, s *observe.Snapshot, t plan.ScaleChild) (bool, error) {
	child := s.AddedObjects[t.Name]
	if child == nil {
		return false, nil // the next observation decides
	}
	p := newPatch(child, disaggregated.InitialReplicasAnnotationKey)
	p.add(t.Replicas, "spec", "replicas")
	if noted, err := strconv.Atoi(child.Annotations[disaggregated.InitialReplicasAnnotationKey]); err == nil && noted < t.Replicas {
		p.annotate(disaggregated.InitialReplicasAnnotationKey, strconv.Itoa(t.Replicas))
	}
	return a.patch(ctx, s.Key, p)
}
