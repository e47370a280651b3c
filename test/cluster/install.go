// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

// InstallKEDA installs KEDA's ScaledObject CRD without a controller. It may be called more than once.
func (c *Cluster) InstallKEDA(ctx context.Context) error {
	return c.installCRDs(ctx, kedaModule, "config/crd/bases", isNamed("scaledobjects.keda.sh"))
}

// InstallBatchRelease installs Kruise's BatchRelease CRD without a controller. It may be called more than once.
func (c *Cluster) InstallBatchRelease(ctx context.Context) error {
	return c.installCRDs(ctx, batchReleaseModule, "config/crd/bases", isNamed("batchreleases.rollouts.kruise.io"))
}

// InstallPrometheusOperator installs the CRDs of the Prometheus operator without the operator. It may be called more than once.
func (c *Cluster) InstallPrometheusOperator(ctx context.Context) error {
	return c.installCRDs(ctx, prometheusOperatorModule, "example/prometheus-operator-crd", nil)
}

func isNamed(name string) func(*unstructured.Unstructured) bool {
	return func(object *unstructured.Unstructured) bool { return object.GetName() == name }
}

// installCRDs applies the objects of a module's directory, or those that wanted accepts, and returns when the API server serves the
// kinds of its CRDs.
func (c *Cluster) installCRDs(ctx context.Context, of func(Versions) module, folder string, wanted func(*unstructured.Unstructured) bool) error {
	built, err := c.build(ctx, of)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests(folder))
	if err != nil {
		return err
	}
	if wanted != nil {
		objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool { return !wanted(object) })
	}
	if len(objects) == 0 {
		return fmt.Errorf("install the kinds of %s: its module has no such CRD", of(c.options.versions))
	}
	g, together := errgroup.WithContext(ctx)
	for _, object := range objects {
		g.Go(func() error {
			if object.GetKind() == crdKind {
				return c.installCRD(together, object)
			}
			return c.applier.apply(together, object, "")
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("install the kinds of %s: %w", of(c.options.versions), err)
	}
	return nil
}

// installCRD applies a CRD and returns when the API server serves its kind in all versions. Before that controllers would fail, and
// polling the CRD's conditions would delay it.
func (c *Cluster) installCRD(ctx context.Context, object *unstructured.Unstructured) error {
	if err := c.applier.apply(ctx, object, ""); err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return fmt.Errorf("decode CRD %s: %w", object.GetName(), err)
	}
	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}
		if err := c.awaitServed(ctx, schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}); err != nil {
			return err
		}
	}
	return nil
}

// awaitServed returns when the API server serves a resource.
func (c *Cluster) awaitServed(ctx context.Context, resource schema.GroupVersionResource) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 25*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = c.serves(ctx, resource)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", resource, errors.Join(err, last))
	}
	return nil
}

// serves returns nil if discovery has a resource and it can be read.
func (c *Cluster) serves(ctx context.Context, resource schema.GroupVersionResource) error {
	found, err := c.kube.Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil {
		return err
	}
	// Another kind of the group may have come first.
	if !slices.ContainsFunc(found.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }) {
		return fmt.Errorf("discovery lacks %s", resource)
	}
	_, err = c.applier.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

const crdKind = "CustomResourceDefinition"

// installGatewayAPI applies the standard channel with its admission policy, and InferencePool v1 without the experimental kinds
// (groups with an x) of the Inference Extension.
func (c *Cluster) installGatewayAPI(ctx context.Context) error {
	if err := c.installCRDs(ctx, gatewayAPIModule, "config/crd/standard", nil); err != nil {
		return err
	}
	inference := gatewayAPIModule
	if c.options.picker {
		inference = pickerModule
	}
	return c.installCRDs(ctx, inference, inferenceCRDs, func(object *unstructured.Unstructured) bool {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		return group == "inference.networking.k8s.io"
	})
}

// WithInstallers builds the programs with which users install, [Cluster.Kubectl] and [Cluster.Helm].
func WithInstallers() Option { return func(o *options) { o.installers = true } }

// Kubectl returns the path of kubectl.
func (c *Cluster) Kubectl(ctx context.Context) (string, error) {
	return c.program(ctx, kubectlModule, "kubectl")
}

// Helm returns the path of Helm.
func (c *Cluster) Helm(ctx context.Context) (string, error) {
	return c.program(ctx, helmModule, "helm")
}

func kubectlModule(Versions) module {
	return module{
		name: "kubectl", version: "v1.36.3",
		programs: []program{{"kubectl", "k8s.io/kubernetes/cmd/kubectl"}},
	}
}

func helmModule(Versions) module {
	return module{
		name: "helm", version: "v4.3.1",
		programs: []program{{"helm", "helm.sh/helm/v4/cmd/helm"}},
	}
}
