// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockstep-rollouts/lockstep/internal/tracing"
)

// Not parallel: OpenTelemetry's provider is one for the process.
func TestRelease(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	stop := tracing.Use(sdktrace.WithSyncer(spans))
	t.Cleanup(stop)
	noon := time.Date(2026, 1, 2, 12, 0, 0, 7, time.UTC)
	r := tracing.Release{Namespace: "prod", Workload: "vllm", ID: "r1", Started: noon}
	r.Record("batch", noon.Add(time.Second), nil)
	// Another process records its spans, and the end.
	r = tracing.Release{Namespace: "prod", Workload: "vllm", ID: "r1", Started: noon.Local()}
	r.Record("write ScaleCanary", noon.Add(time.Second), errors.New("refused"))
	r.End("COMPLETED", "Promoted")
	other := r
	other.Started = noon.Add(1)
	other.Record("batch", noon, nil)
	got := spans.GetSpans()
	if len(got) != 4 {
		t.Fatalf("%d spans", len(got))
	}
	root := got[2]
	if root.Name != "release" || root.Parent.IsValid() || !root.StartTime.Equal(noon) {
		t.Errorf("the release's span is %+v", root)
	}
	for _, span := range got[:2] {
		if span.Parent.SpanID() != root.SpanContext.SpanID() || span.SpanContext.TraceID() != root.SpanContext.TraceID() {
			t.Errorf("%s is not below the release: %v", span.Name, span.Parent)
		}
	}
	if got[0].Status.Code != codes.Unset || got[1].Status.Code != codes.Error || got[1].Status.Description != "refused" {
		t.Errorf("status %v and %v", got[0].Status, got[1].Status)
	}
	if got[3].SpanContext.TraceID() == root.SpanContext.TraceID() {
		t.Error("a release with the same id that began at another time has the same trace")
	}
	if !tracing.On() {
		t.Error("spans are recorded, and On returns false")
	}
	if stop(); tracing.On() {
		t.Error("On returns true after stop")
	}
}

func TestOffByDefault(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	stop, err := tracing.Start(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if tracing.On() {
		t.Error("it records without a configuration")
	}
}

// A collector that does not answer delays nothing, and is logged once.
func TestUnreachableCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
	var log bytes.Buffer
	tracing.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	stop, err := tracing.Start(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	tracing.Release{ID: "r1"}.Record("batch", time.Now(), nil)
	stop()
	otel.Handle(errors.New("again"))
	if n := strings.Count(log.String(), "traces are not exported"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
