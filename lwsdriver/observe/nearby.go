// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Nearby are the caches of the ResourceQuotas, PodDisruptionBudgets and Services around workloads, by which releases are judged
// before they begin. No decision of a running release depends on them, so a change that is milliseconds old may be missed.
type Nearby struct {
	quotas, budgets, services *informer.Informer
}

func (o *Observer) newNearby() *Nearby {
	core := o.config.Core
	of := func(source *informer.Source, example runtime.Object, transform cache.TransformFunc) *informer.Informer {
		return informer.New(informer.Config{
			Source: source, Example: example, Transform: transform, Changed: o.allChanged,
			Indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			// The usage in a quota changes with every pod. The next call that judges a release reads it.
			Handler: informer.OnChange(func(_, _ metav1.Object) {}),
		})
	}
	return &Nearby{
		quotas: of(informer.NewSource(corev1.SchemeGroupVersion.WithResource("resourcequotas"), core,
			core.CoreV1().ResourceQuotas(o.config.Namespace), ""), &corev1.ResourceQuota{}, informer.Transform(stripMetadata)),
		budgets: of(informer.NewSource(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), core,
			core.PolicyV1().PodDisruptionBudgets(o.config.Namespace), ""), &policyv1.PodDisruptionBudget{}, informer.Transform(stripBudget)),
		services: o.Router.Cache(traffic.KindService),
	}
}

func (n *Nearby) informers() []*informer.Informer {
	return []*informer.Informer{n.quotas, n.budgets, n.services}
}

// Start has the caches filled and kept. The first call that judges a release does so: until then the driver requests none of
// these objects.
func (n *Nearby) Start() {
	for _, i := range n.informers() {
		i.Start()
	}
}

// Pending reports whether a cache is still being filled, and nothing is known to prevent it.
func (n *Nearby) Pending() bool {
	return slices.ContainsFunc(n.informers(), (*informer.Informer).Pending)
}

// Quotas returns the ResourceQuotas of a namespace by name, or why they can't be read.
func (n *Nearby) Quotas(namespace string) ([]*corev1.ResourceQuota, error) {
	return listIn[*corev1.ResourceQuota](n.quotas, namespace)
}

// Budgets returns the PodDisruptionBudgets of a namespace by name, or why they can't be read.
func (n *Nearby) Budgets(namespace string) ([]*policyv1.PodDisruptionBudget, error) {
	for _, large := range informer.List[*metav1.PartialObjectMetadata](n.budgets, cache.NamespaceIndex, namespace) {
		return nil, fmt.Errorf("PodDisruptionBudget %s is larger than %d KiB", large.Name, maxBudget>>10)
	}
	return listIn[*policyv1.PodDisruptionBudget](n.budgets, namespace)
}

// Services returns the Services of a namespace by name, or why they can't be read.
func (n *Nearby) Services(namespace string) ([]*corev1.Service, error) {
	return listIn[*corev1.Service](n.services, namespace)
}

func listIn[T metav1.Object](i *informer.Informer, namespace string) ([]T, error) {
	if err := i.Err(); err != nil {
		return nil, err
	}
	all := informer.List[T](i, cache.NamespaceIndex, namespace)
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all, nil
}

// stripMetadata is a transform that keeps the name and the version.
func stripMetadata(o metav1.Object) metav1.Object {
	o.SetManagedFields(nil)
	o.SetLabels(nil)
	o.SetAnnotations(nil)
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	return o
}

// maxBudget is the size above which only the name of a PodDisruptionBudget is kept: any editor of a namespace may create large ones.
const maxBudget = 16 << 10

// stripBudget is a transform.
func stripBudget(b *policyv1.PodDisruptionBudget) metav1.Object {
	stripMetadata(b)
	b.Status = policyv1.PodDisruptionBudgetStatus{ExpectedPods: b.Status.ExpectedPods}
	if b.Size() > maxBudget {
		return &metav1.PartialObjectMetadata{ObjectMeta: b.ObjectMeta}
	}
	return b
}
