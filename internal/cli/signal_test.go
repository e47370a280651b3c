// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// childEnv carries the arguments of a program that TestChild runs, one per line.
const childEnv = "LOCKSTEP_TEST_ARGS"

// stuckEnv makes that program block when it writes to stderr, as it does when it is interrupted.
const stuckEnv = "LOCKSTEP_TEST_STUCK"

// TestChild is not a test but the child process of the tests below, which send it signals.
func TestChild(t *testing.T) {
	args := os.Getenv(childEnv)
	if args == "" {
		t.Skip("runs only as a child process of the other tests")
	}
	p := Program{Args: strings.Split(args, "\n"), Stdout: os.Stdout, Stderr: os.Stdout}
	if os.Getenv(stuckEnv) != "" {
		p.Stderr = stuckWriter{}
	}
	os.Exit(p.Run(t.Context()))
}

// stuckWriter blocks after its first write.
type stuckWriter struct{}

func (stuckWriter) Write(p []byte) (int, error) {
	_, _ = os.Stdout.Write(p)
	select {}
}

// startChild runs a release that hangs in its first batch.
func startChild(t *testing.T, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	fake := hosttest.New()
	fake.OnUpgrade = func(_ int32, c *pb.BatchContext) error { c.State = pb.State_STATE_UPGRADING; return nil }
	args := with(canary, "--address", hosttest.Serve(t, fake).Address, "--kubeconfig", writeKubeconfig(t))
	cmd := exec.CommandContext(deadline(t), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), append(env, childEnv+"="+strings.Join(args, "\n"))...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(stdout)
}

// readUntil reads lines up to the first one that contains text.
func readUntil(t *testing.T, lines *bufio.Scanner, text string) {
	t.Helper()
	var seen []string
	for lines.Scan() {
		if seen = append(seen, lines.Text()); strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the program did not print %q:\n%s", text, strings.Join(seen, "\n"))
}

func interruptChild(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(os.Interrupt), "send SIGINT")
}

func TestInterruptPausesRelease(t *testing.T) {
	t.Parallel()
	cmd, lines := startChild(t)
	readUntil(t, lines, "upgrading: batch 1/3")
	interruptChild(t, cmd)
	readUntil(t, lines, "interrupted: release cli-")
	readUntil(t, lines, "to abort:")
	err := cmd.Wait()
	ended, ok := errors.AsType[*exec.ExitError](err)
	assert.True(t, ok && ended.ExitCode() == exit.Interrupted, "the program ended with %v, want exit code %d", err, exit.Interrupted)
}

func TestSecondInterruptEndsProcess(t *testing.T) {
	t.Parallel()
	cmd, lines := startChild(t, stuckEnv+"=1")
	readUntil(t, lines, "upgrading: batch 1/3")
	interruptChild(t, cmd)
	readUntil(t, lines, "interrupted: release cli-")
	interruptChild(t, cmd)
	err := cmd.Wait()
	ended, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "the program ended with %v, want a signal", err)
	status, ok := ended.Sys().(syscall.WaitStatus)
	assert.True(t, ok && status.Signal() == syscall.SIGINT, "the program ended with %v, want SIGINT", err)
}
