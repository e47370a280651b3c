// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A shell completes NAME by the LeaderWorkerSets of the namespace, and offers nothing if it can't list them.
func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/leaderworkerset.x-k8s.io/v1/namespaces/models/leaderworkersets" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [
			{"metadata": {"name": "vllm"}}, {"metadata": {"name": "sglang"}}]}`)
	}))
	t.Cleanup(server.Close)
	path := writeKubeconfigOf(t, server.URL)
	for _, tt := range []struct{ command, namespace, want string }{
		{"status", "models", "vllm\nsglang\n"}, {"plan", "models", "vllm\nsglang\n"}, {"release", "models", "vllm\nsglang\n"},
		{"status", "others", ""},
	} {
		var stdout, stderr buffer
		p := Program{Args: []string{"__complete", tt.command, "--kubeconfig", path, "--namespace", tt.namespace, ""}, Stdout: &stdout, Stderr: &stderr}
		code := p.Run(deadline(t))
		if got, _, _ := strings.Cut(stdout.String(), ":4"); code != 0 || got != tt.want {
			t.Errorf("%s in %s: code %d, %q, want %q; %s", tt.command, tt.namespace, code, stdout.String(), tt.want, stderr.String())
		}
	}
}
