// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// maxLooks bounds what is done for one BatchRelease before others have their turn.
	maxLooks = 16
	// atOnce is when something is looked at again that has changed since the cache saw it.
	atOnce = 10 * time.Millisecond
	// soon is when something is tried again that needs nobody.
	soon = 500 * time.Millisecond
	// later is when something is tried again that a person must mend.
	later = 30 * time.Second
	// fieldManager is who this host is in managedFields.
	fieldManager = client.FieldOwner("lockstep-batchrelease")
)

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	batchrelease.Driver
	plugin.ContextWatcher
}

var _ Driver = (*plugin.Client)(nil)

// Reconciler runs BatchReleases.
type Reconciler struct {
	// Client reads BatchReleases, and writes them.
	Client client.Client
	// Driver does what they ask for.
	Driver Driver
	// Logger is required.
	Logger *slog.Logger
	// Follow is told which workload to watch. Nil: none.
	Follow func(workload client.ObjectKey)
}

// Reconcile brings one BatchRelease as far as it gets by itself.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	release := &v1beta1.BatchRelease{}
	if err := r.Client.Get(ctx, req.NamespacedName, release); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // It says verb and object.
	}
	if !batchrelease.Supports(release) {
		return reconcile.Result{}, nil
	}
	again, err := r.run(ctx, release)
	if err != nil {
		return r.failed(ctx, release, err)
	}
	if again {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	return reconcile.Result{}, nil
}

// run looks and acts until there is nothing left to be done, and reports whether it stopped before.
func (r *Reconciler) run(ctx context.Context, release *v1beta1.BatchRelease) (again bool, err error) {
	has, deleted := controllerutil.ContainsFinalizer(release, batchrelease.Finalizer), release.DeletionTimestamp != nil
	if deleted && !has {
		return false, nil
	}
	if !has && !batchrelease.Over(release) {
		if err := r.patch(ctx, release, controllerutil.AddFinalizer); err != nil {
			return false, err
		}
	}
	if r.Follow != nil && !batchrelease.Over(release) {
		r.Follow(client.ObjectKey{Namespace: release.Namespace, Name: release.Spec.WorkloadRef.Name})
	}
	for range maxLooks {
		quiet, err := r.look(ctx, release)
		if err != nil {
			return false, err
		}
		if quiet {
			if deleted && batchrelease.Over(release) {
				err = r.patch(ctx, release, controllerutil.RemoveFinalizer)
			}
			return false, err
		}
	}
	return true, nil
}

// patch adds or removes the finalizer.
func (r *Reconciler) patch(ctx context.Context, release *v1beta1.BatchRelease, change func(client.Object, string) bool) error {
	before := release.DeepCopy()
	change(release, batchrelease.Finalizer)
	err := r.Client.Patch(ctx, release, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldManager)
	if err != nil {
		return fmt.Errorf("write the finalizer of BatchRelease %s/%s: %w", release.Namespace, release.Name, err)
	}
	return nil
}

// look makes one decision and carries it out: first the status, then the call. It is quiet if there was neither.
func (r *Reconciler) look(ctx context.Context, release *v1beta1.BatchRelease) (quiet bool, err error) {
	c, err := r.context(ctx, release)
	if err != nil {
		return false, err
	}
	status, call := batchrelease.Next(release, c, time.Now())
	wrote, err := r.writeStatus(ctx, release, status)
	if err != nil {
		return false, err
	}
	if !call.None() {
		r.Logger.Info(call.Why, "batchrelease", client.ObjectKeyFromObject(release).String(), "workload", release.Spec.WorkloadRef.Name)
	}
	if err := call.Do(ctx, r.Driver); err != nil {
		return false, err
	}
	return !wrote && call.None(), nil
}

// context is where the workload stands. Nil: there is none, or it does not matter any more.
func (r *Reconciler) context(ctx context.Context, release *v1beta1.BatchRelease) (*pb.BatchContext, error) {
	if batchrelease.Over(release) {
		return nil, nil //nolint:nilnil // It does not matter.
	}
	answer, err := r.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: batchrelease.Workload(release)})
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return nil, nil //nolint:nilnil // There is none.
	}
	if err != nil {
		return nil, err
	}
	return answer.GetContext(), nil
}

// writeStatus writes the status if it is another. It has the resourceVersion of the last look as its precondition.
func (r *Reconciler) writeStatus(
	ctx context.Context, release *v1beta1.BatchRelease, status v1beta1.BatchReleaseStatus,
) (wrote bool, err error) {
	if equality.Semantic.DeepEqual(release.Status, status) {
		return false, nil
	}
	was := release.Status
	release.Status = status
	if err := r.Client.Status().Update(ctx, release, fieldManager); err != nil {
		release.Status = was
		return false, fmt.Errorf("write status of BatchRelease %s/%s: %w", release.Namespace, release.Name, err)
	}
	if s := status; s.Phase != was.Phase || s.CanaryStatus.CurrentBatch != was.CanaryStatus.CurrentBatch ||
		s.CanaryStatus.CurrentBatchState != was.CanaryStatus.CurrentBatchState {
		r.Logger.Info("state", "batchrelease", client.ObjectKeyFromObject(release).String(), "phase", s.Phase,
			"batch", s.CanaryStatus.CurrentBatch, "batchState", s.CanaryStatus.CurrentBatchState, "message", s.Message)
	}
	return true, nil
}

// failed says what becomes of an error: what passes is tried again soon, what a person must mend is said in the status.
func (r *Reconciler) failed(ctx context.Context, release *v1beta1.BatchRelease, err error) (reconcile.Result, error) {
	reason := plugin.Reason(err)
	switch {
	case ctx.Err() != nil, apierrors.IsNotFound(err):
		return reconcile.Result{}, nil //nolint:nilerr // There is nobody left to tell.
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: atOnce}, nil
	case plugin.Retryable(err), overtaken(reason):
		return reconcile.Result{RequeueAfter: soon}, nil
	case reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return reconcile.Result{}, err // The API server's: tried again with a growing delay.
	}
	r.Logger.Warn("the driver refuses", "batchrelease", client.ObjectKeyFromObject(release).String(), "error", err)
	if _, err := r.writeStatus(ctx, release, batchrelease.Refused(release, err, time.Now())); err != nil && !apierrors.IsConflict(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: later}, nil
}

// overtaken reports whether the driver refused because something has changed since the look.
func overtaken(reason pb.ErrorReason) bool {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
		pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
		return true
	default:
		return false
	}
}
