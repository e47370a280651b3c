// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// shutdownGrace is how long unary calls in flight may take after ctx ends; streams end at once.
	shutdownGrace = 5 * time.Second
	// syncPoll is the interval of health until the first sync.
	syncPoll = 20 * time.Millisecond
	// healthPoll is the interval after that.
	healthPoll = 500 * time.Millisecond
)

// Driver is a driver that runs in this process.
type Driver interface {
	pb.WorkloadDriverServer
	pb.TrafficRouterServer

	// Run maintains the caches and completes recorded intents until ctx ends.
	Run(ctx context.Context) error
	// Drain makes waiting calls return, and ends watches, without an error. Run continues. It may be called more than once.
	Drain()
	// Ready returns nil once calls can be served, and why they can't until then.
	Ready() error
	// Fresh returns nil while the API server confirms what the caches hold, and what it does not otherwise.
	Fresh() error
}

// Options say where and how to serve.
type Options struct {
	// Listen is "unix:///path" or "host:port". Required.
	Listen string
	// Reviewer says who callers are and what they may do. Required for TCP, unless AlwaysAllow is set. Calls over a unix socket
	// need no review: only this process's own account reaches it.
	Reviewer *review.Reviewer
	// AlwaysAllow lets every caller over TCP do everything: all users of this machine on loopback, and elsewhere everyone with a
	// certificate of ClientCA.
	AlwaysAllow bool
	// User returns the user of calls over a unix socket, for audit. Nil means the account of this process.
	User func(context.Context) user.Info
	// TLSCert, TLSKey and ClientCA are PEM files. The first two are required for TCP, also of metrics, except on loopback with
	// AlwaysAllow. A unix socket has no TLS: its mode admits one user.
	// ClientCA is what callers' certificates must come from: with a Reviewer it is optional, and callers may have a token instead.
	// They are reloaded for each connection.
	TLSCert, TLSKey, ClientCA string
	// MetricsAddress is "host:port" of /metrics: plain HTTP on loopback, otherwise HTTPS. Empty means none.
	MetricsAddress string
	// ProtectMetrics wraps a handler in authentication and authorization. Required unless MetricsAddress is empty or loopback.
	ProtectMetrics func(http.Handler) (http.Handler, error)
	// HealthAddress is "host:port" of plain HTTP with /healthz and /readyz. Empty means none.
	HealthAddress string
	// UserQPS is how many calls a second each user may make, over TCP. 0: DefaultUserQPS.
	UserQPS int
	// Reflection offers the reflection service on TCP too. A unix socket always has it.
	Reflection bool
	// Logger gets a line per failed request, and at debug level per request. Nil means none.
	Logger *slog.Logger
	// Registry has the metrics of /metrics, and gets those of requests. Nil means a new one.
	Registry *prometheus.Registry
}

// Server listens after New and serves in Run.
type Server struct {
	driver   Driver
	logger   *slog.Logger
	grpc     *grpc.Server
	health   *health.Server
	listener *connections
	// endStreams ends all streams. They would outlast the server.
	endStreams context.CancelFunc

	// http are the endpoints of metrics and probes. An address is "" without its endpoint.
	http                    []*httpEndpoint
	metricsAddr, healthAddr string
}

// New validates the options and listens. A client that connects before Run waits. ctx bounds New only.
func New(ctx context.Context, driver Driver, o Options) (*Server, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Registry = cmp.Or(o.Registry, prometheus.NewRegistry())
	e, err := endpoint.Parse(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	transport, err := o.transport(e)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", e, err)
	}
	listener, err := listenAt(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", e, err)
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx)) // ctx bounds New only
	s := &Server{
		driver: driver, logger: o.Logger, endStreams: end, health: health.NewServer(),
		// Connections are bounded before TLS, whose handshake is the most expensive part of a stranger's connection.
		listener: limitConnections(listener, maxStrangers, strangerTimeout),
	}
	authorization := o.authorization(e, s.listener)
	_, before := interceptors(o.Logger, o.Registry) //nolint:contextcheck // A call has its own.
	// The permission comes last, so that a refusal is logged and counted.
	before = append(before, authorization.stream)
	opts := append(slices.Concat(transport, limitOptions(e)), grpc.InTapHandle(authorization.tap),
		// Only streams end with the server. Unary calls get a grace.
		grpc.ChainStreamInterceptor(append(slices.Clip(before), endWith(serving))...))
	s.grpc = s.newGRPC(opts, before, isUnix(e) || o.Reflection)
	if err := s.listenHTTP(ctx, o); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// newGRPC registers all services.
func (s *Server) newGRPC(opts []grpc.ServerOption, before []grpc.StreamServerInterceptor, reflect bool) *grpc.Server {
	g := grpc.NewServer(opts...)
	services := streamed{ServiceRegistrar: g, before: before}
	plugin.Register(services, s.driver, s.driver)
	healthpb.RegisterHealthServer(services, s.health)
	if reflect {
		reflection.Register(g)
	}
	// Without an entry, a health check of a service would get NOT_FOUND.
	s.setServing(false)
	return g
}

