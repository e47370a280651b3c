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

	"github.com/openkruise/rollouts/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
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
		Name: "lockstep-batchrelease", Object: &v1beta1.BatchRelease{}, List: &v1beta1.BatchReleaseList{},
		API: host.API{
			Kind: v1beta1.GroupVersion.WithKind("BatchRelease"),
			Fix: "the CRD of BatchRelease is not installed: kubectl apply -f config/crd/bases/rollouts.kruise.io_batchreleases.yaml " +
				"from the sources of Kruise Rollouts v0.6",
		},
		AddToScheme: v1beta1.AddToScheme, Workload: workloadOf,
		Watches: []host.Watch{{Object: rival(), Workload: func(client.Object) client.ObjectKey {
			stop(errRival)
			return client.ObjectKey{}
		}}},
		// The driver's watch reports everything but the creation of a workload.
		WorkloadPredicates: []predicate.Predicate{predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}},
		Cache:              map[client.Object]cache.ByObject{rival(): {Field: fields.OneTermEqualSelector("metadata.name", rivalName)}},
		Reconciler: func(m manager.Manager, follow func(client.ObjectKey)) reconcile.Reconciler {
			return &Reconciler{
				Client: m.GetClient(), Driver: s.Driver, Logger: s.Logger, Events: m.GetEventRecorder("lockstep-batchrelease"), Follow: follow,
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
