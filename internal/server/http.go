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

// headerTimeout keeps a client that sends nothing from holding a connection.
const headerTimeout = 5 * time.Second

// listenHTTP prepares the HTTP endpoint, if one is asked for. It may be reachable from elsewhere: it is read-only and
// shows no workload's content, and probes and scrapers come from the node and the network.
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
	// Alive as long as it answers: an API server that is away is no reason to restart this process.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.driver.Synced() {
			http.Error(w, "the driver can't answer calls yet: its caches are not filled, or it may not keep them so", http.StatusServiceUnavailable)
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
