// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

const (
	// headerTimeout closes connections of clients that send nothing, httpTimeout connections of clients that read no response.
	headerTimeout = 5 * time.Second
	httpTimeout   = 30 * time.Second
	// maxScrapes bounds the readers of metrics at a time: each observes all workloads, and has a page of its own.
	maxScrapes = 8
)

// ErrUnprotectedMetrics is returned by New if other machines could read the metrics without authentication.
var ErrUnprotectedMetrics = errors.New("a metrics address that is not loopback needs authentication")

// httpEndpoint is an HTTP server and its listener.
type httpEndpoint struct {
	server   *http.Server
	listener net.Listener
}

// serve returns once the server is closed.
func (e *httpEndpoint) serve() error {
	if err := e.server.Serve(e.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", e.listener.Addr(), err)
	}
	return nil
}

// sampledLog is where an HTTP server logs its errors, such as failed handshakes: strangers cause as many as they like.
type sampledLog struct{ *sampler }

// Write implements io.Writer. It never fails.
func (l sampledLog) Write(line []byte) (int, error) {
	l.do(failure{}, func() { l.logger.Warn("HTTP server", "error", strings.TrimSpace(string(line))) })
	return len(line), nil
}

func (o Options) listenHTTP(ctx context.Context, address string, secure *tls.Config, handler http.Handler) (*httpEndpoint, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	if secure == nil {
		// Probes and scrapers have no authenticated caller, so their connections may stay.
		listener = limitConnections(listener, maxHTTPConnections, 0)
	} else {
		listener = tls.NewListener(limitConnections(listener, maxStrangers, 0), secure)
	}
	return &httpEndpoint{&http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaders,
		ReadTimeout: httpTimeout, WriteTimeout: httpTimeout, IdleTimeout: httpTimeout,
		ErrorLog: log.New(sampledLog{&sampler{logger: o.Logger}}, "", 0),
	}, listener}, nil
}

// listenMetrics listens on the metrics address: plain on loopback, otherwise with TLS and authentication.
func listenMetrics(ctx context.Context, o Options) (*httpEndpoint, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	e, err := endpoint.Parse(o.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("metrics address: %w", err)
	}
	if e.Local() {
		return o.listenHTTP(ctx, o.MetricsAddress, nil, mux)
	}
	if o.ProtectMetrics == nil {
		return nil, ErrUnprotectedMetrics
	}
	protected, err := o.ProtectMetrics(mux)
	if err != nil {
		return nil, fmt.Errorf("protect metrics: %w", err)
	}
	// Scrapers prove themselves by token, so no client CA is asked for.
	secure, err := tlsFiles{cert: o.TLSCert, key: o.TLSKey}.serverConfig()
	if err != nil {
		return nil, fmt.Errorf("metrics address: %w", err)
	}
	return o.listenHTTP(ctx, o.MetricsAddress, secure, protected)
}

// listenHTTP listens on the addresses for metrics and for probes, if there are any. Any address is allowed for probes, which come
// from the node and show nothing of workloads.
func (s *Server) listenHTTP(ctx context.Context, o Options) error {
	if o.MetricsAddress != "" {
		e, err := listenMetrics(ctx, o)
		if err != nil {
			return err
		}
		s.http, s.metricsAddr = append(s.http, e), e.listener.Addr().String()
	}
	if o.HealthAddress != "" {
		e, err := o.listenHTTP(ctx, o.HealthAddress, nil, s.probeHandler())
		if err != nil {
			// The listener of the metrics would stay open otherwise.
			s.closeHTTP()
			return err
		}
		s.http, s.healthAddr = append(s.http, e), e.listener.Addr().String()
	}
	return nil
}

func (s *Server) closeHTTP() {
	for _, e := range s.http {
		_ = e.server.Close()
		// A server that has not begun to serve does not close its listener.
		_ = e.listener.Close()
	}
}

func (s *Server) probeHandler() http.Handler {
	mux := http.NewServeMux()
	// Always ok: a restart does not help while the API server is unreachable.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.driver.Ready(); err != nil {
			http.Error(w, status.Convert(err).Message(), http.StatusServiceUnavailable)
			return
		}
		// The kubelet excludes the caches: a driver that is not ready gets no calls, and an abort must reach it.
		if err := s.driver.Fresh(); err != nil && r.URL.Query().Get("exclude") != "caches" {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}
