// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/vllm"
)

// The published analysis compares canary and stable groups by their revisions, which are annotations of the Rollout: it passes, and it
// fails for a canary that is slow, and for one whose requests fail.
//
// Proves: Argo: analysis by revision with a real Prometheus; notification at the end.
func TestAnalysisByRevision(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	m := vllm.NewMetrics(func(ctx context.Context) ([]corev1.Pod, error) { return e.Pods(ctx, "") })
	target := httptest.NewServer(m)
	t.Cleanup(target.Close)
	url, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), strings.TrimPrefix(target.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(stop)
	e.Apply(exampleFile(t, "workload.yaml"))
	quick := strings.NewReplacer("http://prometheus.monitoring:9090", url, "initialDelay: 2m", "initialDelay: 10s", "interval: 30s", "interval: 1s", "[2m]", "[10s]")
	e.Apply(quick.Replace(withService(e, exampleFile(t, "vllm/argo/analysis.yaml")+"---\n"+exampleFile(t, "vllm/argo/rollout.yaml"))))
	e.awaitRest("v1")

	m.Slow.Store(true)
	e.edit("v2")
	e.awaitAborted("v1")
	m.Slow.Store(false)
	m.Failing.Store(true)
	e.argo("retry", "rollout", name)
	e.awaitStep(0)
	e.awaitAborted("v1")
	m.Failing.Store(false)
	e.argo("retry", "rollout", name)
	e.MustRest("v2")
	e.awaitRest("v2")
	e.Eventually("the annotations say that all groups run the new revision", func(ctx context.Context) error {
		ro := e.get(ctx)
		canary, stable := ro.Annotations["lockstep.dev/canary-revision"], ro.Annotations["lockstep.dev/stable-revision"]
		if canary == "" || canary != stable || stable == m.First() {
			return fmt.Errorf("the canary's revision is %q, the stable one %q, the first one %q", canary, stable, m.First())
		}
		return nil
	})
}
