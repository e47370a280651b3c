// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/internal/endpoint"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

const (
	// shutdownGrace is how long unary calls in flight may take after ctx has ended; streams end at once.
	shutdownGrace = 5 * time.Second
	// syncPoll is how soon after the driver has synced health says so.
	syncPoll = 20 * time.Millisecond
	// healthPoll is how soon it says that the driver can't answer any more, or can again.
	healthPoll = 500 * time.Millisecond
	// minPing is how often a client may ping; plugin.Dial does so less often.
	minPing = 10 * time.Second
)

// Driver is what the server serves.
type Driver interface {
	pb.WorkloadDriverServer
	pb.TrafficRouterServer

	// Run keeps the driver's caches and finishes unfinished releases until ctx has ended.
	Run(ctx context.Context) error
	// Drain ends the waits of calls in flight, and watches, without an error of theirs, while Run goes on. It may be called
	// more than once.
	Drain()
	// Synced says whether the caches are filled.
	Synced() bool
}

// Options say where and how to serve.
type Options struct {
	// Listen is "unix:///path" or "host:port". Required.
	Listen string
	// TLSCert, TLSKey and ClientCA are PEM files. All three or none; required unless Listen is local. They are read
	// again for each connection.
	TLSCert, TLSKey, ClientCA string
	// MetricsAddress is "host:port" of plain HTTP with /metrics, /healthz and /readyz. Empty: none.
	MetricsAddress string
	// Logger gets one line per request that failed, and with level debug per request. Nil: none.
	Logger *slog.Logger
	// Registry is what /metrics shows and where request metrics are registered. Nil: a new one.
	Registry *prometheus.Registry
}

// Server listens from New on and serves in Run.
type Server struct {
	driver   Driver
	logger   *slog.Logger
	grpc     *grpc.Server
	health   *health.Server
	streams  *streamEnder
	listener net.Listener

	// http and httpListener are nil without a metrics address.
	http         *http.Server
	httpListener net.Listener
}

// New checks the options and starts to listen, so that a wrong address is an error here and a client that connects
// from now on waits until Run serves it. ctx bounds New only.
func New(ctx context.Context, driver Driver, o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	e, err := endpoint.Parse(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	files := tlsFiles{cert: o.TLSCert, key: o.TLSKey, clientCA: o.ClientCA}
	transport, err := files.serverOptions(e)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", e, err)
	}
	listener, err := listen(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", e, err)
	}
	s := &Server{
		driver: driver, logger: o.Logger, streams: newStreamEnder(), health: health.NewServer(), listener: listener,
	}
	s.grpc = s.newGRPC(append(transport, Interceptors(o.Logger, o.Registry)...))
	if err := s.listenHTTP(ctx, o); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// newGRPC registers everything that is served.
func (s *Server) newGRPC(opts []grpc.ServerOption) *grpc.Server {
	opts = append(opts,
		grpc.ChainStreamInterceptor(s.streams.intercept),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}))
	g := grpc.NewServer(opts...)
	plugin.Register(g, s.driver, s.driver)
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	s.setServing(false)
	return g
}

// Addr is the address that the server listens on, as a host dials it.
func (s *Server) Addr() string {
	e := endpoint.Endpoint{Network: s.listener.Addr().Network(), Address: s.listener.Addr().String()}
	return e.String()
}

// MetricsAddr is the address of the HTTP endpoint, empty without one.
func (s *Server) MetricsAddr() string {
	if s.httpListener == nil {
		return ""
	}
	return s.httpListener.Addr().String()
}

// Run serves until ctx has ended, then lets calls in flight finish within a few seconds. It does not run the driver,
// which must run until Run has returned.
// It returns nil after ctx has ended. It is called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 2)
	running := 1
	go func() { failed <- s.serveGRPC() }()
	if s.http != nil {
		running++
		go func() { failed <- s.serveHTTP() }()
	}
	healthDone := make(chan struct{})
	go func() {
		defer close(healthDone)
		s.followSync(ctx)
	}()
	s.logger.InfoContext(ctx, "serving", "address", s.Addr(), "metrics", s.MetricsAddr())

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		running--
	}
	cancel()
	<-healthDone
	s.shutdown()
	for range running {
		err = errors.Join(err, <-failed)
	}
	return err
}

func (s *Server) serveGRPC() error {
	if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

// shutdown tells clients that it is over, ends streams, and waits for the rest within the grace.
func (s *Server) shutdown() {
	s.health.Shutdown()
	s.streams.end()
	timer := time.AfterFunc(shutdownGrace, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	if s.http != nil {
		_ = s.http.Close()
	}
}

// followSync keeps health SERVING while the driver can answer, and NOT_SERVING while it can't.
func (s *Server) followSync(ctx context.Context) {
	ticker := time.NewTicker(syncPoll)
	defer ticker.Stop()
	for serving := false; ; {
		if now := s.driver.Synced(); now != serving {
			serving = now
			s.setServing(serving)
			ticker.Reset(healthPoll)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// setServing sets the health of the server as a whole and of each service.
func (s *Server) setServing(serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	driver, router := pb.WorkloadDriver_ServiceDesc.ServiceName, pb.TrafficRouter_ServiceDesc.ServiceName
	for _, service := range []string{"", driver, router} {
		s.health.SetServingStatus(service, status)
	}
}

// serverOptions returns the transport credentials for e, none where plaintext is allowed.
func (f tlsFiles) serverOptions(e endpoint.Endpoint) ([]grpc.ServerOption, error) {
	if f.none() && e.Local() {
		return nil, nil
	}
	config, err := f.serverConfig()
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}
