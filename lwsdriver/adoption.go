// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// How a second set becomes the workload. Which name it is known by then is in known.go.

// applyAdoption is apply for what an adoption alone writes.
func (a *applier) applyAdoption(ctx context.Context, s *seen, action plan.Action) (wrote bool, err error) {
	switch t := action.(type) {
	case plan.PassHistory:
		return a.passHistory(ctx, s, t)
	case plan.HandOver:
		return a.handOver(ctx, s, t)
	case plan.DeleteStable:
		return a.deleteStable(ctx, s)
	default:
		return false, fmt.Errorf("apply %T: unknown action", action)
	}
}

// passHistory makes a snapshot the successor's: its history, and garbage collection's.
func (a *applier) passHistory(ctx context.Context, s *seen, t plan.PassHistory) (bool, error) {
	have, to := a.snapshots.find(s.stable, t.Revision), s.added[t.To]
	if have == nil || to == nil {
		return false, nil // the next look tells
	}
	owner := metav1.NewControllerRef(to, lws.GroupVersion.WithKind(kind))
	owner.BlockOwnerDeletion = nil // it holds nobody's deletion up
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": have.UID, "resourceVersion": have.ResourceVersion,
		"labels":          map[string]string{record.StableLabel: to.Name},
		"ownerReferences": []metav1.OwnerReference{*owner},
	}})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	got, err := a.core.AppsV1().ControllerRevisions(have.Namespace).
		Patch(ctx, have.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: record.FieldManager})
	if err != nil {
		return false, fmt.Errorf("patch ControllerRevision %s/%s: %w", have.Namespace, have.Name, err)
	}
	return true, a.until(ctx, func() bool {
		obj, there, err := a.snapshots.informer.GetIndexer().GetByKey(keyOf(got).String())
		v, ok := obj.(*snapshotView)
		return err == nil && (!there || ok && !older(v, got))
	}, s.key, keyOf(to))
}

// handOver makes the second set a held workload, in one request: what protected it and tied it to the other one goes, and
// the record comes.
func (a *applier) handOver(ctx context.Context, s *seen, t plan.HandOver) (bool, error) {
	w := s.added[t.Name]
	if w == nil {
		return false, nil // the next look tells
	}
	t.Record.UID = w.UID
	value, err := t.Record.Encode()
	if err != nil {
		return false, err
	}
	p := newPatch(w, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, value)
	p.annotate(record.TargetAnnotation, "")
	p.annotate(record.TrafficAnnotation, "")
	if limit, ok := s.stable.Annotations[record.HistoryLimitAnnotation]; ok {
		p.add(limit, "metadata", "annotations", record.HistoryLimitAnnotation)
	}
	for _, label := range ourLabels(w) {
		p.unlabel(label)
	}
	p.add(t.Record.Workload, "metadata", "labels", record.WorkloadLabel)
	p.test(w.Finalizers, "metadata", "finalizers")
	p.add(slices.DeleteFunc(slices.Clone(w.Finalizers), func(f string) bool { return f == record.Finalizer }), "metadata", "finalizers")
	p.test(w.OwnerReferences, "metadata", "ownerReferences")
	p.add(slices.DeleteFunc(slices.Clone(w.OwnerReferences), func(o metav1.OwnerReference) bool { return o.UID == s.stable.UID }),
		"metadata", "ownerReferences")
	p.rolling(record.Hold())
	if have, want := specTemplate(w), specTemplate(s.stable); !sameTemplate(have, want) {
		p.template(want)
	}
	return a.patch(ctx, s.key, p)
}

// sameTemplate says whether LWS makes one revision of both.
func sameTemplate(a, b record.Template) bool {
	one, errOne := digestOf(a.LeaderWorkerTemplate, a.NetworkConfig)
	two, errTwo := digestOf(b.LeaderWorkerTemplate, b.NetworkConfig)
	return errOne == nil && errTwo == nil && one == two
}

// tellAdoption tells people, on the object that is the workload from now on, and that its release is about to be over.
func (d *Driver) tellAdoption(s *seen, action plan.Action) {
	a, ok := action.(plan.HandOver)
	if !ok || s.added[a.Name] == nil {
		return
	}
	w, r := s.added[a.Name], a.Record.Release
	d.events.exchange(keyOf(w), announced{uid: w.UID, release: r.ID, revision: r.UpdateRevision, state: pb.State_STATE_PROMOTING})
	d.events.recorder.Eventf(reference(w), nil, corev1.EventTypeNormal, "Adopted", "Release",
		"release %s: %s serves in place of %s, which goes; requests may go on to name %s", r.ID, a.Name, s.key.Name, a.Record.Workload)
}

// deleteStable deletes the user's own object, which has passed everything on.
func (a *applier) deleteStable(ctx context.Context, s *seen) (bool, error) {
	w := s.stable
	err := a.client.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Delete(ctx, w.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &w.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete LeaderWorkerSet %s: %w", s.key, err)
	}
	return err == nil, a.until(ctx, func() bool {
		now := a.caches.workload(s.key)
		return now == nil || now.UID != w.UID || now.DeletionTimestamp != nil
	}, s.key)
}
