// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver runs `lockstep serve` as a child process of tests, with exactly the permissions of config/base.
package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

// User is the driver's name in audit logs.
const User = "system:serviceaccount:" + config.Namespace + ":" + config.ServiceAccount

// binaryDir holds the binaries until Cleanup removes them.
var binaryDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "lockstep-e2e-") })

// Cleanup removes the binaries. TestMain calls it last.
func Cleanup() {
	if dir, err := binaryDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
}

// BinaryEnv is the environment variable with the path of a prebuilt lockstep binary.
const BinaryEnv = "LOCKSTEP_TEST_BINARY"

// Binary returns the path of the lockstep binary that [BinaryEnv] names, or builds it once per test binary.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		return path, nil
	}
	return build("lockstep")
})

// Path returns the path of [Binary].
func Path(t testing.TB) string {
	t.Helper()
	path, err := Binary()
	require.NoError(t, err)
	return path
}

func build(name string, flags ...string) (string, error) {
	dir, err := binaryDir()
	if err != nil {
		return "", fmt.Errorf("create directory: %w", err)
	}
	path := filepath.Join(dir, name)
	// As test/run does, so that packages are compiled once.
	args := append([]string{"build", "-C", filepath.Join("..", ".."), "-trimpath", "-o", path}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/lockstep")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build lockstep: %w\n%s", err, out)
	}
	return path, nil
}

// Driver is `lockstep serve` as a child process, and a client of it.
type Driver struct {
	t          testing.TB
	kubeconfig string
	namespace  string // "": all
	dir        string // short: a socket's path has about a hundred characters at most
	// Args are added to the command line.
	Args []string
	// Env is added to its environment.
	Env []string
	// Binary returns what it runs, by default [Binary].
	Binary func() (string, error)

	*plugin.Client

	process *child.Process // nil unless it runs
	log     *os.File
}

// Start starts a driver for one namespace, or for all if it is empty, and returns once its caches have synced.
func Start(t testing.TB, kubeconfig, namespace string) *Driver {
	t.Helper()
	d := Prepare(t, kubeconfig, namespace)
	d.Begin()
	d.AwaitSync()
	return d
}

// Prepare returns a driver that [Driver.Begin] starts.
func Prepare(t testing.TB, kubeconfig, namespace string) *Driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls")
	require.NoError(t, err)
	d := &Driver{t: t, kubeconfig: kubeconfig, namespace: namespace, dir: dir, Binary: Binary}
	d.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() {
		d.Stop()
		d.replay()
		if t.Failed() {
			raw, _ := os.ReadFile(d.log.Name())
			t.Logf("log of the driver:\n%s", tail(raw, 200))
		}
		_ = d.log.Close()
		_ = os.RemoveAll(dir)
	})
	return d
}

// Address returns the address that the driver listens on.
func (d *Driver) Address() string { return "unix://" + filepath.Join(d.dir, "s") }

// Log returns what the driver has logged.
func (d *Driver) Log() string {
	raw, err := os.ReadFile(d.log.Name())
	assert.NoError(d.t, err)
	return string(raw)
}

// Begin starts the process and connects. The driver may not serve calls yet.
func (d *Driver) Begin() {
	d.t.Helper()
	path, err := d.Binary()
	require.NoError(d.t, err)
	address := d.Address()
	args := []string{"serve", "--listen", address, "--kubeconfig", d.kubeconfig, "--record", d.recording()}
	if d.namespace != "" {
		args = append(args, "--namespace", d.namespace)
	}
	cmd := exec.Command(path, append(args, d.Args...)...)
	cmd.Env = append(os.Environ(), d.Env...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	d.process, err = child.Run(cmd)
	require.NoError(d.t, err)
	// gRPC would wait for a second before it retries.
	await.Nil(d.t, "the driver listens", func(context.Context) error {
		_, err := os.Stat(filepath.Join(d.dir, "s"))
		return err
	})
	ctx, cancel := context.WithTimeout(d.t.Context(), await.Patience)
	defer cancel()
	d.Client, err = plugin.Dial(ctx, address, plugin.DialOptions{WaitForReady: true, ConnectTimeout: await.Patience})
	require.NoError(d.t, err, "connect to the driver")
}

// AwaitSync returns once the driver's caches have synced.
func (d *Driver) AwaitSync() {
	d.t.Helper()
	await.Nil(d.t, "the driver's caches have synced", func(ctx context.Context) error {
		namespace := d.namespace
		if namespace == "" {
			namespace = "default"
		}
		_, err := d.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
			Workload: &pb.WorkloadRef{Namespace: namespace, Name: "no-such-workload"},
		})
		if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			return nil
		}
		return err
	})
}

