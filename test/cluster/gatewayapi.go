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
	if err := c.installCRDs(ctx, gatewayAPIModule, "config/crd/standard", nil); err != nil {
		return err
	}
	inference := gatewayAPIModule
	if c.options.picker {
		inference = pickerModule
	}
	return c.installCRDs(ctx, inference, inferenceCRDs, func(object *unstructured.Unstructured) bool {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		return group == "inference.networking.k8s.io"
	})
}
