// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import "context"

// pickerModule has the endpoint picker of the Gateway API Inference Extension, and the CRDs of its version.
func pickerModule(Versions) module {
	const extension = "sigs.k8s.io/gateway-api-inference-extension"
	return module{
		name: "inference", version: "v1.5.0",
		programs:  []program{{"epp", extension + "/cmd/epp"}},
		manifests: []manifests{{extension, []string{inferenceCRDs}}},
	}
}

// inferenceCRDs is the directory of the Inference Extension's CRDs.
const inferenceCRDs = "config/crd/bases"

// WithEndpointPicker builds the endpoint picker of the Inference Extension, for [Cluster.PushEndpointPicker], and installs the
// InferencePool of its version. It needs [WithGatewayAPI] or [WithTraefik], and [WithKubelets].
func WithEndpointPicker() Option { return func(o *options) { o.picker = true } }

// PushEndpointPicker pushes the image of the endpoint picker, and returns its reference.
func (c *Cluster) PushEndpointPicker(ctx context.Context) (string, error) {
	built, err := c.build(ctx, pickerModule)
	if err != nil {
		return "", err
	}
	return c.PushProgram(ctx, "epp:v1.5.0", built.program("epp"))
}
