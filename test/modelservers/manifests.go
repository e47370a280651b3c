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
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// Prometheus answers every query with 0, which passes each gate and analysis of the examples. A real Prometheus parses the query first,
// so one that is not PromQL is refused.
type Prometheus struct {
	URL string

	mu      sync.Mutex
	queries []string
}

// StartPrometheus starts it until the test ends.
func StartPrometheus(t testing.TB) *Prometheus {
	t.Helper()
	upstream, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), "127.0.0.1:1")
	require.NoError(t, err)
	t.Cleanup(stop)
	p := &Prometheus{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		parsed, err := http.PostForm(upstream+"/api/v1/query", map[string][]string{"query": {query}})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = parsed.Body.Close() }()
		if parsed.StatusCode != http.StatusOK {
			w.WriteHeader(parsed.StatusCode)
			_, _ = io.Copy(w, parsed.Body)
			return
		}
		p.mu.Lock()
		p.queries = append(p.queries, query)
		p.mu.Unlock()
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1700000000, "0"]}]}}`)
	}))
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Asked reports whether a query contained all these words.
func (p *Prometheus) Asked(words ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.queries, func(query string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(query, word) })
	})
}
