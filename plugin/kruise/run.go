// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
)

// Settings configure the controller.
type Settings = host.Settings

// Options are the arguments of Run.
type Options struct {
	Settings
	// Driver is required.
	Driver Driver
}

// leaseName is the Lease of the leader.
const leaseName = "lockstep-kruise"

// Run reconciles the RolloutTargets of a cluster until ctx ends.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	targets := host.API{
		Kind: v1alpha1.GroupVersion.WithKind("RolloutTarget"), Fix: "the CRD of RolloutTarget is not installed: kubectl apply -k config/kruise/crd",
	}
	if err := host.Installed(config, targets, host.Workloads()); err != nil {
		return err
	}
	m, err := newManager(config, o)
	if err != nil {
		return err
	}
	if err := m.GetFieldIndexer().IndexField(ctx, &v1alpha1.RolloutTarget{}, byWorkload, func(o client.Object) []string {
		t, ok := o.(*v1alpha1.RolloutTarget)
		if !ok {
			return nil
		}
		return []string{t.Spec.WorkloadRef.Name}
	}); err != nil {
		return fmt.Errorf("index RolloutTargets: %w", err)
	}
	r := &Reconciler{Client: m.GetClient(), Reader: m.GetAPIReader(), Driver: o.Driver, Logger: o.Logger, Events: m.GetEventRecorder("lockstep-kruise")}
	f := &host.Follower[reconcile.Request]{Driver: o.Driver, Requests: r.targets, IncludeGroups: true}
	r.Follow = f.Watch
	if err := r.register(m, f); err != nil {
		return err
	}
	return host.Run(ctx, m, &v1alpha1.RolloutTarget{}, host.Metadata(workloadKind), host.Metadata(revisionKind))
}

func newManager(config *rest.Config, o Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	return host.New(config, o.Settings, leaseName, scheme, map[client.Object]cache.ByObject{
		host.Metadata(revisionKind): {Label: labels.SelectorFromSet(labels.Set{labelWorkerIndex: "0"})},
	})
}

// register sets the controller's sources.
func (r *Reconciler) register(m manager.Manager, f source.Source) error {
	err := builder.ControllerManagedBy(m).Named("rollouttarget").
		For(&v1alpha1.RolloutTarget{}).
		// When one of two targets is deleted, the other takes over.
		Watches(&v1alpha1.RolloutTarget{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			t, ok := o.(*v1alpha1.RolloutTarget)
			if !ok {
				return nil
			}
			return r.targets(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name})
		})).
		WatchesMetadata(host.Metadata(workloadKind), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.targets(ctx, client.ObjectKeyFromObject(o))
		})).
		WatchesMetadata(host.Metadata(revisionKind), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.targets(ctx, client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[labelName]})
		})).
		WatchesRawSource(f).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	return nil
}

// targets returns the targets of one workload.
func (r *Reconciler) targets(ctx context.Context, workload client.ObjectKey) []reconcile.Request {
	list := &v1alpha1.RolloutTargetList{}
	if err := r.Client.List(ctx, list, client.InNamespace(workload.Namespace), client.MatchingFields{byWorkload: workload.Name}); err != nil {
		r.Logger.Warn("list RolloutTargets", "workload", workload.String(), "error", err)
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}
