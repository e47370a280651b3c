// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const crdKind = "CustomResourceDefinition"

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
