// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// apiServer has two workloads whose hold was removed, and refuses writes. It serves only the requests of a driver.
type apiServer struct {
	mu     sync.Mutex
	writes []string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "status": map[string]any{"allowed": true},
		})
	case r.Method != http.MethodGet:
		s.mu.Lock()
		s.writes = append(s.writes, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable")
	case r.URL.Query().Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, "Invalid") // this server has lists only
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_ = json.NewEncoder(w).Encode(listOf(r.URL.Path))
	}
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "not here",
	})
}

func listOf(path string) map[string]any {
	list := map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{"resourceVersion": "7"}, "items": []any{}}
	switch {
	case strings.HasSuffix(path, "/controllerrevisions"):
		list["apiVersion"], list["kind"] = "apps/v1", "ControllerRevisionList"
	case strings.HasSuffix(path, "/leaderworkersets"):
		list["apiVersion"], list["kind"] = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSetList"
		list["items"] = []any{drifted("vllm"), drifted("other")}
	}
	return list
}

func drifted(name string) map[string]any {
	native := map[string]any{"partition": 0, "maxUnavailable": 1, "maxSurge": 0}
	record, err := json.Marshal(map[string]any{"version": 1, "saved": native})
	if err != nil {
		panic(err)
	}
	return map[string]any{
		"metadata": map[string]any{
			"namespace": "models", "name": name, "uid": name, "resourceVersion": "7",
			"annotations": map[string]any{"lockstep.dev/release": string(record)},
		},
		"spec": map[string]any{
			"replicas": 2, "leaderWorkerTemplate": map[string]any{"size": 2},
			"rolloutStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdateConfiguration": native},
		},
	}
}

func TestCommandsWriteOnlyTheirWorkload(t *testing.T) {
	const vllm = "PATCH /apis/leaderworkerset.x-k8s.io/v1/namespaces/models/leaderworkersets/vllm"
	for _, test := range []struct {
		reason string
		args   []string
		want   []string
	}{
		{"status writes nothing, although the hold has drifted", []string{"status", "vllm"}, nil},
		{"adopt repairs the hold of its workload only", []string{"adopt", "vllm"}, []string{vllm}},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			s := &apiServer{}
			server := httptest.NewServer(s)
			defer server.Close()
			out, err := exec.CommandContext(t.Context(), binary, append(test.args, "--kubeconfig", liveCluster(t, server.URL))...).CombinedOutput()
			require.True(t, err == nil && strings.Contains(string(out), "models/vllm"), "lockstep %v: %v\n%s", test.args, err, out)
			s.mu.Lock()
			defer s.mu.Unlock()
			slices.Sort(s.writes)
			got := slices.Compact(s.writes)
			assert.True(t, slices.Equal(got, test.want), "%s: wrote %q, want %q", test.reason, got, test.want)
		})
	}
}

// liveCluster writes a kubeconfig for an API server.
func liveCluster(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: live
clusters: [{name: live, cluster: {server: %q}}]
contexts: [{name: live, context: {cluster: live, namespace: models}}]
`, url)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
