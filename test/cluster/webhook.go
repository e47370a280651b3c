// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// installWebhooks applies the configurations of webhookConfigurations, after an edit of each.
func (c *Cluster) installWebhooks(ctx context.Context, dir string, target webhookTarget, edit func(*unstructured.Unstructured) error) error {
	objects, err := webhookConfigurations(dir, target)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := edit(object); err != nil {
			return err
		}
		if err := c.applier.apply(ctx, object, ""); err != nil {
			return err
		}
	}
	return nil
}

// webhookConfigurations reads controller-gen's manifests.yaml from a directory, applies the JSON patches beside it, and redirects the
// webhooks to the target.
func webhookConfigurations(dir string, target webhookTarget) ([]*unstructured.Unstructured, error) {
	objects, err := readManifest(filepath.Join(dir, "manifests.yaml"))
	if err != nil {
		return nil, err
	}
	patches := map[string]string{"MutatingWebhookConfiguration": "mutating-patch.yaml", "ValidatingWebhookConfiguration": "validating-patch.yaml"}
	for _, object := range objects {
		if err := patchWith(object, filepath.Join(dir, patches[object.GetKind()])); err != nil {
			return nil, fmt.Errorf("patch %s: %w", object.GetKind(), err)
		}
		object.SetName(target.prefix + object.GetName())
		if err := editWebhooks(object, func(webhook map[string]any) bool {
			path, _, _ := unstructured.NestedString(webhook, "clientConfig", "service", "path")
			webhook["clientConfig"] = map[string]any{"url": target.url + path, "caBundle": base64.StdEncoding.EncodeToString(target.ca)}
			return true
		}); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// patchWith applies a file of JSON patches, if it exists.
func patchWith(object *unstructured.Unstructured, path string) error {
	content, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err == nil {
		content, err = yaml.YAMLToJSON(content)
	}
	if err != nil {
		return err
	}
	patch, err := jsonpatch.DecodePatch(content)
	if err != nil {
		return err
	}
	document, err := object.MarshalJSON()
	if err == nil {
		document, err = patch.Apply(document)
	}
	if err != nil {
		return err
	}
	return object.UnmarshalJSON(document)
}

// editWebhooks edits the webhooks of a configuration, and leaves out those for which edit returns false.
func editWebhooks(object *unstructured.Unstructured, edit func(webhook map[string]any) (keep bool)) error {
	all, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return fmt.Errorf("read the webhooks of %s: %w", object.GetName(), err)
	}
	all = slices.DeleteFunc(all, func(webhook any) bool {
		fields, ok := webhook.(map[string]any)
		return !ok || !edit(fields)
	})
	return unstructured.SetNestedSlice(object.Object, all, "webhooks")
}
