// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// process is a `lockstep batchrelease`.
type process struct {
	child *child.Process
	cmd   *exec.Cmd
	log   *text.Buffer
}

// rights grants the host's account the permissions of config/kruise/batchrelease, and returns its kubeconfig.
func rights(t *testing.T, c *cluster.Cluster, withDriver bool) string {
	t.Helper()
	manifests := []func() ([]byte, error){deploy.BatchRelease}
	if withDriver {
		manifests = append(manifests, deploy.BatchReleaseDriver)
	}
	require.NoError(t, c.ApplyConfig(t.Context(), "", manifests...))
	kubeconfig, err := driver.AccountKubeconfig(c, config.Namespace, deploy.BatchReleaseServiceAccount)
	require.NoError(t, err)
	return kubeconfig
}

// begin starts a host.
func begin(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	binary := driver.Path(t)
	args = append([]string{"batchrelease", "--kubeconfig", kubeconfig}, args...)
	if !slices.Contains(args, "--driver") {
		args = append(args, "--canary-metadata-prefix", "track", "--canary-metadata-prefix", "example.com/")
	}
	p := &process{cmd: exec.Command(binary, args...), log: &text.Buffer{}}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	var err error
	p.child, err = child.Run(p.cmd)
	require.NoError(t, err)
	return p
}

// end stops it with a signal, and waits.
func (p *process) end(signal syscall.Signal) { p.child.End(signal, await.Patience) }

// mustEnd waits until the host has ended by itself, with an error that contains these words.
func (p *process) mustEnd(t *testing.T, words ...string) {
	t.Helper()
	select {
	case <-p.child.Exited:
	case <-time.After(await.Patience):
		p.end(syscall.SIGKILL)
		t.Fatalf("the host keeps running:\n%s", p.log)
	}
	assert.NotZero(t, p.cmd.ProcessState.ExitCode(), "it ended with success")
	for _, word := range words {
		assert.Contains(t, p.log.String(), word, "it does not say %q:\n%s", word, p.log)
	}
}

// shared is the host of all parallel tests.
var shared struct {
	sync.Mutex
	*process
}

func startShared(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.process == nil {
		installKind(t, c)
		shared.process = begin(t, rights(t, c, true), "--leader-elect", "--leader-elect-namespace", config.Namespace)
	}
}

// alone returns the cluster without the shared host, which an earlier run may have left.
func alone(t *testing.T) *cluster.Cluster {
	t.Helper()
	stopShared()
	return cluster.Shared(t)
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.process != nil {
		shared.end(syscall.SIGTERM)
		shared.process = nil
	}
}

// sharedLog returns the shared host's log about a namespace.
func sharedLog(namespace string) string {
	shared.Lock()
	defer shared.Unlock()
	if shared.process == nil {
		return ""
	}
	return text.LinesAbout(namespace, shared.log.String())
}

// installKind installs the CRD of BatchRelease, without Kruise's manager.
func installKind(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	require.NoError(t, c.InstallBatchRelease(context.WithoutCancel(t.Context())))
}

// children returns the child processes of a process.
func children(t *testing.T, pid int) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var out []string
	for _, entry := range entries {
		raw, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid
		_, rest, _ := strings.Cut(string(raw), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			out = append(out, entry.Name())
		}
	}
	return out
}
