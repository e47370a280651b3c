// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var lwsComponent = component{
	name: LWS, module: lwsModule, program: "lws",
	install: installLWS,
	command: lwsCommand,
	ready:   lwsReady,
}

var (
	lwsResource = schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}
	setResource = schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsets"}
)

// installLWS applies the CRDs, and the webhook configurations with this cluster's address and certificate.
func installLWS(ctx context.Context, c *Cluster) error {
	built, err := c.build(ctx, lwsModule)
	if err != nil {
		return err
	}
	webhooks, err := webhookConfigurations(built.manifests("config/webhook"), webhookTarget{
		prefix: "lws-", url: "https://" + address(c.port.lwsWebhook), ca: c.ca.PEM,
	})
	if err != nil {
		return err
	}
	for _, object := range webhooks {
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return c.installCRDs(ctx, lwsModule, "config/crd/bases", nil)
}

func lwsCommand(c *Cluster) (command, error) {
	certDir := c.path("lws-webhook")
	if err := c.writeServing("lws-webhook-service.lws-system.svc", certDir); err != nil {
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
