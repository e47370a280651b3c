// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing exports traces of releases by OTLP, as OpenTelemetry's environment variables say. It is off without them.
//
// A release is one trace. Its identity is computed from the release, so that the spans of several processes, and of drivers that
// continue each other's work, are in it. All spans are recorded when they end, below that of the release:
//
//	tracing.Release{Namespace: "prod", Workload: "vllm", ID: "r1", Started: started}.Record("promote", began, nil)
package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
)

// flushTimeout is how long the end of the process waits for spans to be exported.
const flushTimeout = 2 * time.Second

// Start begins to export if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. stop exports what is left, and
// gives up after two seconds. Export never delays a release: spans are dropped while the collector is slower.
func Start(ctx context.Context, version string) (stop func(), err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return func() {}, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("lockstep"), semconv.ServiceVersion(version)), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	return Use(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil //nolint:contextcheck // stop is called when ctx has ended.
}

// Use records spans with a provider's options, until stop.
func Use(options ...sdktrace.TracerProviderOption) (stop func()) {
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithIDGenerator(ids{}))...)
	otel.SetTracerProvider(provider)
	on.Store(true)
	return func() {
		on.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			otel.Handle(err)
		}
	}
}

// logEvery is how often a failing export is logged.
const logEvery = 10 * time.Minute

// LogTo logs when spans can't be exported, and not each time.
func LogTo(logger *slog.Logger) {
	var mu sync.Mutex
	var last time.Time
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) > logEvery {
			last = now
			logger.Warn("traces are not exported", "error", err)
		}
	}))
}

func tracer() trace.Tracer { return otel.Tracer("github.com/lockstep-rollouts/lockstep") }

// Release identifies the trace of a release.
type Release struct {
	Namespace, Workload, ID string
	// Started is when the release began. It distinguishes releases with the same id, for example of two clusters.
	Started time.Time
}

// Record records a span that began at a time and ends now, below that of the release. An error marks it as failed.
func (r Release) Record(name string, began time.Time, err error, attributes ...attribute.KeyValue) {
	if !On() {
		return
	}
	_, span := tracer().Start(trace.ContextWithRemoteSpanContext(context.Background(), r.context()), name,
		trace.WithTimestamp(began), trace.WithAttributes(append(attributes, r.attributes()...)...))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// End records the span of the release itself.
func (r Release) End(state, reason string) {
	ids := r.context()
	ctx := context.WithValue(context.Background(), idsKey{}, ids)
	_, span := tracer().Start(ctx, "release", trace.WithNewRoot(), trace.WithTimestamp(r.Started), trace.WithAttributes(r.attributes()...))
	span.SetAttributes(attribute.String("lockstep.state", state), attribute.String("lockstep.reason", reason))
	span.End()
}

func (r Release) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.K8SNamespaceName(r.Namespace), attribute.String("lockstep.workload", r.Workload), attribute.String("lockstep.release", r.ID),
	}
}

// context returns the identity of the release's span.
func (r Release) context() trace.SpanContext {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", r.Namespace, r.ID, r.Started.UnixNano()))
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(sum[:16]), SpanID: trace.SpanID(sum[16:24]), TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

// on is true between Use and its stop.
var on atomic.Bool

// On reports whether spans are recorded. What only they need is not computed otherwise.
func On() bool { return on.Load() }

// ids gives the span of a release its computed identity, and others a random one.
type ids struct{}

type idsKey struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if known, ok := ctx.Value(idsKey{}).(trace.SpanContext); ok {
		return known.TraceID(), known.SpanID()
	}
	var id trace.TraceID
	_, _ = rand.Read(id[:])
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id
}
