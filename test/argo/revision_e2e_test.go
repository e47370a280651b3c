// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// models serves the metrics of all leaders of a test as vLLM has them, with the labels that a PodMonitor adds. The values grow with
// each scrape.
type models struct {
	e *env
	// slow is set if revisions other than the first one answer late; failing if their requests fail.
	slow, failing atomic.Bool
	first         string

	metrics     http.Handler
	ttft, inter *prometheus.HistogramVec
	succeeded   *prometheus.CounterVec
}

func newModels(e *env) *models {
	labels := []string{"namespace", "leaderworkerset_sigs_k8s_io_template_revision_hash"}
	buckets := prometheus.ExponentialBuckets(0.01, 1.1, 60)
	m := &models{
		e:         e,
		ttft:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:time_to_first_token_seconds", Buckets: buckets}, labels),
		inter:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:inter_token_latency_seconds", Buckets: buckets}, labels),
		succeeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total"}, append(labels, "finished_reason")),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.ttft, m.inter, m.succeeded)
	m.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

func (m *models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pods, err := m.e.pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for i := range pods {
		if pods[i].Labels[lws.WorkerIndexLabelKey] != "0" {
			continue
		}
		revision := pods[i].Labels[lws.RevisionKey]
		if m.first == "" {
			m.first = revision
		}
		seconds, reason := 0.1, "stop"
		if revision != m.first && m.slow.Load() {
			seconds = 0.3
		}
		if revision != m.first && m.failing.Load() {
			reason = "abort"
		}
		for range 20 {
			m.ttft.WithLabelValues(m.e.namespace, revision).Observe(seconds)
			m.inter.WithLabelValues(m.e.namespace, revision).Observe(0.02)
			m.succeeded.WithLabelValues(m.e.namespace, revision, reason).Inc()
		}
	}
	m.metrics.ServeHTTP(w, r)
}

// The published analysis compares canary and stable groups by their revisions, which are annotations of the Rollout: it passes, and it
// fails for a canary that is slow, and for one whose requests fail.
func TestAnalysisByRevision(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	m := newModels(e)
	target := httptest.NewServer(m)
	t.Cleanup(target.Close)
	url, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), strings.TrimPrefix(target.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	e.apply(exampleFile(t, "workload.yaml"))
	quick := strings.NewReplacer("http://prometheus.monitoring:9090", url, "initialDelay: 2m", "initialDelay: 5s", "interval: 30s", "interval: 1s", "[2m]", "[4s]")
	e.apply(quick.Replace(withService(e, exampleFile(t, "argo/analysis.yaml"))))
	e.awaitRest("v1")

	m.slow.Store(true)
	e.edit("v2")
	e.awaitAborted("v1")
	m.slow.Store(false)
	m.failing.Store(true)
	e.argo("retry", "rollout", name)
	e.awaitStep(0)
	e.awaitAborted("v1")
	m.failing.Store(false)
	e.argo("retry", "rollout", name)
	e.mustRest("v2")
	e.awaitRest("v2")
	ro := e.get(t.Context())
	canary, stable := ro.Annotations["lockstep.dev/canary-revision"], ro.Annotations["lockstep.dev/stable-revision"]
	if canary == "" || canary != stable || stable == m.first {
		t.Errorf("at the end the canary's revision is %q, the stable one %q, the first one %q", canary, stable, m.first)
	}
}
