// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
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
	crds, err := readManifests(built.manifests("config/components/crd/bases"))
	if err != nil {
		return err
	}
	webhooks, err := webhookConfigurations(built.manifests("config/components/webhook"), webhookTarget{
		prefix: "kueue-", url: "https://" + address(c.port.kueueWebhook), ca: c.ca.PEM,
	})
	if err != nil {
		return err
	}
	g, together := errgroup.WithContext(ctx)
	for _, crd := range crds {
		g.Go(func() error {
			if err := c.installCRD(together, crd); err != nil {
				return err
			}
			plural, group, _ := strings.Cut(crd.GetName(), ".")
			return c.awaitServed(together, schema.GroupVersionResource{Group: group, Version: kueueVersion, Resource: plural})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, object := range webhooks {
		if err := keepKueueWebhooks(object); err != nil {
			return err
		}
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return c.Apply(ctx, "", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: kueue-system}}\n"))
}

// keepKueueWebhooks keeps the webhooks of the kinds that the cluster has. Like Kueue's kustomization, it excludes the namespaces of
// the system from those of pods and workloads.
func keepKueueWebhooks(object *unstructured.Unstructured) error {
	all, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return fmt.Errorf("read the webhooks of %s: %w", object.GetName(), err)
	}
	var kept []any
	for _, webhook := range all {
		w, _ := webhook.(map[string]any)
		switch name := fmt.Sprint(w["name"])[1:]; strings.TrimSuffix(name, ".kb.io") {
		case "pod", "statefulset", "leaderworkerset":
			w["namespaceSelector"] = map[string]any{"matchExpressions": []any{map[string]any{
				"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []any{"kube-system", "kueue-system"},
			}}}
			kept = append(kept, w)
		case "clusterqueue", "cohort", "localqueue", "resourceflavor", "workload":
			kept = append(kept, w)
		}
	}
	return unstructured.SetNestedSlice(object.Object, kept, "webhooks")
}

func kueueCommand(c *Cluster) (command, error) {
	serving, err := c.ca.Issue("kueue-webhook-service.kueue-system.svc")
	if err != nil {
		return command{}, err
	}
	certDir := c.path("kueue-webhook")
	if _, err := serving.Write(certDir, "tls"); err != nil {
		return command{}, err
	}
	// The certificate of its metrics has a fixed path, below /etc. It gets that in a mount namespace.
	etc := c.path("kueue-etc")
	if _, err := serving.Write(filepath.Join(etc, "kueue", "metrics", "certs"), "tls"); err != nil {
		return command{}, err
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

// kueueVersion is the version of the API that the manager reads, which is served later than the first one of a CRD.
const kueueVersion = "v1beta2"

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
