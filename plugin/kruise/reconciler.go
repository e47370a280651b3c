// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kruise lets Kruise Rollouts, unmodified, release LeaderWorkerSets and DisaggregatedSets. A RolloutTarget (package v1alpha1) is a
// StatefulSet-shaped view of one workload: Kruise's Rollout refers to it, Kruise's webhook observes its template, and
// Kruise lowers its partition and reads its status. This package is the controller of RolloutTargets, a host of the driver's
// contract with style Partition, or Canary for a DisaggregatedSet, which has no partition.
//
// # How it works
//
// The [Reconciler] observes (target, workload, the driver's BatchContext), a pure function decides the next move, the Reconciler
// performs it, and observes again. It keeps no state between two observations.
//
//   - The workload is adopted, so that an edit of its template updates no group.
//   - The Reconciler fills in what Kruise reads of a StatefulSet's spec. A new template of the workload changes the
//     target's, and is not released before: Kruise's webhook raises the partition in that same request.
//   - A partition below the number of groups begins a release, and is its target. No partition, or 0 while no Rollout is in
//     progress on the target, promotes it.
//   - A target that is deleted in mid-release has the release rolled back or promoted, as its onDeletion says.
//   - When the workload gets the stable template again, the driver rolls back by itself.
//   - status.observedGeneration is updated only after all of this, together with the rest of the status: until then Kruise
//     waits.
package kruise

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// maxMoves bounds the moves for one target before others are reconciled. Beginning a release takes 3.
const maxMoves = 8

// Reconciler reconciles RolloutTargets.
type Reconciler struct {
	// Client reads from caches, Reader from the API server.
	Client client.Client
	Reader client.Reader
	// Driver releases the workloads.
	Driver host.Driver
	// Logger is required.
	Logger *slog.Logger
	// Events records events on targets.
	Events events.EventRecorder
}

// Reconcile performs the moves of one target.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	t := &v1alpha1.RolloutTarget{}
	if err := r.Client.Get(ctx, req.NamespacedName, t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // It says verb and object.
	}
	for range maxMoves {
		v, err := r.observe(ctx, t)
		m := move{}
		if err == nil {
			m = planMove(v)
			if m.action != actNone {
				r.Logger.Info(m.why, "target", req.String(), "workload", nameOf(t))
			}
			err = r.apply(ctx, v, m)
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		switch {
		case m.action == actNone && v.Workload != nil && v.Context == nil:
			return reconcile.Result{RequeueAfter: host.RequeueSoon}, nil // the driver's cache lags behind this one
		case m.action == actNone && v.needsEvidence():
			return reconcile.Result{RequeueAfter: host.RequeueBlocked}, nil // no watch reports the objects of Kruise that it waits for
		case m.action == actNone, m.action == actRemoveFinalizer:
			return reconcile.Result{}, nil
		}
	}
	return reconcile.Result{RequeueAfter: host.RequeueSoon}, nil
}

// Report writes the condition.
func (r *Reconciler) Report(ctx context.Context, target client.ObjectKey, reason, message string) error {
	// A write that failed has left its change in the target that was reconciled.
	t := &v1alpha1.RolloutTarget{}
	if err := r.Client.Get(ctx, target, t); err != nil {
		return err //nolint:wrapcheck // It says verb and object.
	}
	s := t.Status.DeepCopy()
	setReady(s, t, metav1.ConditionFalse, reason, message)
	return r.writeStatus(ctx, t, *s)
}

// Run reconciles the RolloutTargets of a cluster until ctx ends.
func Run(ctx context.Context, config *rest.Config, s host.Settings) error {
	return host.Controller{
		Name: "lockstep-kruise",
		API: host.API{
			Kind: targetKind, Fix: "the CRD of RolloutTarget is not installed: kubectl apply -k config/kruise/crd",
		},
		AddToScheme: v1alpha1.AddToScheme, Workload: func(o client.Object) string { return workloadOf(o).Name }, IncludeGroups: true,
		Watches: []host.Watch{
			{Object: host.Object(targetKind), Workload: workloadOf}, // when one of two targets is deleted, the other takes over
			{Object: host.Metadata(revisionKind), Workload: workloadOfRevision},
		},
		Cache: map[client.Object]cache.ByObject{
			host.Metadata(revisionKind): {Label: labels.SelectorFromSet(labels.Set{labelWorkerIndex: "0"})},
		},
		Reconciler: func(m manager.Manager, c client.Client) host.Reconciler {
			return &Reconciler{
				Client: c, Reader: m.GetAPIReader(), Driver: s.Driver, Logger: s.Logger,
				Events: m.GetEventRecorder("lockstep-kruise"),
			}
		},
	}.Run(ctx, config, s)
}

func workloadOf(o client.Object) client.ObjectKey {
	t, ok := o.(*v1alpha1.RolloutTarget)
	if !ok {
		return client.ObjectKey{}
	}
	return client.ObjectKey{Namespace: t.Namespace, Name: nameOf(t)}
}

// workloadOfRevision returns the workload of a ControllerRevision of leaders.
func workloadOfRevision(o client.Object) client.ObjectKey {
	ref := &pb.WorkloadRef{Name: o.GetLabels()[labelName]}
	if set := o.GetLabels()[labelSet]; set != "" {
		ref = &pb.WorkloadRef{Name: set, Kind: plugin.KindDisaggregatedSet}
	}
	return client.ObjectKey{Namespace: o.GetNamespace(), Name: plugin.NameOf(ref)}
}

// fieldManager names this controller in managedFields.
const fieldManager = client.FieldOwner("lockstep-kruise")

// apply performs one move. A write of the target has the observed resourceVersion as its precondition, and updates v.Target.
func (r *Reconciler) apply(ctx context.Context, v View, m move) error {
	t := v.Target
	switch m.action {
	case actNone:
		return r.writeStatus(ctx, t, m.status)
	case actAddFinalizer:
		return host.Patch(ctx, r.Client, t, fieldManager, func(t *v1alpha1.RolloutTarget) { controllerutil.AddFinalizer(t, Finalizer) })
	case actRemoveFinalizer:
		return host.Patch(ctx, r.Client, t, fieldManager, func(t *v1alpha1.RolloutTarget) { controllerutil.RemoveFinalizer(t, Finalizer) })
	case actMirror:
		return host.Patch(ctx, r.Client, t, fieldManager, func(t *v1alpha1.RolloutTarget) { copyWorkload(v, t) })
	default:
		return r.drive(ctx, v, m.call)
	}
}

// drive calls the driver.
func (r *Reconciler) drive(ctx context.Context, v View, m converge.Move) error {
	// A release in flight continues, whatever its Rollout says by now.
	if _, begins := m.Request.(*pb.InitializeRequest); begins {
		if err := refusalOf(v.Evidence.Rollout, v.Evidence.BatchRelease); err != nil {
			return err
		}
	}
	_, err := converge.CallDriver(ctx, r.Driver, m.Request)
	return err
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
