// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
)

var lwsComponent = component{
	name: LWS, module: lwsModule, program: "lws",
	install: installLWS,
	command: lwsCommand,
	ready:   lwsReady,
}

var lwsResource = schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}

// installLWS applies the CRDs, and the webhook configurations with this cluster's address and certificate.
func installLWS(ctx context.Context, c *Cluster) error {
	built, err := c.build(ctx, lwsModule)
	if err != nil {
		return err
	}
	crds, err := readManifests(built.manifests("config/crd/bases"))
	if err != nil {
		return err
	}
	webhooks, err := webhookConfigurations(built.manifests("config/webhook"), webhookTarget{
		prefix: "lws-", url: "https://" + address(c.port.lwsWebhook), ca: c.ca.PEM,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, object := range webhooks {
		g.Go(func() error { return c.applier.apply(ctx, object, "") })
	}
	for _, crd := range crds {
		g.Go(func() error { return c.installCRD(ctx, crd) })
	}
	return g.Wait()
}

// installCRD applies a CRD and returns when the API server serves its kind. Before that controllers would fail, and polling the CRD's
// conditions would delay it.
func (c *Cluster) installCRD(ctx context.Context, object *unstructured.Unstructured) error {
	if err := c.applier.apply(ctx, object, ""); err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return fmt.Errorf("decode CRD %s: %w", object.GetName(), err)
	}
	return c.awaitServed(ctx, schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural})
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
	if _, err := c.kube.Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String()); err != nil {
		return err
	}
	_, err := c.applier.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

func lwsCommand(c *Cluster) (command, error) {
	serving, err := c.ca.Issue("lws-webhook-service.lws-system.svc")
	if err != nil {
		return command{}, err
	}
	certDir := c.path("lws-webhook")
	if _, err := serving.Write(certDir, "tls"); err != nil {
		return command{}, err
	}
	config := c.path("lws.yaml")
	content := fmt.Sprintf(lwsConfig, c.port.lwsWebhook, certDir, address(c.port.lwsHealth))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return command{}, err
	}
	return command{args: []string{"--kubeconfig=" + c.path(LWS+".kubeconfig"), "--config=" + config}}, nil
}

const lwsConfig = `apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
health: {healthProbeBindAddress: %q}
metrics: {bindAddress: "0"}
clientConnection: {qps: 1000, burst: 2000}
`

// lwsReady checks for a default that only the webhook sets, so that the API server must call it.
func lwsReady(ctx context.Context, c *Cluster) error {
	// Before the webhook listens, the API server would retry the request, slowly.
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(c.port.lwsWebhook))
	if err != nil {
		return err
	}
	_ = connection.Close()
	probe := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": lwsResource.GroupVersion().String(),
		"kind":       "LeaderWorkerSet",
		"metadata":   map[string]any{"name": "readiness-probe"},
		"spec": map[string]any{"leaderWorkerTemplate": map[string]any{"workerTemplate": map[string]any{
			"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "c"}}},
		}}},
	}}
	// The API server delays a POST to a new CRD by two seconds, but not a server-side apply.
	got, err := c.applier.client.Resource(lwsResource).Namespace(metav1.NamespaceDefault).Apply(ctx, probe.GetName(), probe,
		metav1.ApplyOptions{FieldManager: fieldManager, DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if policy, _, _ := unstructured.NestedString(got.Object, "spec", "networkConfig", "subdomainPolicy"); policy == "" {
		return errors.New("the API server does not call the LWS webhook yet")
	}
	return nil
}
