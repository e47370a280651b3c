// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const webhookManifests = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: first.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-first}}
- name: pods.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-pods}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: first.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate-first}}
`

const webhookPatch = `
- op: add
  path: /webhooks/1/objectSelector
  value: {matchExpressions: [{key: example.com/name, operator: Exists}]}
`

func writeWebhooks(t *testing.T, manifests string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"manifests.yaml": manifests, "mutating-patch.yaml": webhookPatch} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWebhookConfigurations(t *testing.T) {
	target := webhookTarget{prefix: "p-", url: "https://127.0.0.1:1234", ca: []byte("PEM")}
	objects, err := webhookConfigurations(writeWebhooks(t, webhookManifests), target)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 2 {
		t.Fatalf("%d configurations, want 2", len(objects))
	}
	if got := objects[1].GetName(); got != "p-validating-webhook-configuration" {
		t.Errorf("the second is named %q", got)
	}
	var config admissionv1.MutatingWebhookConfiguration
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, &config); err != nil {
		t.Fatal(err)
	}
	if config.Name != "p-mutating-webhook-configuration" {
		t.Errorf("the first is named %q", config.Name)
	}
	for i, path := range []string{"/mutate-first", "/mutate-pods"} {
		client := config.Webhooks[i].ClientConfig
		if client.Service != nil || client.URL == nil || *client.URL != target.url+path || string(client.CABundle) != "PEM" {
			t.Errorf("webhook %d has client config %+v", i, client)
		}
	}
	if config.Webhooks[0].ObjectSelector != nil || config.Webhooks[1].ObjectSelector == nil {
		t.Error("the project's own patch is not applied to the second webhook only")
	}
}

func TestWebhookConfigurationsRefuseOtherKinds(t *testing.T) {
	dir := writeWebhooks(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}")
	if _, err := webhookConfigurations(dir, webhookTarget{}); err == nil {
		t.Error("a ConfigMap was accepted")
	}
}

func TestDecodeManifest(t *testing.T) {
	objects, err := decodeManifest([]byte("---\n# nothing\n---\n{apiVersion: v1, kind: A}\n---\n{apiVersion: v1, kind: B}\n"))
	if err != nil || len(objects) != 2 || objects[0].GetKind() != "A" || objects[1].GetKind() != "B" {
		t.Errorf("got %v, %v", objects, err)
	}
	if _, err := decodeManifest([]byte("a: [")); err == nil {
		t.Error("invalid YAML was accepted")
	}
}
