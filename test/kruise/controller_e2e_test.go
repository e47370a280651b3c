// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
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

// Users without the permission create and change neither a RolloutTarget nor a Rollout of one. A BatchRelease is refused too: with a
// Rollout it is Kruise that creates it, with the permission of its own account.
//
// Proves: Hosts' objects: only users with `drive` create or change them.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	editor, operator := tenant.Pair(t, e.Cluster, e.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{"lockstep.dev", "rollouts.kruise.io"}, Resources: []string{"rollouttargets", "rollouttargets/status", "rollouts", "rollouts/status", "batchreleases"}, Verbs: []string{"*"},
	})
	e.Eventually("the policy refuses a RolloutTarget", func(context.Context) error {
		return tenant.Refused(editor.Create(targets, target(name)), e.Namespace, ":editor", "rollouttargets.lockstep.dev")
	})
	require.NoError(t, operator.Create(targets, target(name)), "an operator")
	// The API server accepts a time that does not decode, and the controller continues with all other targets.
	require.NoError(t, operator.Create(targets, strings.ReplaceAll(target("odd"), "{name: "+name+"}", "{name: odd}")), "an operator")
	odd := []byte(`{"status":{"conditions":[{"type":"A","status":"True","reason":"B","message":"","lastTransitionTime":"2020-01-01t00:00:00z"}]}}`)
	_, err := e.Objects(targets).Patch(t.Context(), "odd", types.MergePatchType, odd, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	suite.AwaitEvents(t, e.Kube, e.Namespace, "RolloutTarget", "odd", "Warning Undecodable")
	of := rollout("- replicas: 50%\n  pause: {}\n- replicas: 100%")
	assert.NoError(t, tenant.Refused(editor.Create(rollouts, of), e.Namespace, ":editor", "rollouts.rollouts.kruise.io"))
	require.NoError(t, operator.Create(rollouts, of), "an operator")
	batchRelease := `
apiVersion: rollouts.kruise.io/v1beta1
kind: BatchRelease
metadata: {name: forged}
spec:
  workloadRef: {apiVersion: lockstep.dev/v1alpha1, kind: RolloutTarget, name: vllm}
  releasePlan: {enableExtraWorkloadForCanary: false, batches: [{canaryReplicas: 100%}]}
`
	batchReleases := rollouts.GroupVersion().WithResource("batchreleases")
	assert.NoError(t, tenant.Refused(editor.Create(batchReleases, batchRelease), e.Namespace, ":editor"))
	e.awaitPhase("Healthy")
	// The whole status: Kruise may not have written one yet, and the API server validates it before the policy.
	forged := `{"status":{"canaryStatus":{"currentStepState":"StepReady","canaryReplicas":0,"canaryReadyReplicas":0,"canaryRevision":"",` +
		`"podTemplateHash":"","nextStepIndex":1,"finalisingStep":""}}}`
	for what, request := range map[string]struct {
		resource     schema.GroupVersionResource
		patch        string
		subresources []string
	}{
		"partition":  {targets, `{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":0}}}}`, nil},
		"annotation": {targets, `{"metadata":{"annotations":{"rollouts.kruise.io/in-progressing":"{}"}}}`, nil},
		"pause":      {rollouts, `{"spec":{"strategy":{"paused":true}}}`, nil},
		"status":     {rollouts, forged, []string{"status"}},
	} {
		assert.NoError(t, tenant.Refused(editor.Patch(request.resource, name, request.patch, request.subresources...), e.Namespace, ":editor"), what)
	}
	assert.NoError(t, operator.Patch(rollouts, name, `{"spec":{"strategy":{"paused":true}}}`), "an operator")
	// A deletion that promotes drives a release; another one does not.
	remove := func(u tenant.User) error {
		return u.Resource(targets).Namespace(e.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
	assert.NoError(t, remove(editor), "a deletion that rolls back")
	e.patch(targets, `{"spec":{"onDeletion":"Promote"}}`)
	assert.NoError(t, tenant.Refused(remove(editor), e.Namespace, ":editor", "may not delete"), "a deletion that promotes")
	const owned = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"own","uid":"0"}]}}`
	assert.NoError(t, tenant.Refused(editor.Patch(targets, name, owned), e.Namespace, ":editor"), "an owner that is gone")
	assert.NoError(t, remove(operator), "an operator")
	deployment := `
apiVersion: rollouts.kruise.io/v1beta1
kind: Rollout
metadata: {name: other}
spec:
  workloadRef: {apiVersion: apps/v1, kind: Deployment, name: other}
  strategy: {canary: {steps: [{replicas: 50%}]}}
`
	assert.NoError(t, editor.Create(rollouts, deployment), "a Rollout of a Deployment")
}
