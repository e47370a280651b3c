// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"log/slog"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/lockstep-rollouts/lockstep/internal/tracing"
)

// libraries is the handler of client-go's log lines. klog's own logger may not be replaced while another goroutine logs, so it is set
// before main, and forwards to this one.
var libraries atomic.Pointer[slog.Handler]

func init() {
	klog.SetSlogLogger(slog.New(forwarder{}))
}

// captureLibraries sends the log lines of client-go and of OpenTelemetry to logger, which it returns.
func captureLibraries(logger *slog.Logger) *slog.Logger {
	handler := logger.Handler()
	libraries.Store(&handler)
	tracing.LogTo(logger)
	return logger
}

// forwarder is the handler that captureLibraries set last, or the default.
type forwarder struct{}

func (forwarder) target() slog.Handler {
	if handler := libraries.Load(); handler != nil {
		return *handler
	}
	return slog.Default().Handler()
}

func (f forwarder) Enabled(ctx context.Context, level slog.Level) bool {
	return f.target().Enabled(ctx, level)
}

//nolint:wrapcheck // it is that handler's error
func (f forwarder) Handle(ctx context.Context, r slog.Record) error { return f.target().Handle(ctx, r) }

func (f forwarder) WithAttrs(attrs []slog.Attr) slog.Handler { return f.target().WithAttrs(attrs) }

func (f forwarder) WithGroup(name string) slog.Handler { return f.target().WithGroup(name) }
