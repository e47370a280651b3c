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

	"github.com/stretchr/testify/require"

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

// Proves (test): The commands of the documentation, run as a reader would.
func TestTutorial(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/tutorial.md")
}

const (
	// deploy creates the workload vllm, which the documentation is about.
	deploy = "kubectl apply -f examples/tutorial.yaml && kubectl wait --for=condition=Available leaderworkerset/vllm --timeout=2m"
	// change changes its template.
	change = "sed s/vllm:v1/vllm:v2/ examples/tutorial.yaml | kubectl apply -f -"
)

// Proves (test): The commands of the documentation, run as a reader would.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("README.md", deploy)
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestGuideCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/guide.md", deploy, change)
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestPlanCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/plan.md", deploy)
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestPreflightCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/plan.md", deploy)
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestHistoryCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/guide.md", deploy+" && lockstep adopt vllm")
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestAlertCommands(t *testing.T) {
	t.Parallel()
	newReader(t).run("docs/alerts.md", deploy+" && lockstep adopt vllm")
}

// TestInstallCommands has a control plane of its own: what it installs is cluster-scoped.
//
// Proves (test): The commands of the documentation, run as a reader would.
func TestInstallCommands(t *testing.T) {
	t.Parallel()
	c := suite.Own(t, cluster.WithInstallers())
	require.NoError(t, c.InstallPrometheusOperator(t.Context()))
	r := newReaderOf(t, c)
	r.run("config/chart/README.md")
	r.shell("helm uninstall lockstep --namespace lockstep-system --wait && kubectl delete namespace lockstep-system")
	r.run("docs/install.md", "", "", "",
		"kubectl delete namespace lockstep-system && kubectl apply -k config/base && kubectl apply -k config/deployment && "+
			"kubectl apply -k config/admission && kubectl apply -k config/preflight && kubectl apply -k config/access-aggregated && "+
			"kubectl apply -k config/monitoring")
}

// Proves (test): The commands of the documentation, run as a reader would.
func TestPermissionCommands(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	r.after("kubectl delete namespace team-a && kubectl delete -k config/access")
	r.run("docs/permissions.md", "kubectl apply -k config/access && kubectl create namespace team-a")
}

// kubectl runs the binary as its plugin, and help has the command that the user types.
//
// Proves (test): The commands of the documentation, run as a reader would.
func TestKubectlPlugin(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	r.shell(deploy + `
ln -s "$(command -v lockstep)" "$(dirname "$(command -v kubectl)")/kubectl-lockstep"
kubectl lockstep status vllm
kubectl lockstep abort --help | grep "^  kubectl lockstep abort NAME"`)
}

// reader is a reader of the documentation, with a namespace of their own.
type reader struct {
	t       *testing.T
	environ []string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	return newReaderOf(t, cluster.Shared(t))
}

func newReaderOf(t *testing.T, c *cluster.Cluster) *reader {
	t.Helper()
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
		require.NoError(t, err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	raw, err := os.ReadFile(c.Kubeconfig())
	if err == nil {
		err = os.WriteFile(kubeconfig, raw, 0o600)
	}
	require.NoError(t, err)
	r := &reader{t, append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))}
	r.shell("kubectl config set-context --current --namespace " + c.Namespace(t))
	return r
}

// run runs the blocks of a document that name this test, in their order. There must be one. Before each it runs what the reader is
// expected to have done.
func (r *reader) run(path string, before ...string) {
	r.t.Helper()
	f, err := document.Read(root, path)
	require.NoError(r.t, err)
	found := 0
	for _, b := range f.Blocks {
		if b.Test == r.t.Name() {
			r.t.Logf("%s:%d", path, b.Line)
			if found < len(before) {
				r.shell(before[found])
			}
			found++
			r.shell(b.Commands)
		}
	}
	if found < max(len(before), 1) {
		r.t.Errorf("%s has %d blocks of commands for %s", path, found, r.t.Name())
	}
}

// after runs commands at the test's end.
func (r *reader) after(commands string) {
	r.t.Cleanup(func() { r.shell(commands) })
}

// limit is how long a block may take.
const limit = 3 * time.Minute

// shell runs commands, which must succeed.
func (r *reader) shell(commands string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(r.t.Context()), limit, errors.New("commands of a document took too long"))
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
