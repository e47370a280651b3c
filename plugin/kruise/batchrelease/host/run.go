// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host runs BatchReleases of Kruise Rollouts whose workload is a LeaderWorkerSet or a DisaggregatedSet, in a cluster without
// Kruise's own manager. It is the shell around package batchrelease: whenever a BatchRelease or, by the driver's watch, its workload changes, it
// observes, writes the status, makes the driver's call, and repeats. It uses timers for retries only.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
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
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Run reconciles the BatchReleases of a cluster until ctx ends. It returns an error if Kruise's own manager is installed, or when it is
// installed later.
func Run(ctx context.Context, config *rest.Config, s host.Settings) error {
	if err := alone(ctx, config); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := host.Controller{
		Name: "lockstep-batchrelease",
		API: host.API{
			Kind: v1beta1.GroupVersion.WithKind("BatchRelease"),
			Fix: "the CRD of BatchRelease is not installed: kubectl apply -f https://raw.githubusercontent.com/openkruise/rollouts/v0.6.2/" +
				"config/crd/bases/rollouts.kruise.io_batchreleases.yaml",
		},
		AddToScheme: v1beta1.AddToScheme, Workload: workloadOf,
		Watches: []host.Watch{{Object: rival(), Workload: func(client.Object) client.ObjectKey {
			// Kruise's manager may be installed later, and would panic at the next BatchRelease.
			stop(errRival)
			return client.ObjectKey{}
		}}},
		Cache: map[client.Object]cache.ByObject{rival(): {Field: fields.OneTermEqualSelector("metadata.name", rivalName)}},
		Reconciler: func(m manager.Manager, c client.Client) host.Reconciler {
			return &Reconciler{
				Client: c, Driver: s.Driver, Logger: s.Logger, Events: m.GetEventRecorder("lockstep-batchrelease"),
			}
		},
	}.Run(ctx, config, s)
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errRival) {
		return cause
	}
	return err
}

// workloadOf returns the name of the workload of a BatchRelease that is not over.
func workloadOf(o client.Object) string {
	r, ok := o.(*v1beta1.BatchRelease)
	if !ok || !batchrelease.Supports(r) || batchrelease.Over(r) {
		return ""
	}
	return plugin.NameOf(batchrelease.Workload(r))
}

// rivalName is the webhook configuration that every installation of Kruise's manager has, because the manager needs it to start.
const rivalName = "kruise-rollout-mutating-webhook-configuration"

// errRival is the error of Run if Kruise's manager is installed.
var errRival = errors.New("MutatingWebhookConfiguration " + rivalName + " exists, so Kruise Rollouts' own manager is installed here. " +
	"It panics when it meets a BatchRelease for a LeaderWorkerSet, so this host does not run beside it. Either release through a RolloutTarget " +
	"(lockstep kruise), or remove Kruise's Deployment and its webhook configurations; its CRDs are all that this host needs")

func rival() *metav1.PartialObjectMetadata {
	return host.Metadata(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"})
}

// alone returns errRival if Kruise's manager is installed.
func alone(ctx context.Context, config *rest.Config) error {
	c, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	configurations := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	_, err = c.Resource(configurations).Get(ctx, rivalName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for Kruise Rollouts' manager: %w", err)
	default:
		return errRival
	}
}

const (
	// maxDecisions bounds the decisions for one BatchRelease before others are reconciled.
	maxDecisions = 16
	// fieldManager names this host in managedFields.
	fieldManager = client.FieldOwner("lockstep-batchrelease")
)

// Reconciler reconciles BatchReleases.
type Reconciler struct {
	// Client reads BatchReleases, and writes them.
	Client client.Client
	// Driver releases their workloads.
	Driver host.Driver
	// Logger is required.
	Logger *slog.Logger
	// Events records events on BatchReleases.
	Events events.EventRecorder
}

// Reconcile makes the decisions of one BatchRelease until none is due.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	release := &v1beta1.BatchRelease{}
	if err := r.Client.Get(ctx, req.NamespacedName, release); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) //nolint:wrapcheck // It says verb and object.
	}
	if !batchrelease.Supports(release) {
		// One that named a workload before has this host's finalizer, which Kruise's manager sets on its own, too.
		if release.DeletionTimestamp == nil || !slices.ContainsFunc(release.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == string(fieldManager)
		}) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, r.removeFinalizer(ctx, release)
	}
	again, err := r.run(ctx, release)
	return reconcile.Result{RequeueAfter: again}, err
}

