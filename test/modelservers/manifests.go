// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package modelservers builds the examples of model servers as a user does, and measures their canaries without GPUs.
//
//	modelservers.InstallCRDs(t, c)
//	for _, server := range modelservers.Names() {
//		suite.Apply(t, c, namespace, modelservers.Manifest(t, "../../examples", server, "argo", namespace))
//	}
package modelservers

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Names returns the folders of the servers, which are also the names of their LeaderWorkerSets.
func Names() []string { return []string{"vllm", "sglang", "tensorrt-llm"} }

// Overlays returns the folders of each server: without a host, with Argo Rollouts, with Kruise Rollouts.
func Overlays() []string { return []string{"base", "argo", "kruise"} }

// Build returns what `kustomize build SERVER/OVERLAY` prints in the folder examples, by document.
func Build(examples, server, overlay string) ([]string, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(examples, server, overlay))
	if err != nil {
		return nil, fmt.Errorf("kustomize build: %w", err)
	}
	var documents []string
	for _, resource := range resources.Resources() {
		document, err := resource.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", resource.GetName(), err)
		}
		documents = append(documents, string(document))
	}
	return documents, nil
}

// InstallCRDs installs the kinds of the examples that the test cluster lacks: those of the Prometheus operator, without the operator.
func InstallCRDs(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	require.NoError(t, c.InstallPrometheusOperator(t.Context()))
}

// Manifest returns the objects of an example for a namespace of the test cluster, with the cluster's Gateway in place of the user's.
func Manifest(t testing.TB, examples, server, overlay, namespace string) string {
	t.Helper()
	documents, err := Build(examples, server, overlay)
	require.NoError(t, err)
	gateway := fmt.Sprintf("- name: %s\n    namespace: %s\n", cluster.GatewayName, cluster.GatewayNamespace)
	user := strings.NewReplacer("- name: public\n", gateway, server+".example.com", namespace+".example.com", "namespace: default", "namespace: "+namespace)
	return user.Replace(strings.Join(documents, "---\n"))
}
