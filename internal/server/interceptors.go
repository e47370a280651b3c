// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Interceptors record metrics, log each RPC without its content, and turn panics into INTERNAL errors. A nil registerer means
// no metrics.
func Interceptors(logger *slog.Logger, registerer prometheus.Registerer) []grpc.ServerOption {
	unary, stream := interceptors(logger, registerer)
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...)}
}

func interceptors(
	logger *slog.Logger, registerer prometheus.Registerer,
) (unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) {
	failed := &sampler{logger: logger}
	log := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		write := func() { logger.Log(ctx, slog.Level(level), msg, fields...) }
		if level < logging.LevelWarn {
			write()
			return
		}
		// A client that fails in a loop must not fill the log.
		method, _ := grpc.Method(ctx)
		failed.do(failure{method, codeOf(fields)}, write)
	})
	logged := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall), logging.WithLevels(levelOf),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey), // always the same
	}
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, cause any) error {
		// One bad request must not end all other releases.
		method, _ := grpc.Method(ctx)
		logger.ErrorContext(ctx, "panic in request", "method", method, "panic", cause, "stack", string(debug.Stack()))
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "defect in %s; the driver's log has the details", method)
	})
	// Logging comes before recovery, so that a panic is logged as the error that the client gets.
	unary = []grpc.UnaryServerInterceptor{logging.UnaryServerInterceptor(log, logged...), recovery.UnaryServerInterceptor(recovered)}
	stream = []grpc.StreamServerInterceptor{logging.StreamServerInterceptor(log, logged...), recovery.StreamServerInterceptor(recovered)}
	if registerer != nil {
		metrics := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
			// A request may be a long poll of minutes.
			grpcprom.WithHistogramBuckets([]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300}),
		))
		registerer.MustRegister(metrics)
		// Metrics are outermost, so that they count the code that recovery makes of a panic.
		unary = append([]grpc.UnaryServerInterceptor{metrics.UnaryServerInterceptor()}, unary...)
		stream = append([]grpc.StreamServerInterceptor{byKind(metrics.UnaryServerInterceptor(), metrics.StreamServerInterceptor())}, stream...)
	}
	return unary, stream
}

// codeOf returns the code of a call among the fields of its line.
func codeOf(fields []any) (code codes.Code) {
	if i := slices.Index(fields, any("grpc.code")); i >= 0 && i+1 < len(fields) {
		code, _ = fields[i+1].(codes.Code)
	}
	return code
}

// levelOf returns debug for RPCs that succeeded or were canceled by the client, and warning otherwise.
func levelOf(code codes.Code) logging.Level {
	if code == codes.OK || code == codes.Canceled {
		return logging.LevelDebug
	}
	return logging.LevelWarn
}