// run makes decisions until none is due. It returns when to go on without an event, 0 if only events count.
func (r *Reconciler) run(ctx context.Context, release *v1beta1.BatchRelease) (again time.Duration, err error) {
	deleted := release.DeletionTimestamp != nil
	if deleted && !controllerutil.ContainsFinalizer(release, batchrelease.Finalizer) {
		return 0, nil
	}
	for range maxDecisions {
		c, quiet, err := r.look(ctx, release)
		switch over := batchrelease.Over(release); {
		case err != nil:
			return 0, err
		case !quiet:
		case over && deleted:
			return 0, r.removeFinalizer(ctx, release)
		case over, c != nil:
			return 0, nil
		default:
			return host.RequeueBlocked, nil // the cache that reports the creation may be ahead of the driver's
		}
	}
	return host.RequeueSoon, nil
}

func (r *Reconciler) removeFinalizer(ctx context.Context, release *v1beta1.BatchRelease) error {
	return host.Patch(ctx, r.Client, release, fieldManager, func(r *v1beta1.BatchRelease) {
		controllerutil.RemoveFinalizer(r, batchrelease.Finalizer)
	})
}

// look makes one decision and applies it: first the status, then the call. It is quiet if there was neither.
func (r *Reconciler) look(ctx context.Context, release *v1beta1.BatchRelease) (c *pb.BatchContext, quiet bool, err error) {
	if !batchrelease.Over(release) { // then it is not needed
		if c, err = host.Look(ctx, r.Driver, &pb.CalculateBatchContextRequest{Workload: batchrelease.Workload(release)}); err != nil {
			return nil, false, err
		}
		// Without the finalizer, a deletion in mid-release would leave a release that has no host. A workload that can't be read has none.
		if !controllerutil.ContainsFinalizer(release, batchrelease.Finalizer) {
			if err := host.Patch(ctx, r.Client, release, fieldManager, func(r *v1beta1.BatchRelease) {
				controllerutil.AddFinalizer(r, batchrelease.Finalizer)
			}); err != nil {
				return nil, false, err
			}
		}
	}
	status, call := batchrelease.Next(release, c, time.Now())
	wrote, err := r.writeStatus(ctx, release, status)
	if err != nil {
		return c, false, err
	}
	if call.Request == nil {
		return c, !wrote, nil
	}
	r.Logger.Info(call.Why, "batchrelease", client.ObjectKeyFromObject(release).String(), "workload", plugin.NameOf(batchrelease.Workload(release)))
	_, err = converge.CallDriver(ctx, r.Driver, call.Request)
	return c, false, err
}

// writeStatus writes the status if it has changed, with the observed resourceVersion as its precondition.
func (r *Reconciler) writeStatus(
	ctx context.Context, release *v1beta1.BatchRelease, status v1beta1.BatchReleaseStatus,
) (wrote bool, err error) {
	if equality.Semantic.DeepEqual(release.Status, status) {
		return false, nil
	}
	was := release.Status
	release.Status = status
	if err := r.Client.Status().Update(ctx, release, fieldManager); err != nil {
		// The next decision has to start from what the API server has.
		release.Status = was
		return false, fmt.Errorf("write status of BatchRelease %s/%s: %w", release.Namespace, release.Name, err)
	}
	if s := status; s.Phase != was.Phase || s.CanaryStatus.CurrentBatch != was.CanaryStatus.CurrentBatch ||
		s.CanaryStatus.CurrentBatchState != was.CanaryStatus.CurrentBatchState {
		r.Logger.Info("state", "batchrelease", client.ObjectKeyFromObject(release).String(), "phase", s.Phase,
			"batch", s.CanaryStatus.CurrentBatch, "batchState", s.CanaryStatus.CurrentBatchState, "message", s.Message)
	}
	if kind, reason, note := batchrelease.Event(was, status); kind != "" {
		r.Events.Eventf(release, nil, kind, reason, "Release", "%s", host.Note(note))
	}
	return true, nil
}

// Report writes the condition.
func (r *Reconciler) Report(ctx context.Context, key client.ObjectKey, reason, message string) error {
	release := &v1beta1.BatchRelease{}
	if err := r.Client.Get(ctx, key, release); err != nil {
		return err //nolint:wrapcheck // It says verb and object.
	}
	_, err := r.writeStatus(ctx, release, batchrelease.Blocked(release, reason, message, time.Now()))
	return err
}
