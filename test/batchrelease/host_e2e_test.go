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
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
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

// parallel is how many tests run at once.
const parallel = 6

// Tests that are not parallel run first, and start their own hosts; the others share one.
func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles())
	stopShared()
	driver.Cleanup()
	os.Exit(code)
}

// Users without the permission neither create nor change nor resume a BatchRelease of a LeaderWorkerSet.
//
// Proves: Hosts' objects: only users with `drive` create or change them.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	editor, operator := tenant.Pair(t, e.Cluster, e.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{"rollouts.kruise.io"}, Resources: []string{"batchreleases", "batchreleases/status"}, Verbs: []string{"*"},
	})
	plan := manifest(name, quarters("Partition"))
	e.Eventually("the policy refuses a BatchRelease", func(context.Context) error {
		return tenant.Refused(editor.Create(batchReleases, plan), e.Namespace, ":editor", "batchreleases.rollouts.kruise.io")
	})
	set := strings.NewReplacer("leaderworkerset.x-k8s.io/v1", "disaggregatedset.x-k8s.io/v1", "LeaderWorkerSet", "DisaggregatedSet").Replace(plan)
	err := tenant.Refused(editor.Create(batchReleases, set), e.Namespace, ":editor")
	assert.True(t, err == nil && set != plan, "of a DisaggregatedSet: %v", err)
	// The API server accepts what does not decode, and the host continues with all others.
	const tooMany = "99999999999"
	large := strings.NewReplacer("25%", tooMany, "50%", tooMany).Replace(plan)
	other := strings.NewReplacer("leaderworkerset.x-k8s.io/v1", "apps/v1", "LeaderWorkerSet", "Deployment", "name: vllm}\nspec", "name: other}\nspec").Replace(large)
	assert.NoError(t, editor.Create(batchReleases, other), "of a Deployment")
	require.NoError(t, operator.Create(batchReleases, plan), "an operator")
	e.awaitHeld()
	assert.NoError(t, operator.Create(batchReleases, strings.Replace(large, "name: vllm", "name: large", 2)), "an operator")
	suite.AwaitEvents(t, e.Kube, e.Namespace, "BatchRelease", "large", "Warning Undecodable")
	for what, request := range map[string][]string{
		"partition":  {`{"spec":{"releasePlan":{"batchPartition":2}}}`},
		"rollout id": {`{"metadata":{"labels":{"rollouts.kruise.io/rollout-id":"2"}}}`},
		"status":     {`{"status":{"phase":"Completed"}}`, "status"},
	} {
		assert.NoError(t, tenant.Refused(editor.Patch(batchReleases, name, request[0], request[1:]...), e.Namespace, ":editor"), what)
		assert.NoError(t, operator.Patch(batchReleases, name, request[0], request[1:]...), "%s: an operator", what)
	}
	// The release of the workload before would have no host.
	for _, ref := range []string{`{"name":"other"}`, `{"apiVersion":"apps/v1","kind":"Deployment"}`} {
		assert.ErrorContains(t, operator.Patch(batchReleases, name, `{"spec":{"workloadRef":`+ref+`}}`), "is immutable", "another workload")
	}
	assert.NoError(t, editor.Patch(batchReleases, "other", `{"spec":{"workloadRef":{"name":"another"}}}`), "of a Deployment")
}
