// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// receiver is a collector of OTLP.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []*tracepb.Span
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// counts returns how many spans of each name were received. Spans of writes count as "writes".
func (r *receiver) counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, span := range r.spans {
		name := span.GetName()
		if strings.HasPrefix(name, "write ") {
			name = "writes"
		}
		counts[name]++
	}
	return counts
}

// receive starts a receiver until the test ends.
func receive(t *testing.T) (r *receiver, endpoint string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &receiver{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r, "http://" + listener.Addr().String()
}

// A release of two batches is one trace, also if another driver continues it: a span per batch, per call that drives it, and per write that
// the API server has in its log. Not parallel: drivers of other tests serve all namespaces, and their writes would count.
func TestTracing(t *testing.T) {
	r, endpoint := receive(t)
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	e.driver.Env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "OTEL_BSP_SCHEDULE_DELAY=50"}
	e.driver.Restart()
	w := e.adopt(model("model", 2, 2))
	w.edit(image("v2"))
	from := audit.Mark(t, e.kube, e.namespace)
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	// A driver that ends regularly exports what it has; the next one continues the trace.
	e.driver.Stop()
	e.driver.Restart()
	w.upgrade("r1", 1)
	// The answer to a call can be ahead of the loop that records spans, most of all in a driver that has just started.
	w.eventually("both batches have a span", func(context.Context) error {
		if n := r.counts()["batch"]; n != 2 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	w.finalize("r1", promote)
	w.mustBeIdle()
	to := audit.Mark(t, e.kube, e.namespace)

	writes := 0
	for _, request := range audit.Between(t, e.cluster.AuditLog(), from, to, e.namespace) {
		if request.User.Username == driver.User && request.IsWrite() && !slices.Contains([]string{"events", "leases"}, request.ObjectRef.Resource) {
			writes++
		}
	}
	service := "lockstep.v1alpha1.WorkloadDriver/"
	want := map[string]int{
		"release": 1, "batch": 2, "promotion": 1, "writes": writes,
		service + "Initialize": 1, service + "UpgradeBatch": 2, service + "Finalize": 1,
	}
	w.eventually("the trace is complete", func(context.Context) error {
		if diff := cmp.Diff(want, r.counts()); diff != "" {
			return fmt.Errorf("-want +got:\n%s", diff)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		traces := map[string]bool{}
		var root *tracepb.Span
		for _, span := range r.spans {
			traces[string(span.GetTraceId())] = true
			if span.GetName() == "release" {
				root = span
			}
		}
		if len(traces) != 1 {
			return fmt.Errorf("%d traces", len(traces))
		}
		for _, span := range r.spans {
			if span != root && string(span.GetParentSpanId()) != string(root.GetSpanId()) {
				return fmt.Errorf("span %s is not below the release", span.GetName())
			}
			if span.GetStartTimeUnixNano() < root.GetStartTimeUnixNano() && span.GetName() != service+"Initialize" {
				return fmt.Errorf("span %s began before the release", span.GetName())
			}
		}
		return nil
	})
	t.Logf("%d spans: %v", len(r.spans), slices.Sorted(maps.Keys(want)))
}
