// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/modelservers"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The examples of model servers with Argo Rollouts: a canary of one group, its analysis and its promotion. One server after the other,
// because the nodes have GPUs for one release.
//
// Proves: Examples of model servers, each: without a host, with Argo, with Kruise.
func TestModelServers(t *testing.T) {
	t.Parallel()
	modelservers.InstallCRDs(t, cluster.Shared(t))
	prometheus := modelservers.StartPrometheus(t)
	quick := strings.NewReplacer("http://prometheus.monitoring:9090", prometheus.URL, "initialDelay: 2m", "initialDelay: 1s", "interval: 30s", "interval: 1s")
	for server, metric := range map[string]string{"vllm": "vllm:time_to_first_token", "sglang": "sglang[:_]time_to_first_token", "tensorrt-llm": "nv_inference_request_failure"} {
		t.Run(server, func(t *testing.T) {
			e := newEnv(t)
			e.Name = server
			e.Apply(quick.Replace(modelservers.Manifest(t, "../../examples", server, "argo", e.Namespace)))
			e.awaitPhase("Healthy")
			e.Eventually("the workload is under hold", func(ctx context.Context) error { return suite.Held(e.Workload(ctx)) })
			e.edit("v1") // another image than the example's: the first release
			e.MustRest("v1")
			e.awaitRest("v1")
			if !prometheus.Asked(metric, e.Namespace) {
				t.Errorf("no analysis asked for %s", metric)
			}
			suite.DeleteWorkload(t, e.Cluster, e.Namespace, server)
		})
	}
}
