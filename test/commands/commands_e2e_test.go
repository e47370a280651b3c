// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package commands

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/document"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const root = "../.."

func TestMain(m *testing.M) {
	code := suite.Main(m, 4, cluster.WithInstallers())
	driver.Cleanup()
	os.Exit(code)
}

func TestTutorial(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/tutorial.md")
}

// reader is a reader of the documentation, with a namespace of their own.
type reader struct {
	t       *testing.T
	environ []string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	c := cluster.Shared(t)
	bin := t.TempDir()
	for name, find := range map[string]func() (string, error){
		"lockstep": driver.Binary,
		"kubectl":  func() (string, error) { return c.Kubectl(t.Context()) },
		"helm":     func() (string, error) { return c.Helm(t.Context()) },
	} {
		program, err := find()
		if err == nil {
			err = os.Symlink(program, filepath.Join(bin, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	raw, err := os.ReadFile(c.Kubeconfig())
	if err == nil {
		err = os.WriteFile(kubeconfig, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t, append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))}
	r.shell("kubectl config set-context --current --namespace " + c.Namespace(t))
	return r
}

// run runs the blocks of a document that name this test, in their order. There must be one.
func (r *reader) run(path string) {
	r.t.Helper()
	f, err := document.Read(root, path)
	if err != nil {
		r.t.Fatal(err)
	}
	found := 0
	for _, b := range f.Blocks {
		if b.Test == r.t.Name() {
			found++
			r.t.Logf("%s:%d", path, b.Line)
			r.shell(b.Commands)
		}
	}
	if found == 0 {
		r.t.Errorf("%s has no commands for %s", path, r.t.Name())
	}
}

// limit is how long a block may take.
const limit = 3 * time.Minute

// shell runs commands, which must succeed.
func (r *reader) shell(commands string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeoutCause(r.t.Context(), limit, errors.New("commands of a document took too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = root, r.environ
	// The whole group ends, not only the shell.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	r.t.Logf("%s%s", commands, out)
	if err != nil {
		r.t.Fatal(errors.Join(err, context.Cause(ctx)))
	}
}
