package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager is who we are in managedFields.
const fieldManager = "lockstep-test-cluster"

// applier writes objects of any kind with server-side apply.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(cfg *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create dynamic client: %w", err)
	}
	discovery, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create discovery client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	return &applier{client: client, mapper: mapper}, nil
}

// apply writes one object. A namespaced object goes to its own namespace, or to fallback if it names none.
func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured, fallback string) error {
	resource, err := a.resource(object, fallback)
	if err == nil {
		_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func (a *applier) resource(object *unstructured.Unstructured, fallback string) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		// The kind may be newer than what we know of the API server.
		a.mapper.Reset()
		mapping, err = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	resource := a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return resource, nil
	}
	if namespace := object.GetNamespace(); namespace != "" {
		return resource.Namespace(namespace), nil
	}
	return resource.Namespace(fallback), nil
}

// Apply writes the objects of a YAML stream with server-side apply, in their order. Objects that name no namespace go to
// the given one.
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
	return nil
}

// decodeManifest reads a YAML stream; empty documents are skipped.
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
			objects = append(objects, object)
		}
	}
}

// readManifests reads all YAML files of a folder, in the order of their names.
func readManifests(dir string) ([]*unstructured.Unstructured, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("find manifests in %s: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		some, err := decodeManifest(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}
