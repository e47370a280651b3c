// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package modelservers

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Prometheus answers every query with 0, which passes each gate and analysis of the examples. A real Prometheus parses the query first,
// so one that is not PromQL is refused.
type Prometheus struct {
	URL string

	mu      sync.Mutex
	queries []string
}

// StartPrometheus starts it until the test ends.
func StartPrometheus(t testing.TB) *Prometheus {
	t.Helper()
	upstream, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), "127.0.0.1:1")
	require.NoError(t, err)
	t.Cleanup(stop)
	p := &Prometheus{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		parsed, err := http.PostForm(upstream+"/api/v1/query", map[string][]string{"query": {query}})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = parsed.Body.Close() }()
		if parsed.StatusCode != http.StatusOK {
			w.WriteHeader(parsed.StatusCode)
			_, _ = io.Copy(w, parsed.Body)
			return
		}
		p.mu.Lock()
		p.queries = append(p.queries, query)
		p.mu.Unlock()
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1700000000, "0"]}]}}`)
	}))
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Asked reports whether a query contained all these words.
func (p *Prometheus) Asked(words ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.queries, func(query string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(query, word) })
	})
}
