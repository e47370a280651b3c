// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fieldManager is this package's name in managedFields.
const fieldManager = "lockstep-test-cluster"

// applier writes objects of any kind with server-side apply.
type applier struct {
	client  dynamic.Interface
	objects client.Client
}

func newApplier(cfg *rest.Config) (*applier, error) {
	dynamic, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create dynamic client: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.WarningLogger{} // controller-runtime's own needs a logger
	objects, err := client.New(cfg, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return &applier{client: dynamic, objects: objects}, nil
}

// apply applies an object. A namespaced object without a namespace is applied to fallback.
func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured, fallback string) error {
	object = object.DeepCopy() // it becomes the API server's response
	namespaced, err := a.objects.IsObjectNamespaced(object)
	if err == nil {
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(fallback)
		}
		err = a.objects.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(fieldManager), client.ForceOwnership)
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// Apply applies the objects of a YAML stream with server-side apply, in their order. Namespaced objects without a namespace are
// applied to the given one.
func (c *Cluster) Apply(ctx context.Context, namespace string, manifest []byte) error {
	objects, err := decodeManifest(manifest)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := c.applier.apply(ctx, object, namespace); err != nil {
			return err
		}
	}
	return c.applier.awaitRules(ctx, objects)
}

// ApplyConfig is [Cluster.Apply] for what functions of package deploy return.
func (c *Cluster) ApplyConfig(ctx context.Context, namespace string, manifests ...func() ([]byte, error)) error {
	for _, read := range manifests {
		manifest, err := read()
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, namespace, manifest); err != nil {
			return err
		}
	}
	return nil
}

// awaitRules waits until Kubernetes has filled in the rules of aggregated ClusterRoles.
func (a *applier) awaitRules(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if _, aggregated, _ := unstructured.NestedMap(object.Object, "aggregationRule"); !aggregated {
			continue
		}
		var role rbacv1.ClusterRole
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			err := a.objects.Get(ctx, client.ObjectKeyFromObject(object), &role)
			return len(role.Rules) > 0, err
		})
		if err != nil {
			return fmt.Errorf("wait for the rules of ClusterRole %s: %w", object.GetName(), err)
		}
	}
	return nil
}

// decodeManifest decodes a YAML stream. It skips empty documents.
func decodeManifest(content []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decode manifest: %w", err)
		}
		if len(object.Object) > 0 {
			unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp") // controller-gen writes a null
			objects = append(objects, object)
		}
	}
}

// readManifest reads a YAML file.
func readManifest(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	objects, err := decodeManifest(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return objects, nil
}

// readManifests reads all YAML files of a directory, in the order of their names.
func readManifests(dir string) ([]*unstructured.Unstructured, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("find manifests in %s: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		some, err := readManifest(path)
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}
