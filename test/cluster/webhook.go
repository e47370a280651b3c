// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// webhookTarget is the address of webhooks on this machine, instead of a Service.
type webhookTarget struct {
	// prefix is added to the configuration's name, since several projects use the same names.
	prefix string
	// url is scheme, host and port. The webhooks' paths are kept.
	url string
	// ca is the PEM certificate that the API server trusts for it.
	ca []byte
}

// webhookConfigurations reads controller-gen's manifests.yaml from a directory, applies the JSON patches beside it, and redirects the
// webhooks to the target.
func webhookConfigurations(dir string, target webhookTarget) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(filepath.Join(dir, "manifests.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read webhook manifests: %w", err)
	}
	objects, err := decodeManifest(content)
	if err != nil {
		return nil, err
	}
	var rewritten []*unstructured.Unstructured
	for _, object := range objects {
		object, err := rewriteWebhook(object, dir, target)
		if err != nil {
			return nil, fmt.Errorf("rewrite %s: %w", object.GetKind(), err)
		}
		rewritten = append(rewritten, object)
	}
	return rewritten, nil
}

func rewriteWebhook(object *unstructured.Unstructured, dir string, target webhookTarget) (*unstructured.Unstructured, error) {
	switch kind := object.GetKind(); kind {
	case "MutatingWebhookConfiguration":
		var config admissionv1.MutatingWebhookConfiguration
		if err := patchInto(object, filepath.Join(dir, "mutating-patch.yaml"), &config); err != nil {
			return object, err
		}
		for i := range config.Webhooks {
			target.redirect(&config.Webhooks[i].ClientConfig)
		}
		return target.rename(&config)
	case "ValidatingWebhookConfiguration":
		var config admissionv1.ValidatingWebhookConfiguration
		if err := patchInto(object, filepath.Join(dir, "validating-patch.yaml"), &config); err != nil {
			return object, err
		}
		for i := range config.Webhooks {
			target.redirect(&config.Webhooks[i].ClientConfig)
		}
		return target.rename(&config)
	default:
		return object, fmt.Errorf("%s is not a webhook configuration", kind)
	}
}

// patchInto applies a file of JSON patches, if it exists, and decodes the result.
func patchInto(object *unstructured.Unstructured, patchPath string, into any) error {
	document, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(patchPath)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if err == nil {
		if document, err = applyPatch(document, content); err != nil {
			return fmt.Errorf("patch with %s: %w", patchPath, err)
		}
	}
	return json.Unmarshal(document, into)
}

func applyPatch(document, patchYAML []byte) ([]byte, error) {
	patchJSON, err := yaml.YAMLToJSON(patchYAML)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(patchJSON)
	if err != nil {
		return nil, err
	}
	return patch.Apply(document)
}

// redirect replaces the Service of a webhook by a URL.
func (t webhookTarget) redirect(config *admissionv1.WebhookClientConfig) {
	url := t.url
	if config.Service != nil && config.Service.Path != nil {
		url += *config.Service.Path
	}
	*config = admissionv1.WebhookClientConfig{URL: &url, CABundle: t.ca}
}

func (t webhookTarget) rename(config any) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(config)
	object := &unstructured.Unstructured{Object: content}
	if err != nil {
		return object, err
	}
	object.SetName(t.prefix + object.GetName())
	return object, nil
}
