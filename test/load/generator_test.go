// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// gateway starts a server with a handler.
func gateway(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server.URL
}

func pod(w http.ResponseWriter, code int, answer podanswer.Answer) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPhases(t *testing.T) {
	var next atomic.Value
	next.Store("s")
	url := gateway(t, func(w http.ResponseWriter, _ *http.Request) {
		pod(w, 200, podanswer.Answer{Pod: "p", Workload: next.Load().(string)})
	})
	g := Start(t.Context(), Options{URL: url, Rate: 2000})
	if err := g.Await(limited(t), 10); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"s", "c"} {
		g.Begin(Phase{Name: side, Want: Shares{side: 100}})
		next.Store(side)
		if err := g.Await(limited(t), 300); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.Share(50); got["c"] != 100 {
		t.Errorf("shares at the end: %v", got)
	}
	if requests, failed := g.Totals(); requests < 610 || failed != 0 {
		t.Errorf("%d requests and %d failed so far, want those of all phases, and none", requests, failed)
	}
	g.Begin(Phase{Name: "never", Want: Shares{"s": 100}})
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := g.Await(short, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"never"`) {
		t.Errorf("Await: %v", err)
	}
	report := g.End()
	if problems := report.Problems(); len(report.Rows) != 4 || len(problems) != 1 || !strings.HasPrefix(problems[0], `phase "never"`) {
		t.Errorf("%d rows, problems %q", len(report.Rows), problems)
	}
}

func TestRequests(t *testing.T) {
	var mu sync.Mutex
	var long, match, all int
	url := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		all++
		if r.FormValue("duration") == "1.5s" {
			long++
		}
		if r.Header.Get("X-Canary") == "yes" {
			match++
		}
		if r.Method != http.MethodPost || r.Host != "model.test" || r.URL.Path != "/v1" {
			t.Errorf("got %s %s%s", r.Method, r.Host, r.URL.Path)
		}
		pod(w, 200, podanswer.Answer{Pod: "p", Workload: "s"})
	})
	g := Start(t.Context(), Options{
		URL: url + "/v1", Host: "model.test", Requests: 2000, LongEvery: 20, LongFor: 1500 * time.Millisecond, MatchEvery: 10, Match: http.Header{"X-Canary": {"yes"}},
	})
	if err := g.Await(limited(t), 2001); !errors.Is(err, ErrEnded) {
		t.Errorf("Await: %v, want %v", err, ErrEnded)
	}
	if requests, failed := g.End().Totals(); requests != 2000 || failed != 0 || all != 2000 || long < 50 || long > 150 || match < 100 || match > 300 {
		t.Errorf("%d requests (%d at the server), %d failed, %d long, %d with headers", requests, all, failed, long, match)
	}
}

func TestClassification(t *testing.T) {
	for _, test := range []struct {
		kind   string
		answer http.HandlerFunc
	}{
		{"", func(w http.ResponseWriter, _ *http.Request) { pod(w, 200, podanswer.Answer{Pod: "p"}) }},
		{"worker", func(w http.ResponseWriter, _ *http.Request) {
			pod(w, 503, podanswer.Answer{Pod: "p", Violation: podanswer.Worker})
		}},
		{"gone", func(w http.ResponseWriter, _ *http.Request) { pod(w, 503, podanswer.Answer{Violation: podanswer.Gone}) }},
		{failedGateway, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no available server", http.StatusServiceUnavailable)
		}},
		{failedGateway, func(w http.ResponseWriter, _ *http.Request) { pod(w, 500, podanswer.Answer{Pod: "p"}) }},
		{failedGateway, func(http.ResponseWriter, *http.Request) {}},
		{failedRequest, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{failedTimeout, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server notices a disconnect only after it has read the body
			<-r.Context().Done()
		}},
	} {
		o := Options{URL: gateway(t, test.answer), Requests: 1}
		if test.kind == failedTimeout {
			o.Timeout = 100 * time.Millisecond
		}
		g := Start(t.Context(), o)
		_ = g.Await(limited(t), 2)
		row := g.End().Rows[0]
		if test.kind == "" && row.Failed > 0 || test.kind != "" && row.Failures[test.kind] != 1 {
			t.Errorf("want %q, got %v", test.kind, row.Failures)
		}
	}
}

// End waits for requests in flight.
func TestEndWaits(t *testing.T) {
	arrived := make(chan struct{}, 1)
	url := gateway(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		time.Sleep(200 * time.Millisecond)
		pod(w, 200, podanswer.Answer{Pod: "p", Workload: "s"})
	})
	g := Start(t.Context(), Options{URL: url, Concurrency: 1})
	<-arrived
	if requests, failed := g.End().Totals(); requests != 1 || failed != 0 {
		t.Errorf("%d requests, %d failed", requests, failed)
	}
}

func TestRate(t *testing.T) {
	url := gateway(t, func(w http.ResponseWriter, _ *http.Request) { pod(w, 200, podanswer.Answer{Pod: "p", Workload: "s"}) })
	began := time.Now()
	g := Start(t.Context(), Options{URL: url, Rate: 200, Duration: 500 * time.Millisecond})
	<-g.done
	took := time.Since(began)
	if requests, _ := g.End().Totals(); requests < 1 || requests > 2+int(200*took.Seconds()) {
		t.Errorf("%d requests in %s at 200/s", requests, took)
	}
}
