// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const crdKind = "CustomResourceDefinition"

// GatewayCRD returns the manifest of a CRD of the Gateway API's standard channel or of the Inference Extension, for tests that install
// it themselves.
func (c *Cluster) GatewayCRD(ctx context.Context, group, plural string) ([]byte, error) {
	built, err := c.build(ctx, gatewayAPIModule)
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{"config/crd/standard", inferenceCRDs} {
		manifest, err := os.ReadFile(filepath.Join(built.manifests(folder), group+"_"+plural+".yaml"))
		if !errors.Is(err, fs.ErrNotExist) {
			return manifest, err
		}
	}
	return nil, fmt.Errorf("the Gateway API %s has no CRD %s.%s", c.Versions().GatewayAPI, plural, group)
}

// installGatewayAPI applies the standard channel with its admission policy, and InferencePool v1 without the experimental kinds
// (groups with an x) of the Inference Extension.
func (c *Cluster) installGatewayAPI(ctx context.Context) error {
	built, err := c.build(ctx, gatewayAPIModule)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests("config/crd/standard"))
	if err != nil {
		return err
	}
	if c.options.picker {
		if built, err = c.build(ctx, pickerModule); err != nil {
			return err
		}
	}
	inference, err := readManifests(built.manifests(inferenceCRDs))
	if err != nil {
		return err
	}
	inference = slices.DeleteFunc(inference, func(object *unstructured.Unstructured) bool {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		return group != "inference.networking.k8s.io"
	})
	g, ctx := errgroup.WithContext(ctx)
	for _, object := range append(objects, inference...) {
		g.Go(func() error {
			if object.GetKind() == crdKind {
				return c.installCRD(ctx, object)
			}
			return c.applier.apply(ctx, object, "")
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("install the Gateway API: %w", err)
	}
	return nil
}
