// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
)

// Settings configure the host.
type Settings = host.Settings

// Options are the arguments of Run.
type Options struct {
	Settings
	// Driver is required.
	Driver Driver
}

const (
	// leaseName is the Lease of the leader.
	leaseName = "lockstep-batchrelease"
	// byWorkload indexes BatchReleases.
	byWorkload = "spec.workloadRef.name"
)

// Run reconciles the BatchReleases of a cluster until ctx ends. It returns an error if Kruise's own manager is installed, or when it is
// installed later.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	releases := host.API{
		Kind: v1beta1.GroupVersion.WithKind("BatchRelease"),
		Fix: "the CRD of BatchRelease is not installed: kubectl apply -f config/crd/bases/rollouts.kruise.io_batchreleases.yaml " +
			"from the sources of Kruise Rollouts v0.6",
	}
	if err := host.Installed(config, releases, host.Workloads()); err != nil {
		return err
	}
	if err := alone(ctx, config); err != nil {
		return err
	}
	m, err := newManager(config, o.Settings)
	if err != nil {
		return err
	}
	if err := m.GetFieldIndexer().IndexField(ctx, &v1beta1.BatchRelease{}, byWorkload, workloadOf); err != nil {
		return fmt.Errorf("index BatchReleases: %w", err)
	}
	r := &Reconciler{Client: m.GetClient(), Driver: o.Driver, Logger: o.Logger, Events: m.GetEventRecorder("lockstep-batchrelease")}
	f := &host.Follower[reconcile.Request]{Driver: o.Driver, Requests: r.releases}
	r.Follow = f.Watch
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := r.register(m, f, func() { stop(errRival) }); err != nil {
		return err
	}
	if err := host.Run(ctx, m, &v1beta1.BatchRelease{}, host.Metadata(host.LeaderWorkerSet), rival()); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, errRival) {
		return err
	}
	return nil
}

func newManager(config *rest.Config, s Settings) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	return host.New(config, s, leaseName, scheme, map[client.Object]cache.ByObject{
		rival(): {Field: fields.OneTermEqualSelector("metadata.name", rivalName)},
	})
}

// workloadOf returns the index's key.
func workloadOf(o client.Object) []string {
	r, ok := o.(*v1beta1.BatchRelease)
	if !ok || !batchrelease.Supports(r) {
		return nil
	}
	return []string{r.Spec.WorkloadRef.Name}
}

// register sets the controller's sources.
func (r *Reconciler) register(m manager.Manager, f source.Source, rivalInstalled func()) error {
	err := builder.ControllerManagedBy(m).Named("batchrelease").
		// No predicate, so also for the host's own writes: a decision from an older status in the cache is repeated with the newest one.
		For(&v1beta1.BatchRelease{}).
		// The driver's watch reports everything but the creation of a workload.
		WatchesMetadata(host.Metadata(host.LeaderWorkerSet), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.releases(ctx, client.ObjectKeyFromObject(o))
		}), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		WatchesMetadata(rival(), handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			rivalInstalled()
			return nil
		})).
		WatchesRawSource(f).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	return nil
}

// releases returns the BatchReleases of one workload that are not over.
func (r *Reconciler) releases(ctx context.Context, workload client.ObjectKey) []reconcile.Request {
	list := &v1beta1.BatchReleaseList{}
	if err := r.Client.List(ctx, list, client.InNamespace(workload.Namespace), client.MatchingFields{byWorkload: workload.Name}); err != nil {
		r.Logger.Warn("list BatchReleases", "workload", workload.String(), "error", err)
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if !batchrelease.Over(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}