// Addr returns the address that hosts dial.
func (s *Server) Addr() string {
	e := endpoint.Endpoint{Network: s.listener.Addr().Network(), Address: s.listener.Addr().String()}
	return e.String()
}

// MetricsAddr returns the address of /metrics, or "" without one.
func (s *Server) MetricsAddr() string { return s.metricsAddr }

// HealthAddr returns the address of /healthz and /readyz, or "" without one.
func (s *Server) HealthAddr() string { return s.healthAddr }

// Run serves until ctx ends, gives calls in flight a few seconds, and returns nil. It does not run the driver, which must run
// until Run returns. It must be called once.
func (s *Server) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx) // which ends with the first error, too
	running.Go(s.serveGRPC)
	// An HTTP server that fails ends gRPC as well: a driver without probes or metrics must not seem healthy.
	for _, e := range s.http {
		running.Go(e.serve)
	}
	s.logger.InfoContext(ctx, "serving", "address", s.Addr(), "metrics", s.MetricsAddr(), "health", s.HealthAddr())
	running.Go(func() error {
		s.followSync(ctx)
		// The shutdown runs also when a server has failed.
		s.shutdown()
		return nil
	})
	return running.Wait() //nolint:wrapcheck // they say what they serve
}

func (s *Server) serveGRPC() error {
	if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

// shutdown sets health to NOT_SERVING, ends streams, and waits for other calls within the grace.
func (s *Server) shutdown() {
	// Clients that watch health leave before their calls are refused.
	s.health.Shutdown()
	// GracefulStop waits for streams, and a watch has no end of its own.
	s.endStreams()
	timer := time.AfterFunc(shutdownGrace, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	s.closeHTTP()
}

// followSync sets health to SERVING while the driver is ready, and to NOT_SERVING while it is not.
func (s *Server) followSync(ctx context.Context) {
	ticker := time.NewTicker(syncPoll)
	defer ticker.Stop()
	for serving := false; ; {
		if now := s.driver.Ready() == nil; now != serving {
			serving = now
			s.setServing(serving)
			// Hosts wait for the first sync, so it is noticed sooner than a later loss.
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

// transport returns the transport credentials for e.
func (o Options) transport(e endpoint.Endpoint) ([]grpc.ServerOption, error) {
	files := tlsFiles{cert: o.TLSCert, key: o.TLSKey, clientCA: o.ClientCA, tokens: o.Reviewer != nil}
	switch {
	case isUnix(e) && o.ClientCA != "":
		// A CA that nothing uses would suggest a protection that is not there.
		return nil, errors.New("a unix socket has no TLS: the CA of clients (--client-ca) is for a TCP address")
	case isUnix(e):
		return []grpc.ServerOption{grpc.Creds(insecure.NewCredentials())}, nil
	case o.Reviewer == nil && !o.AlwaysAllow:
		return nil, ErrNeedsReviewer
	case o.Reviewer == nil && files.none() && e.Local():
		return nil, nil
	case o.Reviewer == nil && files.clientCA == "":
		return nil, fmt.Errorf("%w, and without authorization a client CA (--client-ca)", ErrNeedsTLS)
	}
	config, err := files.serverConfig()
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}

// ErrNeedsTLS is wrapped by New's error if a TLS file that the address needs is missing.
var ErrNeedsTLS = errors.New("a TCP address needs TLS: certificate and key together (--tls-cert, --tls-key)")

// ErrNeedsReviewer is wrapped by New's error for a TCP address without Reviewer and without AlwaysAllow.
var ErrNeedsReviewer = errors.New("a TCP address needs a reviewer of callers, or AlwaysAllow")

// tlsFiles names PEM files.
type tlsFiles struct {
	cert, key, clientCA string
	// tokens: a caller may have a token instead of a certificate.
	tokens bool
}

func (f tlsFiles) none() bool { return f.cert+f.key+f.clientCA == "" }

// serverConfig returns a configuration that reads changed files again, so that certificates can be rotated without a restart. Files
// that can't be read are an error here; later the last ones stay.
func (f tlsFiles) serverConfig() (*tls.Config, error) {
	if f.cert == "" || f.key == "" {
		return nil, ErrNeedsTLS
	}
	paths := []string{f.cert, f.key}
	if f.clientCA != "" {
		paths = append(paths, f.clientCA)
	}
	files, err := endpoint.NewFiles(f.load, paths...)
	if err != nil {
		return nil, err
	}
	config := files.Get().Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Get(), nil }
	return config, nil
}

func (f tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	// Clients of gRPC refuse a connection that has not negotiated h2.
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if f.clientCA == "" {
		return config, nil
	}
	if config.ClientCAs, err = endpoint.ReadCA(f.clientCA); err != nil {
		return nil, err
	}
	if config.ClientAuth = tls.RequireAndVerifyClientCert; f.tokens {
		// A caller with a token needs no certificate, but one that is given must be valid.
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}
