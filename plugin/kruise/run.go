// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
)

// Run reconciles the RolloutTargets of a cluster until ctx ends.
func Run(ctx context.Context, config *rest.Config, s host.Settings) error {
	targets := host.API{
		Kind: v1alpha1.GroupVersion.WithKind("RolloutTarget"), Fix: "the CRD of RolloutTarget is not installed: kubectl apply -k config/kruise/crd",
	}
	if err := host.Installed(config, targets, host.Workloads()); err != nil {
		return err
	}
	return host.Controller{
		Name: "lockstep-kruise", Object: &v1alpha1.RolloutTarget{}, List: &v1alpha1.RolloutTargetList{},
		AddToScheme: v1alpha1.AddToScheme, Workload: func(o client.Object) string { return workloadOf(o).Name }, IncludeGroups: true,
		Watches: []host.Watch{
			{Object: &v1alpha1.RolloutTarget{}, Workload: workloadOf}, // when one of two targets is deleted, the other takes over
			{Object: host.Metadata(workloadKind), Workload: client.ObjectKeyFromObject},
			{Object: host.Metadata(revisionKind), Workload: func(o client.Object) client.ObjectKey {
				return client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[labelName]}
			}},
		},
		Cache: map[client.Object]cache.ByObject{
			host.Metadata(revisionKind): {Label: labels.SelectorFromSet(labels.Set{labelWorkerIndex: "0"})},
		},
		Reconciler: func(m manager.Manager, follow func(client.ObjectKey)) reconcile.Reconciler {
			return &Reconciler{
				Client: m.GetClient(), Reader: m.GetAPIReader(), Driver: s.Driver, Logger: s.Logger,
				Events: m.GetEventRecorder("lockstep-kruise"), Follow: follow,
			}
		},
	}.Run(ctx, config, s)
}

func workloadOf(o client.Object) client.ObjectKey {
	t, ok := o.(*v1alpha1.RolloutTarget)
	if !ok {
		return client.ObjectKey{}
	}
	return client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name}
}
