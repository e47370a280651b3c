// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics count RPCs, under the names and labels that go-grpc-middleware gives them, so that dashboards and alerts for
// those fit. A nil *metrics counts nothing.
type metrics struct {
	start   *prometheus.CounterVec
	handle  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	if registerer == nil {
		return nil
	}
	m := &metrics{
		start: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grpc_server_started_total",
			Help: "Total number of RPCs started on the server.",
		}, []string{"grpc_type", "grpc_service", "grpc_method"}),
		handle: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grpc_server_handled_total",
			Help: "Total number of RPCs completed on the server, regardless of success or failure.",
		}, []string{"grpc_type", "grpc_service", "grpc_method", "grpc_code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_server_handling_seconds",
			Help: "Histogram of response latency (seconds) of RPCs handled by the server.",
			// Requests may carry a long poll, so the scale goes to minutes.
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300},
		}, []string{"grpc_type", "grpc_service", "grpc_method"}),
	}
	registerer.MustRegister(m.start, m.handle, m.seconds)
	return m
}

func (m *metrics) started(kind, fullMethod string) {
	if m == nil {
		return
	}
	service, method := splitMethod(fullMethod)
	m.start.WithLabelValues(kind, service, method).Inc()
}

func (m *metrics) handled(kind, fullMethod string, code codes.Code, took time.Duration) {
	if m == nil {
		return
	}
	service, method := splitMethod(fullMethod)
	m.handle.WithLabelValues(kind, service, method, code.String()).Inc()
	m.seconds.WithLabelValues(kind, service, method).Observe(took.Seconds())
}
