// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// headerTimeout closes connections of clients that send nothing.
const headerTimeout = 5 * time.Second

// listenHTTP listens on the metrics address, if there is one. Any address is allowed, since probes and scrapers come from the
// node and the network, and the endpoint is read-only and has no content of workloads.
func (s *Server) listenHTTP(ctx context.Context, o Options) error {
	if o.MetricsAddress == "" {
		return nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", o.MetricsAddress)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	s.httpListener = listener
	s.http = &http.Server{Handler: s.httpHandler(o.Registry), ReadHeaderTimeout: headerTimeout}
	return nil
}

func (s *Server) httpHandler(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	// Always ok: a restart does not help while the API server is unreachable.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.driver.Synced() {
			http.Error(w, "the driver is not synced: its caches are not filled, or it lacks the permissions to keep them up to date", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

func (s *Server) serveHTTP() error {
	if err := s.http.Serve(s.httpListener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
