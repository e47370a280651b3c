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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// The writes of DisaggregatedSets.

// patchSet sends the patch of a set.
func (a *Applier) patchSet(ctx context.Context, key types.NamespacedName, p *patch, raw []byte) (bool, error) {
	got, err := a.dynamic.Resource(observe.SetsResource).Namespace(p.base.Namespace).
		Patch(ctx, p.base.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: p.manager})
	if err != nil {
		return false, fmt.Errorf("patch %s: %w", observe.Object(key), changedIfTestFailed(err))
	}
	return true, awaitVersion(ctx, a, observe.SetsResource.Resource, got, true, func() *observe.Set { return a.observer.Disaggregated.Get(key) }, key)
}

func (a *Applier) boundsClient(s *observe.Snapshot) dynamic.ResourceInterface {
	return a.dynamic.Resource(observe.BoundsResource).Namespace(s.Key.Namespace)
}

// setBounds creates or replaces the bounds, on condition that they have not changed since.
func (a *Applier) setBounds(ctx context.Context, s *observe.Snapshot, t plan.SetBounds) (bool, error) {
	have := s.BoundsObject
	if have != nil && have.DeletionTimestamp != nil { // another client has deleted them, and they are written again
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
	var got *unstructured.Unstructured
	if have == nil {
		got, err = a.boundsClient(s).Create(ctx, object, metav1.CreateOptions{FieldManager: record.FieldManager})
	} else {
		p := boundsPatch(have)
		p.add(object.Object["spec"], "spec")
		p.add(object.GetLabels(), "metadata", "labels")
		p.add(object.GetAnnotations(), "metadata", "annotations")
		p.add(object.GetOwnerReferences(), "metadata", "ownerReferences")
		p.add(object.GetFinalizers(), "metadata", "finalizers")
		got, err = a.patchBounds(ctx, s, p)
	}
	if apierrors.IsAlreadyExists(err) {
		err = fmt.Errorf("%w: %w", observe.ErrChanged, err)
	}
	if err != nil {
		return false, fmt.Errorf("write the bounds of %s: %w", observe.Object(s.Key), err)
	}
	cached := func() *observe.BoundsObject { return a.observer.Disaggregated.Bounds(s.Key) }
	return true, awaitVersion(ctx, a, observe.BoundsResource.Resource, got, have != nil, cached, s.Key)
}

// boundsPatch returns a patch of bounds without changes. It fails after any change, and for bounds that were deleted and recreated.
func boundsPatch(b *observe.BoundsObject) *patch {
	p := &patch{manager: record.FieldManager}
	p.test(b.UID, "metadata", "uid")
	p.test(b.ResourceVersion, "metadata", "resourceVersion")
	return p
}

func (a *Applier) patchBounds(ctx context.Context, s *observe.Snapshot, p *patch) (*unstructured.Unstructured, error) {
	raw, err := p.encode()
	if err != nil {
		return nil, err
	}
	got, err := a.boundsClient(s).Patch(ctx, s.BoundsObject.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: p.manager})
	return got, changedIfTestFailed(err)
}

// dropBoundsFinalizer removes the driver's finalizer and the routes from the bounds of a set. The set may be gone. Bounds that can't be read
// have the finalizer, too, so nothing else of them is written.
func (a *Applier) dropBoundsFinalizer(ctx context.Context, s *observe.Snapshot) (bool, error) {
	left := s.BoundsObject
	p := boundsPatch(left)
	p.add(withoutFinalizer(left.Finalizers), "metadata", "finalizers")
	if _, ok := left.Annotations[record.TrafficAnnotation]; ok {
		p.remove("metadata", "annotations", record.TrafficAnnotation)
	}
	if left.Bounds.Routes != "" {
		p.remove("spec", "routes")
	}
	_, err := a.patchBounds(ctx, s, p)
	return a.awaitDeleted(ctx, s.Key, observe.BoundsResource.Resource, "", "the finalizer of the bounds of "+observe.Object(s.Key), err, func() bool {
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
	// The finalizer of another client may keep them for ever.
	_, err = a.awaitDeleted(ctx, s.Key, observe.BoundsResource.Resource, informer.AnyVersion, "the bounds of "+observe.Object(s.Key), err, func() bool {
		now := a.observer.Disaggregated.Bounds(s.Key)
		return now == nil || now.UID != s.BoundsObject.UID
	})
	return err
}

// scaleChild scales a child.
func (a *Applier) scaleChild(ctx context.Context, s *observe.Snapshot, t plan.ScaleChild) (bool, error) {
	child := s.AddedObjects[t.Name]
	if child == nil {
		return false, nil // the next observation decides
	}
	return a.patch(ctx, s.Key, childPatch(child, t.Replicas))
}

// childPatch scales a child. LWS takes a child above its noted number of groups down to it, so the note is raised in the same request.
func childPatch(child *lws.LeaderWorkerSet, replicas int) *patch {
	p := newPatch(child, disaggregated.InitialReplicasAnnotationKey)
	p.add(replicas, "spec", "replicas")
	if noted, err := strconv.Atoi(child.Annotations[disaggregated.InitialReplicasAnnotationKey]); err == nil && noted < replicas {
		p.annotate(disaggregated.InitialReplicasAnnotationKey, strconv.Itoa(replicas))
	}
	// LWS copies the role's percentages, which could round to 0 for fewer groups. LWS's webhook refuses that.
	if pace := child.Spec.RolloutStrategy.RollingUpdateConfiguration; pace != nil {
		p.setRolling(plan.Pace(*pace, replicas))
	}
	return p
}
