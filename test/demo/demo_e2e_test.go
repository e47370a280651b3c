// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/netns"
)

// demoEnv makes the test binary run the demo.
const demoEnv = "LOCKSTEP_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(demoEnv) != "" {
		main()
	}
	code := m.Run()
	driver.Cleanup()
	os.Exit(code)
}

// playDemo runs the demo in a process group of its own, as make does on a terminal, and returns its output. It calls at once for the line
// with text.
func playDemo(t *testing.T, text string, at func(pid int), args ...string) string {
	t.Helper()
	lockstep := driver.Path(t)
	tmp, err := os.MkdirTemp("", "demo-") // short, for the path of a socket
	require.NoError(t, err)
	defer os.RemoveAll(tmp)
	cmd := exec.Command(os.Args[0], append([]string{"-lockstep", lockstep}, args...)...)
	// The cluster of the environment, which does not exist, must not be used.
	cmd.Env = append(os.Environ(), demoEnv+"=1", "TMPDIR="+tmp, "KUBECONFIG="+filepath.Join(tmp, "none"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, child.Start(cmd))
	var b strings.Builder
	for s := bufio.NewScanner(out); s.Scan(); {
		t.Log(s.Text())
		b.WriteString(s.Text() + "\n")
		if at != nil && strings.Contains(s.Text(), text) {
			at(cmd.Process.Pid)
		}
	}
	assert.NoError(t, cmd.Wait(), "demo")
	left, err := os.ReadDir(tmp)
	assert.True(t, err == nil && len(left) == 0, "temporary files are left: %v, %v", left, err)
	return b.String()
}

func mustContain(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		assert.True(t, regexp.MustCompile(p).MatchString(text), "the output lacks %q", p)
	}
}

// Before anything is built, make says what the first run will take.
//
// Proves: `make demo`, also when interrupted; `NODE=1` loses no request.
func TestDemoSaysWhatItTakes(t *testing.T) {
	for _, test := range []struct {
		name, cached string
		args         []string
		says         bool
	}{
		{name: "nothing is built", says: true},
		{name: "Kubernetes is built", cached: "kubernetes/0123456789abcdef/bin/kube-apiserver"},
		{name: "Argo is not", cached: "kubernetes/0123456789abcdef/bin/kube-apiserver", args: []string{"HOST=argo"}, says: true},
		{name: "the node is not", cached: "kubernetes/0123456789abcdef/bin/kube-apiserver", args: []string{"NODE=1"}, says: true},
		{name: "the gateway is not", cached: "kubernetes/0123456789abcdef/bin/kube-apiserver", args: []string{"TRAFFIC=1"}, says: true},
		{name: "cluster at hand", args: []string{"KUBECONFIG=file"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(cache, test.cached), 0o755))
			t.Setenv(cluster.CacheEnv, cache)
			out, err := exec.Command("make", append([]string{"--silent", "-C", "../..", "demo-time"}, test.args...)...).CombinedOutput()
			assert.True(t, err == nil && strings.Contains(string(out), "PREBUILT=yes") == test.says, "make says %q (%v)", out, err)
		})
	}
}

// Proves: `make demo`, also when interrupted; `NODE=1` loses no request.
func TestDemo(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // what is built already is not downloaded
	text := playDemo(t, "", nil, "-pause", "1s", "-prebuilt")
	mustContain(t, text, "is built already: nothing is downloaded", "is complete: 4 groups run revision", "llama-4-70b ready")
	assert.NotContains(t, text, "driver: ", "the driver warns")
}

// Prefill and decode are released together.
//
// Proves: `make demo KIND=disaggregated`.
func TestDemoDisaggregated(t *testing.T) {
	text := playDemo(t, "", nil, "-kind", "disaggregated", "-pause", "1s")
	mustContain(t, text, "pods unchanged", "is complete: 4 groups run revision", `(?m)^decode .* registry.example/vllm:llama-4-70b ready`)
	assert.NotContains(t, text, "driver: ", "the driver warns")
}

// In a cluster at hand the demo leaves nothing, also when it is interrupted in the middle of a release: its canary has a finalizer.
//
// Proves: `make demo KUBECONFIG=FILE` in a cluster at hand.
func TestDemoAtHand(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.WithLog(t.Output()))
	require.NoError(t, err)
	defer c.Stop()
	text := playDemo(t, "", nil, "-pause", "1s", "-kubeconfig", c.Kubeconfig())
	mustContain(t, text, "pods unchanged", "is complete: 4 groups run revision", `registry.k8s.io/pause:3.10 ready`, `namespace lockstep-demo-\S+ is deleted`)
	assert.NotContains(t, text, "driver: ", "the driver warns")
	text = playDemo(t, "pausing 1h0m0s before the promotion", func(pid int) { _ = syscall.Kill(-pid, syscall.SIGINT) }, "-pause", "1h", "-kubeconfig", c.Kubeconfig())
	mustContain(t, text, "pausing 1h0m0s before the promotion", `namespace lockstep-demo-\S+ is deleted`)
}

// Ctrl-C reaches the whole process group. It is not an error.
//
// Proves: `make demo`, also when interrupted; `NODE=1` loses no request.
func TestDemoInterrupted(t *testing.T) {
	text := playDemo(t, "pausing 1h0m0s before the promotion", func(pid int) { _ = syscall.Kill(-pid, syscall.SIGINT) }, "-pause", "1h")
	mustContain(t, text, "batch 1/1 .1. is ready", "pausing 1h0m0s before the promotion")
}

// On a real node the demo releases containers under streaming requests, loses none, and leaves nothing. What it runs in namespaces of
// its own ends with them: netns.TestNodeIsGone.
//
// Proves: `make demo`, also when interrupted; `NODE=1` loses no request.
func TestDemoOnNode(t *testing.T) {
	if err := netns.NodePossible(); err != nil {
		t.Skipf("this machine can't run a node: %v", err)
	}
	mustContain(t, playDemo(t, "", nil, "-node"), "is complete: 4 groups run revision", `(?m)^\d{3,} requests, 0 failed`)
}
