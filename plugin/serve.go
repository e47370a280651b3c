// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/internal/parent"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// shutdownGrace is how long calls in flight may take after ctx has ended. go-plugin kills a plugin after two seconds.
const shutdownGrace = 1500 * time.Millisecond

// ErrNotStartedByHost is returned by Serve when the process was not started as a plugin.
var ErrNotStartedByHost = errors.New("this process was not started by a host: " + CookieKey + " is not set")

// ServeOption changes how Serve serves.
type ServeOption func(*serveOptions)

type serveOptions struct {
	logger *slog.Logger
	grpc   []grpc.ServerOption
}

// WithServeLogger sets the logger of Serve itself. Default: none. Use a [NewLogHandler] on stderr, so that the host
// sees levels.
func WithServeLogger(logger *slog.Logger) ServeOption {
	return func(o *serveOptions) { o.logger = logger }
}

// WithServerOptions adds gRPC server options, for example interceptors. go-plugin sets the transport credentials.
func WithServerOptions(opts ...grpc.ServerOption) ServeOption {
	return func(o *serveOptions) { o.grpc = append(o.grpc, opts...) }
}

// Serve serves a driver to the host that started this process, together with gRPC health and reflection, and with mutual
// TLS under one-time certificates if the host asks for it, as [Launch] does. router may be nil.
//
// It returns nil when ctx has ended, the host has closed the plugin, or the host has exited. Calls in flight get a short
// grace period. The caller then exits. Serve takes over os.Stdout and os.Stderr and writes the handshake to the real
// stdout, so write nothing to stdout before. It ignores SIGINT, which a terminal sends to host and plugin alike.
func Serve(
	ctx context.Context, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer, opts ...ServeOption,
) error {
	if !IsPlugin() {
		return ErrNotStartedByHost
	}
	o := serveOptions{logger: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(&o)
	}
	ppid := os.Getppid()

	var server atomic.Pointer[grpc.Server]
	served := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stopWhenOver(ctx, served, ppid, &server, o.logger)
	}()

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshakeConfig(),
		Plugins:         goplugin.PluginSet{Name: &grpcPlugin{driver: driver, router: router}},
		Logger:          NewHCLogger(ctx, o.logger),
		GRPCServer: func(transport []grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(append(transport, o.grpc...)...)
			server.Store(s)
			return s
		},
	})
	close(served)
	<-stopped
	if server.Load() == nil {
		return errors.New("plugin server did not start; see the log")
	}
	return nil
}

// stopWhenOver stops the server once ctx has ended or the parent has exited. It returns early if served is closed.
func stopWhenOver(
	ctx context.Context, served <-chan struct{}, ppid int, server *atomic.Pointer[grpc.Server], logger *slog.Logger,
) {
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := parent.Gone(watch, ppid)
	select {
	case <-served:
		return
	case <-ctx.Done():
	case <-gone:
		// gone is closed too when the watch ends with ctx.
		if ctx.Err() == nil {
			// stderr has no reader any more, and a write to it must not kill the process before calls in flight have ended.
			signal.Ignore(syscall.SIGPIPE)
			logger.Warn("host is gone, ending", "ppid", ppid)
			defer removeSocketDir(served)
		}
	}
	for {
		// ctx may have ended before go-plugin asked for its server.
		if s := server.Load(); s != nil {
			stopGracefully(s, shutdownGrace)
			return
		}
		select {
		case <-served:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
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
