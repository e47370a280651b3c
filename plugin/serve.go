// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// shutdownGrace is how long calls in flight may take after ctx has ended. go-plugin kills a plugin after two seconds.
const shutdownGrace = 1500 * time.Millisecond

// ErrNotStartedByHost is returned by Serve when the process was not started as a plugin.
var ErrNotStartedByHost = errors.New("this process was not started by a host: " + CookieKey + " is not set")

// ServeOptions say how Serve serves.
type ServeOptions struct {
	// Logger is that of Serve itself, nil for none. Use a [NewLogHandler] on stderr, so that the host sees levels.
	Logger *slog.Logger
	// GRPC are further options, for example interceptors. go-plugin sets the transport credentials.
	GRPC []grpc.ServerOption
}

// Serve serves a driver to the host that started this process, together with gRPC health and reflection, and with mutual
// TLS under one-time certificates if the host asks for it, as [Launch] does. router may be nil.
//
// It returns nil when ctx has ended, the host has closed the plugin, or the host has exited. Calls in flight get a short
// grace period. The caller then exits. Serve takes over os.Stdout and os.Stderr and writes the handshake to the real
// stdout, so write nothing to stdout before. It ignores SIGINT, which a terminal sends to host and plugin alike.
func Serve(ctx context.Context, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer, o ServeOptions) error {
	if !IsPlugin() {
		return ErrNotStartedByHost
	}
	logger := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	ctx, forget := WithHost(ctx, logger)
	defer forget()

	started, served, stopped := make(chan *grpc.Server, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		stopWhenOver(ctx, started, served)
	}()

	var server *grpc.Server
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshakeConfig(),
		Plugins:         goplugin.PluginSet{Name: &grpcPlugin{driver: driver, router: router}},
		Logger:          NewHCLogger(logger),
		GRPCServer: func(transport []grpc.ServerOption) *grpc.Server {
			server = grpc.NewServer(append(transport, o.GRPC...)...)
			started <- server
			return server
		},
	})
	close(served)
	<-stopped
	if server == nil {
		return errors.New("plugin server did not start; see the log")
	}
	return nil
}

// stopWhenOver stops the server once ctx has ended. It returns early if served is closed.
func stopWhenOver(ctx context.Context, started <-chan *grpc.Server, served <-chan struct{}) {
	select {
	case <-served:
		return
	case <-ctx.Done():
	}
	if errors.Is(context.Cause(ctx), errHostGone) {
		defer removeSocketDir(served)
	}
	select { // ctx may have ended before go-plugin asked for its server
	case s := <-started:
		stopGracefully(s, shutdownGrace)
	case <-served:
	}
}

// hostPoll is about how long a plugin outlives its host at most.
const hostPoll = 250 * time.Millisecond

var errHostGone = errors.New("the host has exited")

// WithHost returns a context that ends with ctx, and once the process that started this one has exited. Call the function to release it.
//
// A host that is killed leaves its plugins running, and go-plugin does not end them. The parent's pid is the one signal
// that works for every host, also for hosts that do not use this SDK:
//   - PR_SET_PDEATHSIG fires when the thread that forked ends, not the process, and Go gives threads back.
//   - stdin is what the host had, often /dev/null, which is at EOF from the start.
//   - A pipe of our own needs a host that passes it on.
//
// The pid is polled a few times a second, which costs one system call without I/O. It changes exactly when the parent
// process has exited, whichever process inherits the child, so it also works for pid 1 as the parent (a host in a
// container). A parent that exited before the first poll is not detected here, but by the write of the handshake: its
// pipe has no reader then, and SIGPIPE kills the process. On Windows the parent's pid never changes, so nothing is
// guaranteed there.
func WithHost(ctx context.Context, logger *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	host := os.Getppid()
	go func() {
		poll := time.NewTicker(hostPoll)
		defer poll.Stop()
		for os.Getppid() == host {
			select {
			case <-ctx.Done():
				return
			case <-poll.C:
			}
		}
		// stderr has no reader any more, and a write to it must not kill the process before calls in flight have ended.
		signal.Ignore(syscall.SIGPIPE)
		logger.Warn("host is gone, ending", "ppid", host)
		end(errHostGone)
	}()
	return ctx, func() { end(nil) }
}

// removeSocketDir removes the directory that the host created for the socket, once the socket has been removed.
func removeSocketDir(served <-chan struct{}) {
	<-served
	if dir := os.Getenv(goplugin.EnvUnixSocketDir); dir != "" {
		_ = os.Remove(dir) //nolint:gosec // The host names it, and only an empty directory goes.
	}
}

// stopGracefully waits for calls in flight, but no longer than grace.
func stopGracefully(s *grpc.Server, grace time.Duration) {
	timer := time.AfterFunc(grace, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

// The handshake by which a driver's binary recognizes that a host started it as a plugin. The cookie is no secret: it only
// keeps a user from running a plugin by hand by mistake.
const (
	// CookieKey is the environment variable that the host sets.
	CookieKey = "LOCKSTEP_PLUGIN"
	// CookieValue is its value.
	CookieValue = "b1f9e0c5-lockstep-driver"
	// ProtocolVersion is the version of the handshake. That of the contract is part of the service names.
	ProtocolVersion = 1
	// Name is the plugin's name in go-plugin's plugin set.
	Name = "driver"
)

// IsPlugin reports whether a host started this process as a driver plugin.
func IsPlugin() bool {
	return os.Getenv(CookieKey) == CookieValue
}

func handshakeConfig() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   CookieKey,
		MagicCookieValue: CookieValue,
	}
}

// grpcPlugin registers both services on go-plugin's server, and returns its connection on the host's side.
type grpcPlugin struct {
	goplugin.NetRPCUnsupportedPlugin

	driver pb.WorkloadDriverServer
	router pb.TrafficRouterServer
}

var _ goplugin.GRPCPlugin = (*grpcPlugin)(nil)

// GRPCServer registers the services.
func (p *grpcPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	if p.driver == nil {
		return errors.New("no WorkloadDriver to serve")
	}
	Register(s, p.driver, p.router)
	return nil
}

// GRPCClient returns the connection itself, from which Launch makes a Client as Dial does.
func (*grpcPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// Register registers a driver's services on a gRPC server. Without a router, the RPCs of TrafficRouter are UNIMPLEMENTED.
func Register(s grpc.ServiceRegistrar, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) {
	pb.RegisterWorkloadDriverServer(s, driver)
	if router != nil {
		pb.RegisterTrafficRouterServer(s, router)
	}
}
