// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var kueueComponent = component{
	name: Kueue, module: kueueModule, program: "kueue",
	install: installKueue,
	command: kueueCommand,
	ready: func(ctx context.Context, c *Cluster) error {
		return c.probe(ctx, "http://"+address(c.port.kueueHealth)+"/readyz")
	},
}

// InstallKueue installs Kueue with its CRDs and webhooks, and starts its unmodified manager with the frameworks that concern
// LeaderWorkerSets. Its webhooks then see each pod of the cluster.
func (c *Cluster) InstallKueue(ctx context.Context) error {
	if _, err := c.build(ctx, kueueModule); err != nil { // it may take longer than a start
		return err
	}
	return c.start(ctx, kueueComponent)
}

func installKueue(ctx context.Context, c *Cluster) error {
	built, err := c.build(ctx, kueueModule)
	if err != nil {
		return err
	}
	if err := c.installCRDs(ctx, kueueModule, "config/components/crd/bases", nil); err != nil {
		return err
	}
	target := webhookTarget{prefix: "kueue-", url: "https://" + address(c.port.kueueWebhook), ca: c.ca.PEM}
	if err := c.installWebhooks(ctx, built.manifests("config/components/webhook"), target, keepKueueWebhooks); err != nil {
		return err
	}
	return c.Apply(ctx, "", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: kueue-system}}\n"))
}

// keepKueueWebhooks keeps the webhooks of the kinds that the cluster has. Like Kueue's kustomization, it excludes the namespaces of
// the system from those of pods and workloads.
func keepKueueWebhooks(object *unstructured.Unstructured) error {
	return editWebhooks(object, func(webhook map[string]any) bool {
		switch name := fmt.Sprint(webhook["name"])[1:]; strings.TrimSuffix(name, ".kb.io") {
		case "pod", "statefulset", "leaderworkerset":
			webhook["namespaceSelector"] = map[string]any{"matchExpressions": []any{map[string]any{
				"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []any{"kube-system", "kueue-system"},
			}}}
			return true
		case "clusterqueue", "cohort", "localqueue", "resourceflavor", "workload":
			return true
		}
		return false
	})
}

func kueueCommand(c *Cluster) (command, error) {
	// The certificate of its metrics has a fixed path, below /etc. It gets that in a mount namespace.
	certDir, etc := c.path("kueue-webhook"), c.path("kueue-etc")
	for _, dir := range []string{certDir, filepath.Join(etc, "kueue", "metrics", "certs")} {
		if err := c.writeServing("kueue-webhook-service.kueue-system.svc", dir); err != nil {
			return command{}, err
		}
	}
	config := c.path("kueue.yaml")
	content := fmt.Sprintf(kueueConfig, c.port.kueueWebhook, certDir, address(c.port.kueueHealth))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return command{}, err
	}
	return command{
		args:   []string{"--config=" + config, "--feature-gates=VisibilityOnDemand=false"},
		within: []string{"unshare", "--map-root-user", "--mount", "sh", "-c", `mount --bind "$0" /etc && exec "$@"`, etc},
		env:    []string{"KUBECONFIG=" + c.path(Kueue+".kubeconfig")},
	}, nil
}

const kueueConfig = `apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
health: {healthProbeBindAddress: %q}
metrics: {bindAddress: "0"}
clientConnection: {qps: 1000, burst: 2000}
integrations: {frameworks: [pod, statefulset, leaderworkerset.x-k8s.io/leaderworkerset]}
`

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
	target := webhookTarget{prefix: "lws-", url: "https://" + address(c.port.lwsWebhook), ca: c.ca.PEM}
	if err := c.installWebhooks(ctx, built.manifests("config/webhook"), target, func(*unstructured.Unstructured) error { return nil }); err != nil {
		return err
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
