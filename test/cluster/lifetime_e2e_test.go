// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// Ctrl-C on the command, also during startup, leaves no processes and no files. No process outlives one that is killed.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestCommandInterrupt(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "cluster")
	out, err := exec.Command("go", "build", "-o", binary, "./cmd/cluster").CombinedOutput()
	require.NoError(t, err, "build the command: %v\n%s", err, out)
	for _, when := range []string{"starting", "ready", "killed"} {
		t.Run(when, func(t *testing.T) {
			temporary := t.TempDir()
			command := exec.Command(binary, "--nodes=1", "--without-lws")
			command.Env = append(os.Environ(), "TMPDIR="+temporary)
			stdout, err := command.StdoutPipe()
			require.NoError(t, err)
			children := startParent(t, command, temporary)
			if line := bufio.NewScanner(stdout); when == "ready" && !line.Scan() {
				t.Errorf("the command printed nothing: %v", line.Err())
			} else if when == "ready" && !strings.HasPrefix(line.Text(), "export KUBECONFIG="+temporary) {
				t.Errorf("the command printed %q", line.Text())
			}
			if when == "killed" {
				_ = command.Process.Kill()
				_ = command.Wait()
				waitGone(t, children)
				return
			}
			require.NoError(t, command.Process.Signal(os.Interrupt))
			assert.NoError(t, command.Wait(), "the command exited with")
			waitGone(t, children)
			left, err := os.ReadDir(temporary)
			assert.True(t, err == nil && len(left) == 0, "left behind: %v (%v)", left, err)
		})
	}
}

// startParent starts a program that starts a cluster below dir, and returns the cluster's processes once all run.
func startParent(t *testing.T, parent *exec.Cmd, dir string) []int {
	t.Helper()
	parent.Stderr = t.Output()
	require.NoError(t, parent.Start())
	t.Cleanup(func() { _ = parent.Process.Kill() })
	var children []int
	eventually(t, "all components run", func(context.Context) error {
		children = processesBelow(t, dir)
		if len(children) < 5 {
			return fmt.Errorf("%d processes run", len(children))
		}
		return nil
	})
	return children
}

// processesBelow returns the processes whose working directory is in dir, as are those of components.
func processesBelow(t *testing.T, dir string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	var found []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		require.NoError(t, err)
		found = append(found, pid)
	}
	return found
}

func waitGone(t *testing.T, pids []int) {
	t.Helper()
	eventually(t, "children end", func(context.Context) error {
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) && !zombie(pid) {
				return fmt.Errorf("process %d still exists", pid)
			}
		}
		return nil
	})
}

// zombie reports whether a process has exited and was not waited for.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A component that dies ends the cluster with an error.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestComponentDies(t *testing.T) {
	c, err := Start(t.Context(), WithDir(filepath.Join(t.TempDir(), "cluster")), WithNodes(1, nil), WithoutLWS(), WithLog(t.Output()))
	require.NoError(t, err)
	defer c.Stop()
	p, err := c.process(Scheduler)
	require.NoError(t, err)
	require.NoError(t, p.Cmd.Process.Kill())
	select {
	case <-c.Done():
	case <-time.After(await.Patience):
		t.Fatal("Done was not closed")
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), Scheduler) || !strings.Contains(err.Error(), p.logPath) {
		t.Errorf("the error lacks the component or the log: %v", err)
	}
}
