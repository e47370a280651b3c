// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
