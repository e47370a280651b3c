// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/vllm"
)

// metric serves a metric and creates the AnalysisTemplate that reads it.
func (e *env) metric() *atomic.Int64 {
	e.T.Helper()
	figure := &atomic.Int64{}
	figure.Store(100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, fmt.Sprintf(`{"success": %d}`, figure.Load()))
	}))
	e.T.Cleanup(server.Close)
	e.Apply(fmt.Sprintf(`
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: success}
spec:
  metrics:
  - name: success
    interval: 1s
    count: 3
    successCondition: result >= 95
    failureLimit: 1
    provider: {web: {url: %q, jsonPath: "{$.success}"}}
`, server.URL))
	return figure
}

const analysis = "- analysis: {templates: [{templateName: success}]}\n"

// A failed analysis aborts the Rollout, and the workload returns to the stable revision.
//
// Proves (test): Argo: deletion; analysis; the controller is killed in each phase.
func TestAnalysisFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	figure := e.metric()
	e.deploy(slow())
	e.rollout(step("upgrade: 25%") + analysis + step("upgrade: 100%") + step("promote: true"))
	e.awaitRest("v1")
	before := e.Identities()
	figure.Store(10)
	e.edit("v2")
	e.awaitAborted("v1")
	e.same(before)
	figure.Store(100)
	e.argo("retry", "rollout", name)
	e.MustRest("v2")
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
}

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

// The published trigger of Argo's notifications says when a release is over. After `promote --full` that is not when the Rollout is
// Healthy.
//
// Proves: Argo: analysis by revision with a real Prometheus; notification at the end.
func TestNotification(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, string(body))
	}))
	t.Cleanup(server.Close)
	told := func(revision string) error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(sent, revision) {
			return fmt.Errorf("sent %v", sent)
		}
		return nil
	}
	raw := files.Read(t, "../../config/argo/notifications/argo-rollouts-notification-configmap.yaml")
	manifest := string(raw) + fmt.Sprintf(`
    webhook: {sink: {method: POST, body: '{{index .rollout.metadata.annotations "lockstep.dev/stable-revision"}}'}}
  service.webhook.sink: |
    url: %s
`, server.URL)
	suite.Apply(t, e.Cluster, cluster.ArgoNamespace, strings.Replace(manifest, "\n\n    webhook", "\n    webhook", 1))

	e.deploy(slow())
	e.rollout(quarters)
	e.awaitRest("v1")
	e.patch(`{"metadata": {"annotations": {"notifications.argoproj.io/subscribe.on-released.sink": ""}}}`)
	first := e.get(t.Context()).Annotations["lockstep.dev/stable-revision"]
	e.Eventually("the first revision is told", func(context.Context) error { return told(first) })
	e.edit("v2")
	e.awaitPause(1)
	second := e.get(t.Context()).Annotations["lockstep.dev/canary-revision"]
	e.argo("promote", "--full", name)
	e.await("the Rollout is Healthy too early", func(r *v1alpha1.Rollout) bool { return r.Status.Phase == v1alpha1.RolloutPhaseHealthy })
	e.Eventually("the second revision is told", func(ctx context.Context) error {
		if err := told(second); err != nil {
			return err
		}
		assert.NoError(t, e.Only(ctx, "v2"), "told before the groups run it")
		return nil
	})
}
