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
	"strconv"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Kruise Rollouts of a cluster that was started [WithKruise], named as its own kustomization does.
const (
	KruiseNamespace      = "kruise-rollout"
	KruiseServiceAccount = "kruise-rollout-controller-manager"
	// kruisePrefix is the prefix of all names. The manager finds its webhook configurations by these names.
	kruisePrefix = "kruise-rollout-"
)

var kruiseComponent = component{
	name: Kruise, module: kruiseModule, program: "kruise-rollouts",
	install: installKruise,
	command: kruiseCommand,
	ready:   kruiseReady,
}

// installKruise applies Kruise's own kustomization without its Deployment: namespace, service account, the published roles, and the
// webhook configurations. installKruiseKinds applies the CRDs.
func installKruise(ctx context.Context, c *Cluster) error {
	built, err := c.build(ctx, kruiseModule)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}\n---\n"+
		"{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[2]s, namespace: %[1]s}}\n", KruiseNamespace, KruiseServiceAccount)
	if err := c.Apply(ctx, "", []byte(base)); err != nil {
		return err
	}
	for _, name := range []string{"role.yaml", "role_binding.yaml"} {
		if err := c.applyKruiseRights(ctx, built.manifests(filepath.Join("config/rbac", name))); err != nil {
			return err
		}
	}
	if err := c.applyKruiseWebhooks(ctx, built.manifests("config/webhook")); err != nil {
		return err
	}
	cfg, err := c.ServiceAccountConfig(ctx, KruiseNamespace, KruiseServiceAccount)
	if err != nil {
		return err
	}
	return WriteKubeconfig(cfg, c.kruiseKubeconfig())
}

// applyKruiseRights applies roles or bindings with prefix and namespace, as the kustomization does.
func (c *Cluster) applyKruiseRights(ctx context.Context, path string) error {
	objects, err := readManifest(path)
	if err != nil {
		return err
	}
	for _, object := range objects {
		object.SetName(kruisePrefix + object.GetName())
		if ref, ok := object.Object["roleRef"].(map[string]any); ok {
			ref["name"] = kruisePrefix + fmt.Sprint(ref["name"])
			object.Object["subjects"] = []any{map[string]any{
				"kind": rbacv1.ServiceAccountKind, "name": KruiseServiceAccount, "namespace": KruiseNamespace,
			}}
		}
		if object.GetNamespace() != "" {
			object.SetNamespace(KruiseNamespace)
		}
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return nil
}

// applyKruiseWebhooks applies the webhook configurations with the object selectors of the kustomization. At startup the manager
// replaces their Service by its own address.
func (c *Cluster) applyKruiseWebhooks(ctx context.Context, dir string) error {
	objects, err := readManifest(filepath.Join(dir, "manifests.yaml"))
	if err != nil {
		return err
	}
	patches, err := readManifest(filepath.Join(dir, "patch_manifests.yaml"))
	if err != nil {
		return err
	}
	selectors := map[any]any{} // of the mutating webhooks, by name
	for _, patch := range patches {
		if err := editWebhooks(patch, func(webhook map[string]any) bool {
			selectors[webhook["name"]] = webhook["objectSelector"]
			return true
		}); err != nil {
			return err
		}
	}
	for _, object := range objects {
		if err := editWebhooks(object, func(webhook map[string]any) bool {
			if selector := selectors[webhook["name"]]; selector != nil && object.GetKind() == "MutatingWebhookConfiguration" {
				webhook["objectSelector"] = selector
			}
			return true
		}); err != nil {
			return err
		}
		object.SetName(kruisePrefix + object.GetName())
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return nil
}

// installKruiseKinds applies Kruise's CRDs, those of two versions with the manager's conversion webhook.
func (c *Cluster) installKruiseKinds(ctx context.Context) error {
	return c.installCRDs(ctx, kruiseModule, "config/crd/bases", func(crd *unstructured.Unstructured) bool {
		if name := crd.GetName(); name == "rollouts.rollouts.kruise.io" || name == "batchreleases.rollouts.kruise.io" {
			spec, _ := crd.Object["spec"].(map[string]any)
			spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"clientConfig":             map[string]any{"url": "https://" + address(c.port.kruiseWebhook) + "/convert"},
				"conversionReviewVersions": []any{"v1", "v1beta1"},
			}}
		}
		return true
	})
}

// bootKruise starts the manager after the caller's prepare functions.
func (c *Cluster) bootKruise(ctx context.Context) error {
	if err := c.install(ctx, kruiseComponent); err != nil {
		return err
	}
	for _, prepare := range c.options.kruisePrepare {
		if err := prepare(ctx, c); err != nil {
			return fmt.Errorf("prepare %s: %w", Kruise, err)
		}
	}
	return c.run(ctx, kruiseComponent)
}

// kruiseKubeconfig returns the path of a kubeconfig with the token of Kruise's service account.
func (c *Cluster) kruiseKubeconfig() string { return c.path(Kruise + ".kubeconfig") }

func kruiseCommand(c *Cluster) (command, error) {
	certs := c.path("kruise-webhook")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		return command{}, fmt.Errorf("create the directory of the webhook's certificate: %w", err)
	}
	return command{
		args: []string{
			"--kubeconfig=" + c.kruiseKubeconfig(),
			"--filter-workload-type=false",
			"--metrics-bind-address=0",
			"--health-probe-bind-address=" + address(c.port.kruiseHealth),
			"--v=4",
		},
		env: []string{
			"POD_NAMESPACE=" + KruiseNamespace, "KUBERNETES_SERVICE_HOST=",
			"WEBHOOK_HOST=127.0.0.1", "WEBHOOK_PORT=" + strconv.Itoa(c.port.kruiseWebhook), "WEBHOOK_CERT_DIR=" + certs,
		},
	}, nil
}

// kruiseReady checks that the webhook refuses a Rollout without a workload.
func kruiseReady(ctx context.Context, c *Cluster) error {
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(c.port.kruiseWebhook))
	if err != nil {
		return err
	}
	_ = connection.Close()
	// The manager writes its own address into the configurations.
	for _, kind := range []string{"mutating", "validating"} {
		resource := admissionv1.SchemeGroupVersion.WithResource(kind + "webhookconfigurations")
		name := kruisePrefix + kind + "-webhook-configuration"
		config, err := c.applier.client.Resource(resource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		addressed := true
		if err := editWebhooks(config, func(webhook map[string]any) bool {
			client, _ := webhook["clientConfig"].(map[string]any)
			addressed = addressed && client["url"] != nil && client["caBundle"] != nil
			return true
		}); err != nil {
			return err
		}
		if !addressed {
			return errors.New("the manager has not written its address into " + name + " yet")
		}
	}
	return nil
}
