// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Kinds of other projects.
var revisionKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ControllerRevision"}

// observe returns everything that a decision needs. It writes nothing.
func (r *Reconciler) observe(ctx context.Context, t *v1alpha1.RolloutTarget) (View, error) {
	v := View{Target: t}
	others := &v1alpha1.RolloutTargetList{}
	name := nameOf(t)
	if err := r.Client.List(ctx, others, client.InNamespace(t.Namespace), client.MatchingFields{host.ByWorkload: name}); err != nil {
		return v, fmt.Errorf("list RolloutTargets of %s: %w", name, err)
	}
	v.Rival, v.Successor = rivals(t, others.Items)
	if v.Rival != "" {
		return v, nil
	}
	var err error
	if v.Workload, err = r.workload(ctx, t); err != nil || v.Workload == nil {
		return v, err
	}
	answer, err := r.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: refOf(t), IncludeGroups: true})
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		v.Workload = nil
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.Context = answer.GetContext()
	if v.Revisions, err = r.revisions(ctx, t, entryRole(v.Context)); err != nil {
		return v, err
	}
	if t.DeletionTimestamp == nil && v.depends() {
		v.Evidence, err = r.evidence(ctx, t)
	}
	return v, err
}

// rivals returns the oldest target of the workload if that is not t, and whether there is a younger one than t.
func rivals(t *v1alpha1.RolloutTarget, all []v1alpha1.RolloutTarget) (before string, after bool) {
	for i := range all {
		o := &all[i]
		switch {
		case o.Name == t.Name, o.DeletionTimestamp != nil:
		case t.DeletionTimestamp == nil && older(o, t):
			before = o.Name
		default:
			after = true
		}
	}
	return before, after
}

func older(a, b *v1alpha1.RolloutTarget) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// workload reads the workload's metadata. Nil means that it does not exist.
func (r *Reconciler) workload(ctx context.Context, t *v1alpha1.RolloutTarget) (*Workload, error) {
	kind := host.LeaderWorkerSet
	if isSet(t) {
		kind = host.DisaggregatedSet
	}
	w := host.Metadata(kind)
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name}, w)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // It does not exist.
	}
	if err != nil {
		return nil, fmt.Errorf("read %s in namespace %s: %w", objectOf(t), t.Namespace, err)
	}
	return &Workload{Deleting: w.DeletionTimestamp != nil, RolloutID: w.Labels[labelRolloutID]}, nil
}

// revisions reads the leader StatefulSet's ControllerRevisions, which have the labels of the pods' template. If the StatefulSet has
// several for one template, as after an upgrade of LWS, new pods get the newest. Of a DisaggregatedSet the StatefulSets of its entry
// role's children count.
func (r *Reconciler) revisions(ctx context.Context, t *v1alpha1.RolloutTarget, entry string) (map[string]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(revisionKind)
	if err := r.Client.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(leaders(t, entry).MatchLabels)); err != nil {
		return nil, fmt.Errorf("list ControllerRevisions of %s/%s: %w", t.Namespace, nameOf(t), err)
	}
	label := labelRevision
	if isSet(t) {
		label = labelSetRevision
	}
	out, at := map[string]string{}, map[string]metav1.Time{}
	for i := range list.Items {
		o := &list.Items[i]
		if c := metav1.GetControllerOf(o); c == nil || c.Kind != "StatefulSet" || c.Name != o.Labels[labelName] {
			continue
		}
		revision, last := o.Labels[label], at[o.Labels[label]]
		if out[revision] == "" || last.Before(&o.CreationTimestamp) {
			out[revision], at[revision] = o.Name, o.CreationTimestamp
		}
	}
	return out, nil
}

func refOf(t *v1alpha1.RolloutTarget) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name, Kind: t.Spec.WorkloadRef.Kind}
}

// isSet reports whether the workload is a DisaggregatedSet.
func isSet(t *v1alpha1.RolloutTarget) bool {
	return t.Spec.WorkloadRef.Kind == plugin.KindDisaggregatedSet
}

// nameOf returns the name of the workload as commands take it, objectOf its kind and name, for messages.
func nameOf(t *v1alpha1.RolloutTarget) string   { return plugin.NameOf(refOf(t)) }
func objectOf(t *v1alpha1.RolloutTarget) string { return plugin.ObjectOf(refOf(t)) }

// entryRole returns the role of a DisaggregatedSet that receives requests, "" for a LeaderWorkerSet.
func entryRole(c *pb.BatchContext) string {
	if len(c.GetRoles()) == 0 {
		return ""
	}
	return c.GetRoles()[0].GetName()
}
