// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
)

// commandLimit bounds the commands of a block, also with cold caches, and if the test is killed.
const commandLimit = "10m"

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// block returns the commands of the only shell block of a README that contains text. It replaces the binary, the address and
// the namespace by those of the test.
func (e *env) block(folder, text string) string {
	e.T.Helper()
	readme := files.Read(e.T, source(folder, "README.md"))
	var found []string
	for _, match := range shellBlock.FindAllSubmatch(readme, -1) {
		if block := string(match[1]); strings.Contains(block, text) {
			found = append(found, block)
		}
	}
	require.Len(e.T, found, 1, "%s/README.md has %d shell blocks with %q, want 1", folder, len(found), text)
	return strings.NewReplacer(
		"bin/lockstep", e.binary,
		"unix:///tmp/lockstep/driver.sock", e.address,
		" default ", " "+e.Namespace+" ",
	).Replace(found[0])
}

// command runs a script in the repository's root.
func (e *env) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "timeout", "--kill-after=5s", commandLimit, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = source("..")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.kubeconfig, "npm_config_prefer_offline=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run returns the output of a script, which must succeed.
func (e *env) run(script string) string {
	e.T.Helper()
	start := time.Now()
	out, err := e.command(e.T.Context(), script).CombinedOutput()
	require.NoError(e.T, err, "%v from\n%s\nwhich printed\n%s", err, script, out)
	e.T.Logf("%.1f s: %s%s", time.Since(start).Seconds(), script, out)
	return string(out)
}

// process is a script that runs beside the test.
type process struct {
	output string
	stop   context.CancelFunc
	ended  chan error
}

// start runs a script beside the test, until stop or the end of the test.
func (e *env) start(script string) *process {
	e.T.Helper()
	p := &process{output: filepath.Join(e.T.TempDir(), "output"), ended: make(chan error, 1)}
	file, err := os.Create(p.output)
	require.NoError(e.T, err)
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	cmd := e.command(ctx, script)
	cmd.Stdout, cmd.Stderr = file, file
	require.NoError(e.T, cmd.Start())
	go func() {
		err := cmd.Wait()
		_ = file.Close()
		p.ended <- err
		close(p.ended)
	}()
	e.T.Cleanup(func() {
		p.stop()
		<-p.ended
		e.T.Logf("beside the test: %s%s", script, p.text())
	})
	return p
}

// wait returns the script's error.
func (p *process) wait() error { return <-p.ended }

// text returns the output so far.
func (p *process) text() string {
	out, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// serve starts the driver with a README's block, and waits until it listens.
func (e *env) serve(folder string) {
	e.T.Helper()
	e.start(e.block(folder, "serve --listen"))
	e.Eventually("the driver listens", func(context.Context) error {
		_, err := os.Stat(strings.TrimPrefix(e.address, "unix://"))
		return err
	})
}
