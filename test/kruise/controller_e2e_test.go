// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// controller is the `lockstep kruise` of this test binary, with exactly the permissions of config/kruise.
var controller struct {
	sync.Mutex
	*child.Process
	log string
}

// startController starts it, unless it runs.
func startController(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	controller.Lock()
	defer controller.Unlock()
	if controller.Process == nil {
		controller.Process = launch(t, c)
	}
}

// launch starts a `lockstep kruise`, which is active once it holds the Lease.
func launch(t *testing.T, c *cluster.Cluster) *child.Process {
	t.Helper()
	binary := driver.Path(t)
	kubeconfig, err := driver.AccountKubeconfig(c, config.Namespace, deploy.KruiseServiceAccount)
	require.NoError(t, err)
	controller.log = filepath.Join(c.Dir(), "log", "lockstep-kruise.log")
	log, err := os.OpenFile(controller.log, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	args := []string{"kruise", "--kubeconfig", kubeconfig, "--leader-elect", "--leader-elect-namespace", config.Namespace}
	if apart(c) {
		args = append(args, "--driver", startServer(t, c, binary))
	}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := child.Run(cmd)
	require.NoError(t, err)
	return p
}

// replaceController kills the active one, while another one is on standby.
func replaceController(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	p := launch(t, c)
	endController(syscall.SIGKILL)
	controller.Lock()
	defer controller.Unlock()
	controller.Process = p
}

// server is the separate driver, with exactly the permissions of config/base.
var server struct {
	*child.Process
	dir string
}

// startServer starts it, unless it runs, and returns its address.
func startServer(t *testing.T, c *cluster.Cluster, binary string) string {
	t.Helper()
	if server.Process == nil {
		var err error
		if server.dir, err = os.MkdirTemp("", "ls"); err != nil { // short: a socket's path has a hundred characters
			t.Fatal(err)
		}
		cmd := exec.Command(binary, "serve", "--kubeconfig", driver.Kubeconfig(t, c), "--listen", "unix://"+filepath.Join(server.dir, "s"))
		server.Process, err = child.Run(cmd)
		require.NoError(t, err)
	}
	return "unix://" + filepath.Join(server.dir, "s")
}

// stopServer stops it.
func stopServer() {
	if server.Process == nil {
		return
	}
	server.End(syscall.SIGKILL, 0)
	_ = os.RemoveAll(server.dir)
}

// stopController stops it as Kubernetes does.
func stopController() { endController(syscall.SIGTERM) }

func endController(signal syscall.Signal) {
	controller.Lock()
	defer controller.Unlock()
	if controller.Process == nil {
		return
	}
	controller.End(signal, 20*time.Second)
	controller.Process = nil
}

// controllerLog returns its log about a namespace.
func controllerLog(namespace string) string {
	raw, _ := os.ReadFile(controller.log)
	return text.LinesAbout(namespace, string(raw))
}
