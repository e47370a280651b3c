// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin"
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
		plugin.WithSHA256(fmt.Sprintf("%x", sha256.Sum256(data))), plugin.WithArgs("--kubeconfig", deadCluster(t)))
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
		opts   []plugin.Option
		want   error
		text   string
	}{
		{"checksum", "the file has changed", binary, []plugin.Option{plugin.WithSHA256(strings.Repeat("00", 32))}, plugin.ErrChecksum, "actual"},
		{"no plugin", "the file is another program", noPlugin, []plugin.Option{plugin.WithArgs("hello")}, plugin.ErrNotPlugin, "hello"},
		{"missing", "the path is a typo", binary + "-not", nil, fs.ErrNotExist, "-not"},
		{"arguments", "an invalid flag is shown to the user who configured it", binary, []plugin.Option{plugin.WithArgs("--nonsense")}, plugin.ErrNotPlugin, "--nonsense"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := plugin.Launch(t.Context(), tt.path, tt.opts...)
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
