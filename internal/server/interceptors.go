// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// Interceptors are what every way of serving puts around each RPC: metrics, a log line, and panics as INTERNAL errors.
// They never log a request's content. A nil registerer means no metrics.
func Interceptors(logger *slog.Logger, registerer prometheus.Registerer) []grpc.ServerOption {
	o := observer{logger: logger, metrics: newMetrics(registerer)}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(o.unary),
		grpc.ChainStreamInterceptor(o.stream),
	}
}

// observer sees each RPC begin and end.
type observer struct {
	logger  *slog.Logger
	metrics *metrics
}

func (o observer) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	var resp any
	err := o.observe(ctx, info.FullMethod, "unary", func() (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (o observer) stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	return o.observe(stream.Context(), info.FullMethod, streamType(info), func() error {
		return handler(srv, stream)
	})
}

// observe calls handle and reports how it went.
func (o observer) observe(ctx context.Context, method, kind string, handle func() error) error {
	begin := time.Now()
	o.metrics.started(kind, method)
	err := o.withoutPanic(ctx, method, handle)
	took := time.Since(begin)
	code := codeOf(err)
	o.metrics.handled(kind, method, code, took)
	o.log(ctx, method, code, took, err)
	return err
}

// withoutPanic turns a panic into an error: one bad request must not end the releases of everybody else.
func (o observer) withoutPanic(ctx context.Context, method string, handle func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			o.logger.ErrorContext(ctx, "panic in request", "method", method, "panic", cause, "stack", string(debug.Stack()))
			err = drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "defect in %s; the driver's log has the details", method)
		}
	}()
	return handle()
}

// log writes one line per RPC: debug when it went well or the client left, warn otherwise.
func (o observer) log(ctx context.Context, method string, code codes.Code, took time.Duration, err error) {
	level := slog.LevelWarn
	if code == codes.OK || code == codes.Canceled {
		level = slog.LevelDebug
	}
	if !o.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("method", method), slog.String("code", code.String()), slog.Duration("took", took)}
	// A unix socket's peer has no name.
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() != "unix" {
		attrs = append(attrs, slog.String("peer", p.Addr.String()))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
	}
	o.logger.LogAttrs(ctx, level, "request", attrs...)
}

// codeOf is the code that the client will see: gRPC itself turns a bare context error into its code.
func codeOf(err error) codes.Code {
	if code := status.Code(err); code != codes.Unknown {
		return code
	}
	return status.FromContextError(err).Code()
}

func streamType(info *grpc.StreamServerInfo) string {
	switch {
	case info.IsClientStream && info.IsServerStream:
		return "bidi_stream"
	case info.IsClientStream:
		return "client_stream"
	default:
		return "server_stream"
	}
}

// splitMethod splits "/service/method".
func splitMethod(full string) (service, method string) {
	service, method, _ = strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service, method
}
