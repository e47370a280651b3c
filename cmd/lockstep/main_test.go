// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// binary is shared by the tests, and built as users build it.
var binary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "lockstep")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build lockstep: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// deadCluster writes a kubeconfig whose API server does not answer.
func deadCluster(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `apiVersion: v1
kind: Config
current-context: dead
clusters: [{name: dead, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: dead, context: {cluster: dead}}]
`
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLaunch(t *testing.T) {
	data, err := os.ReadFile(binary)
	require.NoError(t, err)
	begin := time.Now()
	client, err := plugin.Launch(t.Context(), binary,
		plugin.LaunchOptions{SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Args: []string{"--kubeconfig", deadCluster(t)}})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	t.Logf("connected after %v", time.Since(begin))
	if !client.Has(pb.Capability_CAPABILITY_RELEASE) {
		t.Errorf("the driver lists %v, not RELEASE", client.Info().GetCapabilities())
	}
	// Without an API server the caches stay empty: the call may be retried.
	_, err = client.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}})
	assert.True(t, status.Code(err) == codes.Unavailable && plugin.Retryable(err), "Adopt without a cluster: %v, want UNAVAILABLE", err)
}

func TestLaunchErrors(t *testing.T) {
	noPlugin, err := exec.LookPath("echo")
	if err != nil {
		t.Skip("no echo on this machine")
	}
	tests := []struct {
		name   string
		reason string
		path   string
		opts   plugin.LaunchOptions
		want   error
		text   string
	}{
		{"checksum", "the file has changed", binary, plugin.LaunchOptions{SHA256: strings.Repeat("00", 32)}, plugin.ErrChecksum, "is not 0000"},
		{"no plugin", "the file is another program", noPlugin, plugin.LaunchOptions{Args: []string{"hello"}}, plugin.ErrNotPlugin, "hello"},
		{"missing", "the path is a typo", binary + "-not", plugin.LaunchOptions{}, fs.ErrNotExist, "-not"},
		{"arguments", "an invalid flag is shown to the user who configured it", binary, plugin.LaunchOptions{Args: []string{"--nonsense"}}, plugin.ErrNotPlugin, "--nonsense"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := plugin.Launch(t.Context(), tt.path, tt.opts)
			if err == nil {
				_ = client.Close()
				t.Fatalf("%s: launched", tt.reason)
			}
			assert.True(t, errors.Is(err, tt.want) && strings.Contains(err.Error(), tt.text),
				"%s: error is %q, want %v with %q", tt.reason, err, tt.want, tt.text)
		})
	}
}

func TestRunWithoutHost(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), binary).Output()
	assert.True(t, err == nil && strings.Contains(string(out), "lockstep serve"), "without arguments: %v, %s", err, out)
	err = exec.CommandContext(t.Context(), binary, "--nonsense").Run()
	var exit *exec.ExitError
	assert.True(t, errors.As(err, &exit) && exit.ExitCode() == 2, "with an unknown flag: %v, want exit code 2", err)
}

// A command says soon what it waits for, and ends with the culprit and a command to copy.
func TestCommandsNameAPIServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	// Connections are accepted by the kernel, and no request is answered.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	refuses, answersNothing := deadCluster(t), liveCluster(t, "http://"+silent.Addr().String())
	t.Run("commands", func(t *testing.T) {
		for name, args := range map[string][]string{
			"list":        {"status", "--kubeconfig", refuses},
			"list silent": {"status", "--kubeconfig", answersNothing},
			"plan":        {"plan", "vllm", "--kubeconfig", refuses},
			"watch":       {"watch", "--kubeconfig", answersNothing},
			"check":       {"check", "--kubeconfig", answersNothing},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
				text := string(out)
				assert.True(t, err != nil && strings.Count(text, "can't be reached: ") == 1 && !strings.Contains(text, "/apis/") && strings.HasSuffix(text, "kubectl config view --minify --kubeconfig "+args[len(args)-1]+"\n"),
					"lockstep %v: %v\n%s", args, err, text)
				assert.False(t, args[0] != "check" && strings.Count(text, "waiting for the API server at http://127.0.0.1:") != 1,
					"lockstep %v does not say once what it waits for:\n%s", args, text)
			})
		}
	})
}

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
