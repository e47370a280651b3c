// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	objects, err := decodeManifest(content)
	if err != nil {
		return err
	}
	for _, object := range objects {
		object.SetName(kruisePrefix + object.GetName())
		unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
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
	read := func(name string) ([]*unstructured.Unstructured, error) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		return decodeManifest(content)
	}
	objects, err := read("manifests.yaml")
	if err != nil {
		return err
	}
	patches, err := read("patch_manifests.yaml")
	if err != nil {
		return err
	}
	for _, object := range objects {
		unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
		if object.GetKind() == "MutatingWebhookConfiguration" {
			if object, err = withSelectors(object, patches); err != nil {
				return err
			}
		}
		object.SetName(kruisePrefix + object.GetName())
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return nil
}

// withSelectors adds to each webhook the object selector of the patch for its name.
func withSelectors(object *unstructured.Unstructured, patches []*unstructured.Unstructured) (*unstructured.Unstructured, error) {
	decode := func(object *unstructured.Unstructured) (config admissionv1.MutatingWebhookConfiguration, err error) {
		raw, err := json.Marshal(object.Object)
		if err != nil {
			return config, err
		}
		return config, json.Unmarshal(raw, &config)
	}
	config, err := decode(object)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", object.GetName(), err)
	}
	selectors := map[string]*metav1.LabelSelector{}
	for _, patch := range patches {
		some, err := decode(patch)
		if err != nil {
			return nil, fmt.Errorf("decode the patch of %s: %w", patch.GetName(), err)
		}
		for _, webhook := range some.Webhooks {
			selectors[webhook.Name] = webhook.ObjectSelector
		}
	}
	for i := range config.Webhooks {
		config.Webhooks[i].ObjectSelector = selectors[config.Webhooks[i].Name]
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&config)
	return &unstructured.Unstructured{Object: content}, err
}

// installKruiseKinds applies Kruise's CRDs, those of two versions with the manager's conversion webhook.
func (c *Cluster) installKruiseKinds(ctx context.Context) error {
	built, err := c.build(ctx, kruiseModule)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests("config/crd/bases"))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, object := range objects {
		unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
		if name := object.GetName(); name == "rollouts.rollouts.kruise.io" || name == "batchreleases.rollouts.kruise.io" {
			conversion := map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"clientConfig":             map[string]any{"url": "https://" + address(c.port.kruiseWebhook) + "/convert"},
				"conversionReviewVersions": []any{"v1", "v1beta1"},
			}}
			if err := unstructured.SetNestedMap(object.Object, conversion, "spec", "conversion"); err != nil {
				return err
			}
		}
		g.Go(func() error { return c.installCRD(ctx, object) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("install the kinds of Kruise Rollouts: %w", err)
	}
	return nil
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
	for _, name := range []string{"mutating", "validating"} {
		if err := c.kruiseWebhookIsOurs(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// kruiseWebhookIsOurs returns nil once the manager has written its own address into a webhook configuration.
func (c *Cluster) kruiseWebhookIsOurs(ctx context.Context, kind string) error {
	admission := c.kube.AdmissionregistrationV1()
	name := kruisePrefix + kind + "-webhook-configuration"
	var clients []admissionv1.WebhookClientConfig
	if kind == "mutating" {
		config, err := admission.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, webhook := range config.Webhooks {
			clients = append(clients, webhook.ClientConfig)
		}
	} else {
		config, err := admission.ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, webhook := range config.Webhooks {
			clients = append(clients, webhook.ClientConfig)
		}
	}
	for _, client := range clients {
		if client.URL == nil || len(client.CABundle) == 0 {
			return errors.New("the manager has not written its address into " + name + " yet")
		}
	}
	return nil
}
