// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/terminal"
)

// viewer creates a service account with read-only permissions in this namespace, and returns its kubeconfig.
func (e *env) viewer() string {
	e.t.Helper()
	return e.account("viewer", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}})
}

// watch starts `lockstep watch` on a terminal.
func (e *env) watch(args ...string) *terminal.Terminal {
	e.t.Helper()
	path := driver.Path(e.t)
	return terminal.Start(e.t, exec.CommandContext(e.t.Context(), path, append([]string{"watch"}, args...)...), 120, 36)
}

// A user with read-only permissions sees a release with its broken group, its traffic and its end, and the next release.
//
// Proves: `lockstep watch`.
func TestWatch(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 4, 2))
	w.expose()
	viewer := e.viewer()
	p := e.watch("--namespace", e.namespace, "--kubeconfig", viewer)
	p.AwaitWords("no release is running, workloads under hold: 1")

	w.edit(image("v2"), withBehavior(cluster.BehaviorImagePull))
	routed := quarters()
	routed.Traffic = &pb.TrafficPolicy{StableService: "vllm-http", Ingresses: []string{"vllm"}}
	w.initialize("r1", routed)
	p.AwaitWords("Workload  "+e.namespace+"/"+w.name, "r1, Canary", "batch 1/3 (25%)", "batch 2/3 (50%)", "batch 3/3 (100%)")
	_, err := w.tryUpgrade("r1", 0, nil)
	require.NoError(t, err)
	_, err = w.driver.SetWeight(t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: 25})
	require.NoError(t, err)
	p.AwaitWords("1/3 (25%): 0/1 groups ready", "4/4 ready", "✖ ImagePullBackOff", "canary 0%, stable 100% of requests (routed, 25% requested)")
	canary := w.context().GetCanaryWorkload()
	e.eventually("the worker exists, too", func(context.Context) error {
		if pods := len(w.podsOf(canary)); pods != 2 {
			return fmt.Errorf("%d pods", pods)
		}
		return nil
	})
	w.patchPods(canary, heal, 0)
	p.AwaitWords("1/3 (25%): 1/1 groups ready", "canary 25%, stable 75% of requests (routed)")
	w.finalize("r1", rollback)
	p.AwaitWords(w.name+"  rolled back: ", "no release is running")

	w.edit(image("v3"), func(s *lws.LeaderWorkerSet) {
		delete(s.Spec.LeaderWorkerTemplate.WorkerTemplate.Annotations, cluster.AnnotationBehavior)
	})
	w.initialize("r2", policy("50%", "100%"))
	w.upgrade("r2", 0)
	p.AwaitWords("r2, Canary", "1/2 (50%): 2/2 groups ready")
	p.Resize(40, 10)
	p.Await("a status that is cut", func(text string) bool { return strings.HasSuffix(text, " more lines") })
	p.Resize(120, 36)
	w.finalize("r2", promote)
	p.AwaitWords(w.name + "  completed: ")
	p.Signal(syscall.SIGINT)
	code, text := p.Exit()
	assert.Zero(t, code, "exit code %d; what stays on the terminal:\n%s", code, text)
	w.mustBeIdle()

	refused := e.watch("-A", "--kubeconfig", viewer)
	if code, text := refused.Exit(); code != 1 || !strings.Contains(strings.ReplaceAll(text, "\n", ""), "[FORBIDDEN]") { // the terminal wraps lines
		t.Errorf("all namespaces with the permissions of one: exit code %d:\n%s", code, text)
	}
}

// The command reports that the driver is down, and continues once it has restarted.
//
// Proves: `lockstep watch`.
func TestWatchDriver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	p := e.watch("vllm", "--namespace", e.namespace, "--address", e.driver.Address())
	p.AwaitWords("holding (")
	e.driver.Kill()
	p.AwaitWords("lost the driver, retrying")
	e.driver.Restart()
	w.upgrade("r1", 0)
	p.AwaitWords("reconnected to the driver", "1/2 (50%): 1/1 groups ready")
	p.Signal(syscall.SIGINT)
	code, text := p.Exit()
	assert.Zero(t, code, "exit code %d after Ctrl-C:\n%s", code, text)
	w.finalize("r1", rollback)
	w.mustBeIdle()
}
