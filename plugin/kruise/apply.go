// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// fieldManager names this controller in managedFields.
const fieldManager = client.FieldOwner("lockstep-kruise")

// apply performs one move. A write of the target has the observed resourceVersion as its precondition, and updates v.Target.
func (r *Reconciler) apply(ctx context.Context, v View, m move) error {
	t := v.Target
	switch m.action {
	case actNone:
		return r.writeStatus(ctx, t, m.status)
	case actAddFinalizer:
		return r.patch(ctx, t, func(t *v1alpha1.RolloutTarget) { controllerutil.AddFinalizer(t, Finalizer) })
	case actRemoveFinalizer:
		return r.patch(ctx, t, func(t *v1alpha1.RolloutTarget) { controllerutil.RemoveFinalizer(t, Finalizer) })
	case actMirror:
		return r.patch(ctx, t, func(t *v1alpha1.RolloutTarget) { mirror(v, t) })
	case actScale:
		return r.scale(ctx, t, v.Context.GetReplicas(), m.groups)
	default:
		return r.drive(ctx, v, m.call)
	}
}

// drive calls the driver.
func (r *Reconciler) drive(ctx context.Context, v View, m converge.Move) error {
	if _, begins := m.Request.(*pb.InitializeRequest); begins {
		if err := unfit(contentOf(v.Evidence.Rollout), contentOf(v.Evidence.BatchRelease)); err != nil {
			return err
		}
	}
	_, err := converge.Perform(ctx, r.Driver, m)
	return err
}

// patch writes a change of the target.
func (r *Reconciler) patch(ctx context.Context, t *v1alpha1.RolloutTarget, change func(*v1alpha1.RolloutTarget)) error {
	before := t.DeepCopy()
	change(t)
	// The API server's response replaces t, including its status.
	err := r.Client.Patch(ctx, t, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldManager)
	if err != nil {
		return fmt.Errorf("write RolloutTarget %s/%s: %w", t.Namespace, t.Name, err)
	}
	return nil
}

// writeStatus writes the status if it has changed.
func (r *Reconciler) writeStatus(ctx context.Context, t *v1alpha1.RolloutTarget, status v1alpha1.RolloutTargetStatus) error {
	if equality.Semantic.DeepEqual(t.Status, status) {
		return nil
	}
	was := t.Status
	t.Status = status
	if err := r.Client.Status().Update(ctx, t, fieldManager); err != nil {
		return fmt.Errorf("write status of RolloutTarget %s/%s: %w", t.Namespace, t.Name, err)
	}
	if kind, reason, note := eventOf(was, status); kind != "" {
		r.Events.Eventf(t, nil, kind, reason, "Release", "%s", host.Note(note))
	}
	return nil
}

// scale writes the workload's replicas through its scale subresource, unless they have changed since they were observed, for
// example by an autoscaler.
func (r *Reconciler) scale(ctx context.Context, t *v1alpha1.RolloutTarget, seen, groups int32) error {
	w := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name}}
	w.SetGroupVersionKind(workloadKind)
	body := fmt.Appendf(nil, `[{"op":"test","path":"/spec/replicas","value":%d},{"op":"replace","path":"/spec/replicas","value":%d}]`, seen, groups)
	err := r.Client.SubResource("scale").Patch(ctx, w, client.RawPatch(types.JSONPatchType, body), fieldManager,
		client.WithSubResourceBody(&autoscalingv1.Scale{}))
	if err != nil {
		return fmt.Errorf("scale LeaderWorkerSet %s/%s to %d groups: %w", w.Namespace, w.Name, groups, err)
	}
	return nil
}
