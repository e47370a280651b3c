// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The answers here are those of Prometheus' documented API; test/e2e asks a real Prometheus.
func TestMeasure(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		status int
		answer string
		want   string
	}{
		"Vector":   {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0.5"]}]}}`, "0.5"},
		"Scalar":   {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`, "2"},
		"Infinite": {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"+Inf"]}}`, "the result is +Inf"},
		"NaN":      {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}`, "no data: the result is NaN"},
		"Empty":    {200, `{"status":"success","data":{"resultType":"vector","result":[]}}`, "no data: the query has no result"},
		"Two": {
			200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"1"},"value":[1,"0"]},{"metric":{"a":"2"},"value":[1,"0"]}]}}`,
			"the query has 2 results, want one",
		},
		"Histogram": {
			200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"9","sum":"90","buckets":[[0,"8","16","9"]]}]}]}}`,
			"the result is a histogram, want one number",
		},
		"Partial": {
			200, `{"status":"success","warnings":["No StoreAPIs matched for this query"],"data":{"resultType":"scalar","result":[1,"0"]}}`,
			"the answer may be incomplete: No StoreAPIs matched",
		},
		"Info":        {200, `{"status":"success","infos":["metric might not be a counter"],"data":{"resultType":"scalar","result":[1,"2"]}}`, "2"},
		"Range":       {200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`, "result of type matrix"},
		"Text":        {200, `{"status":"success","data":{"resultType":"string","result":[1,"a"]}}`, "error: query Prometheus at http://"},
		"BadQuery":    {400, `{"status":"error","errorType":"bad_data","error":"1:4: parse error"}`, "error: query Prometheus at http://"},
		"Unavailable": {503, `starting`, "error: query Prometheus at http://"},
		"Garbage":     {200, `hello`, "error: query Prometheus at http://"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, `up{ namespace="ml",leaderworkerset_sigs_k8s_io_name="vllm",leaderworkerset_sigs_k8s_io_template_revision_hash="new" }`, r.FormValue("query"),
					"query")
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.answer)
			}))
			t.Cleanup(server.Close)
			p, err := NewPrometheus(server.URL, "")
			require.NoError(t, err)
			m := p.Measure(t.Context(), Gate{Name: "a", Query: "up{ {{.Canary}} }"}, Subject{Namespace: "ml", Name: "vllm", UpdateRevision: "new"})
			got := m.Problem
			if m.Err != nil {
				got = "error: " + m.Err.Error()
			} else if m.Value != nil {
				got = formatNumber(*m.Value)
			}
			assert.Contains(t, got, tc.want)
		})
	}
}

func TestPrometheusCredentials(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "http.yaml")
	require.NoError(t, os.WriteFile(file, []byte("authorization: {credentials: t0ken}\n"), 0o600))
	for config, want := range map[string]bool{file: true, "": false} {
		p, err := NewPrometheus(server.URL, config)
		require.NoError(t, err)
		m := p.Measure(t.Context(), Gate{Query: "up"}, Subject{})
		assert.Equal(t, want, m.Err == nil, "with config %q: %v", config, m.Err)
	}
}

func TestNewPrometheusRefuses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"localhost:9090":                 "want a URL",
		"":                               "want a URL",
		"http://":                        "want a URL",
		"http://jo:s3cret@prometheus":    "has a user",
		"http://jo:s3cret%zz@prometheus": "want a URL",
		"http://prometheus?token=s3cret": "has a user or a query",
	} {
		_, err := NewPrometheus(address, "")
		assert.False(t, err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret"), "%q: %v", address, err)
	}
	_, err := NewPrometheus("http://prometheus", "/does/not/exist")
	assert.Error(t, err, "a missing file is no error")
}