// Running reports whether the process has been started and not been ended.
func (d *Driver) Running() bool { return d.process != nil }

// Kill sends SIGKILL and waits for the process to end.
func (d *Driver) Kill() {
	d.t.Helper()
	d.end(syscall.SIGKILL)
}

// Crash sends SIGKILL and returns at once. It is safe to call during other calls. Kill must follow, which counts it.
func (d *Driver) Crash() { _ = d.process.Cmd.Process.Kill() }

// Suspend stops the process until Resume, and in any case until the test ends.
func (d *Driver) Suspend() {
	d.t.Helper()
	d.signal(syscall.SIGSTOP)
	process := d.process.Cmd.Process
	d.t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
}

// Resume continues a suspended process.
func (d *Driver) Resume() {
	d.t.Helper()
	d.signal(syscall.SIGCONT)
}

// signal sends a signal, unless a fault has killed the process.
func (d *Driver) signal(sig syscall.Signal) {
	d.t.Helper()
	err := d.process.Cmd.Process.Signal(sig)
	require.False(d.t, err != nil && !errors.Is(err, os.ErrProcessDone), "send %v to the driver: %v", sig, err)
}

// AwaitExit waits until the process has ended by itself.
func (d *Driver) AwaitExit() {
	d.t.Helper()
	await.True(d.t, "the driver ends", func() bool {
		select {
		case <-d.process.Exited:
			return true
		default:
			return false
		}
	})
}

// Stop sends SIGTERM and waits for the process to end.
func (d *Driver) Stop() { d.end(syscall.SIGTERM) }

func (d *Driver) end(sig syscall.Signal) {
	if d.process == nil {
		return
	}
	assert.True(d.t, d.process.End(sig, await.Patience), "the driver did not end within %s of %v", await.Patience, sig)
	if d.Client != nil {
		_ = d.Close()
	}
	_ = os.Remove(filepath.Join(d.dir, "s"))
	d.process = nil
}

// Restart starts the driver again, on the same address.
func (d *Driver) Restart() {
	d.t.Helper()
	d.Begin()
	d.AwaitSync()
}

// permissions grants the driver's service account exactly config/base, and returns its kubeconfig.
func permissions(c *cluster.Cluster) (string, error) {
	if err := c.ApplyConfig(context.Background(), config.Namespace, deploy.RBAC); err != nil {
		return "", err
	}
	return AccountKubeconfig(c, config.Namespace, config.ServiceAccount)
}

// AccountKubeconfig writes a kubeconfig for a service account and returns its path.
func AccountKubeconfig(c *cluster.Cluster, namespace, name string) (string, error) {
	cfg, err := c.ServiceAccountConfig(context.Background(), namespace, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir(), "driver-"+namespace+"-"+name+".kubeconfig")
	return path, cluster.WriteKubeconfig(cfg, path)
}

// kubeconfigs holds the driver's kubeconfig of each cluster.
var kubeconfigs struct {
	sync.Mutex
	all map[*cluster.Cluster]string
}

// Kubeconfig returns the path of a kubeconfig with the driver's permissions in the cluster, which it grants first.
func Kubeconfig(t testing.TB, c *cluster.Cluster) string {
	t.Helper()
	kubeconfigs.Lock()
	defer kubeconfigs.Unlock()
	if path, ok := kubeconfigs.all[c]; ok {
		return path
	}
	path, err := permissions(c)
	if err != nil {
		t.Fatal(errors.Join(errors.New("grant the driver's permissions"), err))
	}
	if kubeconfigs.all == nil {
		kubeconfigs.all = map[*cluster.Cluster]string{}
	}
	kubeconfigs.all[c] = path
	return path
}

// ForgetAccount has the next call of [Kubeconfig] grant the permissions again: the account was deleted.
func ForgetAccount(c *cluster.Cluster) {
	kubeconfigs.Lock()
	defer kubeconfigs.Unlock()
	delete(kubeconfigs.all, c)
}

// tail returns the last lines of a log.
func tail(raw []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return bytes.Join(all, []byte("\n"))
}
