// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vllm has the metrics of vLLM for pods without containers.
package vllm

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Metrics serves those of all leaders as vLLM has them, with the labels that a PodMonitor adds. The values grow with each scrape.
type Metrics struct {
	// Slow is set if revisions other than the first one answer late; Failing if their requests fail.
	Slow, Failing atomic.Bool

	pods func(context.Context) ([]corev1.Pod, error)

	mu    sync.Mutex
	first string

	handler     http.Handler
	ttft, inter *prometheus.HistogramVec
	succeeded   *prometheus.CounterVec
}

// NewMetrics returns the metrics of the leaders among the pods that a function lists.
func NewMetrics(pods func(context.Context) ([]corev1.Pod, error)) *Metrics {
	labels := []string{"namespace", "leaderworkerset_sigs_k8s_io_name", "leaderworkerset_sigs_k8s_io_template_revision_hash"}
	buckets := prometheus.ExponentialBuckets(0.01, 1.1, 60)
	m := &Metrics{
		pods:      pods,
		ttft:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:time_to_first_token_seconds", Buckets: buckets}, labels),
		inter:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:inter_token_latency_seconds", Buckets: buckets}, labels),
		succeeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total"}, append(slices.Clone(labels), "finished_reason")),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.ttft, m.inter, m.succeeded)
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// First returns the revision that was seen first, or "" if there is none yet.
func (m *Metrics) First() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first
}

// ServeHTTP counts 20 requests for each leader, and answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pods, err := m.pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range pods {
		if pods[i].Labels[lws.WorkerIndexLabelKey] != "0" {
			continue
		}
		namespace, name, revision := pods[i].Namespace, pods[i].Labels[lws.SetNameLabelKey], pods[i].Labels[lws.RevisionKey]
		if m.first == "" {
			m.first = revision
		}
		seconds, reason := 0.1, "stop"
		if revision != m.first && m.Slow.Load() {
			seconds = 0.3
		}
		if revision != m.first && m.Failing.Load() {
			reason = "abort"
		}
		for range 20 {
			m.ttft.WithLabelValues(namespace, name, revision).Observe(seconds)
			m.inter.WithLabelValues(namespace, name, revision).Observe(0.02)
			m.succeeded.WithLabelValues(namespace, name, revision, reason).Inc()
		}
	}
	m.handler.ServeHTTP(w, r)
}
