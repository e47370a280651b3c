// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

const local = "10.128.0.0/9"

// helperEnv makes the test binary run one of the helper programs below instead of the tests.
const helperEnv = "LOCKSTEP_NETNS_TEST_HELPER"

func TestMain(m *testing.M) {
	run := m.Run
	switch os.Getenv(helperEnv) {
	case "wait":
		run = wait
	case "node":
		os.Exit(MainOnNode(nil, waitOnNode, nodeAddress))
	}
	os.Exit(Main(nil, run, local))
}

// wait prints its pid and exits with 9 on SIGTERM.
func wait() int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println(os.Getpid())
	select {
	case <-signals:
		return 9
	case <-time.After(time.Minute):
		return 1
	}
}

var nodeAddress = netip.MustParseAddr("192.0.2.1")

// waitOnNode starts a process that outlives its parent, prints the name of its cgroup as others see it, and waits.
func waitOnNode() int {
	switch {
	case !OnNode():
		fmt.Println("not on a node")
	case exec.Command("sh", "-c", "sleep 1000 &").Run() != nil:
		fmt.Println("no orphan")
	case os.Getpid() > 100:
		fmt.Println("process", os.Getpid(), "is not in a namespace of its own")
	}
	return wait()
}

// helper starts the test binary again, from inside the namespace: it creates a namespace of its own.
func helper(t *testing.T, what string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	cmd.Stderr = t.Output()
	return cmd
}

// Proves: A namespace of tests reaches nothing else, and its signals and exit code are passed on; a node's processes, mounts and cgroups end with it.
func TestNothingElseIsReachable(t *testing.T) {
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range interfaces {
		assert.False(t, i.Name != "lo" && i.Flags&net.FlagUp != 0, "interface %s is up", i.Name)
	}
	_, err = net.DialTimeout("tcp", "10.1.2.3:80", 5*time.Second)
	assert.ErrorIs(t, err, syscall.ENETUNREACH, "dial an address outside the range")

}

// Proves: A namespace of tests reaches nothing else, and its signals and exit code are passed on; a node's processes, mounts and cgroups end with it.
func TestSignalsAndParent(t *testing.T) {
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		code   int
		reason string
	}{
		{"terminate", syscall.SIGTERM, 9, "the inner process decides what a signal means"},
		{"kill", syscall.SIGKILL, -1, "the inner process does not outlive the outer one"},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := helper(t, "wait")
			stdout, err := outer.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, outer.Start())
			line, err := bufio.NewReader(stdout).ReadString('\n')
			require.NoError(t, err)
			inner, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || inner == outer.Process.Pid {
				t.Fatalf("inner process %d, outer %d: %v", inner, outer.Process.Pid, err)
			}
			_ = outer.Process.Signal(test.signal)
			var exit *exec.ExitError
			if err := outer.Wait(); !errors.As(err, &exit) || exit.ExitCode() != test.code {
				t.Errorf("ended with %v, want code %d: %s", err, test.code, test.reason)
			}
			for range 1000 {
				if errors.Is(syscall.Kill(inner, 0), syscall.ESRCH) || zombie(inner) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("process %d still exists: %s", inner, test.reason)
		})
	}
}

// zombie reports whether a process has ended, reaped by its parent or not.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A process with insideEnv set by hand does not change the network of its namespace.
//
// Proves: A namespace of tests: only a new one is configured.
func TestOuterNamespaceIsNotConfigured(t *testing.T) {
	current, err := namespace()
	require.NoError(t, err)
	for _, outer := range []string{current, ""} {
		assert.Error(t, setUp(outer, config{}), "configured namespace %q", outer)
	}
}

// A node's processes, mounts and cgroups are its own, and are gone when it ends, also if it is killed.
//
// Proves: A namespace of tests reaches nothing else, and its signals and exit code are passed on; a node's processes, mounts and cgroups end with it.
func TestNodeIsGone(t *testing.T) {
	if err := NodePossible(); err != nil {
		t.Skipf("this machine can't run a node: %v", err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			outer := helper(t, "node")
			stdout, err := outer.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, outer.Start())
			line, err := bufio.NewReader(stdout).ReadString('\n')
			_, notPid := strconv.Atoi(strings.TrimSpace(line))
			require.True(t, err == nil && notPid == nil, "the node printed %q: %v", line, err)
			own, err := cgroups()
			require.NoError(t, err)
			name := fmt.Sprintf("lockstep-%d", outer.Process.Pid)
			members, err := os.ReadFile(filepath.Join(own["memory"], name, "cgroup.procs"))
			pids := strings.Fields(string(members))
			require.True(t, err == nil && len(pids) >= 3,
				"processes in the node's cgroup: %v (%v), want the first one, the program and its orphan", pids, err)
			_ = outer.Process.Signal(signal)
			_ = outer.Wait()
			await.Nil(t, "processes and cgroups are gone", func(context.Context) error {
				for _, pid := range pids {
					if id, err := strconv.Atoi(pid); err == nil && !zombie(id) {
						return fmt.Errorf("process %d still exists", id)
					}
				}
				for controller, dir := range own {
					if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
						return fmt.Errorf("the cgroup of %s still exists", controller)
					}
				}
				return nil
			})
			mounts, err := os.ReadFile("/proc/self/mounts")
			assert.True(t, err == nil && !strings.Contains(string(mounts), "/var/lib/cni"),
				"mounts of the node are visible outside: %s (%v)", mounts, err)
		})
	}
}
