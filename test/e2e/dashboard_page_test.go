// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lockstep-rollouts/lockstep/test/browser"
)

// The page of a DisaggregatedSet, after a night without the driver, with words that are wider than the window.
//
// Proves (test): `lockstep dashboard` in a headless Chromium: a release over time, layout, links, screen readers; a driver that restarts.
func TestDashboardPage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir("../../internal/dashboard/web")))
	mux.HandleFunc("/history/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, long, http.StatusBadGateway) })
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, `event: status
data: {"scope":"", "synced":true, "lost":%[1]q, "lostSince":"2026-01-02T12:00:00Z", "links":[["Board","https://example.com/?workload={name}"]]}

event: workload
data: {"key":"ml/disaggregatedset/llm", "running":true, "live":true, "release":%[1]q, "state":"upgrading", "reason":"GroupsNotReady", "message":%[1]q,
data: "since":"2026-01-02T12:00:00Z", "replicas":4, "share":0, "batch":"-", "traffic":"-", "capacity":"-", "groups":[], "facts":[], "history":"1"}

`, long)
		w.(http.Flusher).Flush() //nolint:forcetypeassert // a server's
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.CloseClientConnections)

	p := browser.Open(t, server.URL+"/style.css")
	browser.Eval[any](p, "sessionStorage.setItem('tracks', 'of another program')")
	browser.Run(p, chromedp.Navigate(server.URL+"/#/ml/disaggregatedset/llm"))
	// The label of the metrics is the workload's name with its kind.
	p.AwaitAttribute("#links a", "href", "https://example.com/?workload=disaggregatedset%2Fllm")
	p.AwaitText("has not answered since "+browser.Eval[string](p, "new Date('2026-01-02T12:00:00Z').toLocaleDateString()"), "upgrading", "Release "+long)
	p.Resize(500, 900)
}
