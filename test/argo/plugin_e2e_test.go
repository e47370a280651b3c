// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/argo/install"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// The driver is a separate process with its own account, and Argo's has no permissions on LeaderWorkerSets. It is killed and
// restarted during the release.
//
// Proves: Argo: idle costs no request; a driver apart; handover; the examples.
func TestDriverApart(t *testing.T) {
	c := cluster.Shared(t)
	d := driver.Start(t, driver.Kubeconfig(t, c), "")
	withoutRights(t, c)
	reconfigure(t, "--driver", d.Address())
	e := newRouted(t, routed, slow())
	e.edit("v2")
	e.awaitPause(1)
	e.mustShare(10)
	d.Kill()
	e.argo("promote", name)
	e.await("the step says that the driver is away", func(r *v1alpha1.Rollout) bool {
		return strings.Contains(ran(r, 2).Message, "connect")
	})
	t.Log(ran(e.get(t.Context()), 2).Message)
	d.Restart()
	e.awaitPause(3)
	e.mustShare(50)
	before := e.Identities()
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.same(before)
	e.mustBeRestored()
	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.argo("promote", "--full", name)
	e.MustRest("v2")
	e.awaitRest("v2")
	e.mustBeRestored()
	// A Rollout that is deleted while no controller runs is missed once one does.
	require.NoError(t, c.KillComponent(cluster.Argo))
	e.delete(name)
	require.NoError(t, c.StartComponent(t.Context(), cluster.Argo))
	newRelease(t, step("promote: true")) // Argo starts the plugin for a Rollout
	e.Eventually("the workload is the user's again", func(ctx context.Context) error { return e.disowned(ctx, "v2") })
}

// withoutRights restricts Argo's account to the permissions of config/argo/remote, until the test ends.
func withoutRights(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	less := files.Read(t, filepath.Join("..", "..", "config", "argo", "remote", "rbac", "role.yaml"))
	more, err := deploy.ArgoRBAC()
	require.NoError(t, err)
	bindings := kubernetes.NewForConfigOrDie(c.RESTConfig()).RbacV1().ClusterRoleBindings()
	replace := func(ctx context.Context, binding string, manifest []byte) {
		assert.NoError(t, c.Apply(ctx, cluster.ArgoNamespace, manifest))
		assert.NoError(t, bindings.Delete(ctx, binding, metav1.DeleteOptions{}))
	}
	t.Cleanup(func() { replace(context.Background(), "lockstep-argo-events", more) })
	replace(t.Context(), "lockstep-argo-rollouts", less)
	account, err := c.ServiceAccountConfig(t.Context(), cluster.ArgoNamespace, cluster.ArgoServiceAccount)
	require.NoError(t, err)
	await.Nil(t, "the permissions are removed", func(ctx context.Context) error {
		_, err := lwsclient.NewForConfigOrDie(account).LeaderworkersetV1().LeaderWorkerSets("default").List(ctx, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("LeaderWorkerSets can be listed: %w", err)
		}
		return nil
	})
}

// parallel is how many tests run at once.
const parallel = 8

func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles(), cluster.WithTraefik(), cluster.WithAudit(), cluster.WithArgo(installPlugin))
	driver.Cleanup()
	os.Exit(code)
}

// Users without the permission neither create nor change nor promote a Rollout that uses the plugin; others' Rollouts are none of
// Lockstep's business.
//
// Proves: Hosts' objects: only users with `drive` create or change them.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.deploy()
	editor, operator := tenant.Pair(t, e.Cluster, e.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{"argoproj.io"}, Resources: []string{"rollouts", "rollouts/status"}, Verbs: []string{"*"},
	})
	manifest := rolloutManifest(name, pause+step("upgrade: 50%"))
	e.Eventually("the policy refuses a Rollout", func(context.Context) error {
		return tenant.Refused(editor.Create(rollouts, manifest), e.Namespace, ":editor", "rollouts.argoproj.io")
	})
	require.NoError(t, operator.Create(rollouts, manifest), "an operator")
	e.awaitRest("v1")
	for what, request := range map[string][]string{
		"restart":        {`{"spec":{"restartAt":"2026-01-01T00:00:00Z"}}`},
		"other steps":    {`{"spec":{"strategy":{"canary":{"steps":[]}}}}`},
		"without plugin": {`{"spec":{"strategy":{"canary":{"steps":null,"trafficRouting":null}}}}`},
		"pod template":   {`{"spec":{"template":{"metadata":{"annotations":{"lockstep.dev/revision":"other"}}}}}`},
		"promote":        {`{"status":{"promoteFull":true}}`, "status"},
		"abort":          {`{"status":{"abort":true}}`, "status"},
		"instance":       {`{"metadata":{"labels":{"argo-rollouts.argoproj.io/controller-instance-id":"other"}}}`},
		"mark":           {`{"metadata":{"annotations":{"lockstep.dev/seen-revision":"other"}}}`},
	} {
		assert.NoError(t, tenant.Refused(editor.Patch(rollouts, name, request[0], request[1:]...), e.Namespace, ":editor"), what)
		assert.NoError(t, operator.Patch(rollouts, name, request[0], request[1:]...), "%s: an operator", what)
	}
	assert.NoError(t, editor.Patch(rollouts, name, `{"metadata":{"labels":{"team":"a"}}}`), "a label")
	native := `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: native}
spec:
  replicas: 0
  selector: {matchLabels: {app: native}}
  template:
    metadata: {labels: {app: native}}
    spec: {containers: [{name: none, image: "example.com/none:v1"}]}
  strategy: {canary: {steps: [{setWeight: 50}]}}
`
	assert.NoError(t, editor.Create(rollouts, native), "a Rollout without the plugin")
}

// Values of Argo's magic cookie, which selects the kind of plugin.
const (
	cookie     = "ARGO_ROLLOUTS_RPC_PLUGIN"
	stepPlugin = "step"
	router     = "trafficrouter"
)

// installPlugin builds the plugin and installs it in Argo.
func installPlugin(ctx context.Context, c *cluster.Cluster) error {
	binary, err := driver.Binary()
	if err != nil {
		return err
	}
	return install.Plugin(ctx, c, binary)
}

// reconfigure restarts the controller with other arguments for the plugins, until the test ends.
func reconfigure(t *testing.T, args ...string) {
	t.Helper()
	c := cluster.Shared(t)
	binary := driver.Path(t)
	again := func(ctx context.Context, args ...string) {
		require.NoError(t, errors.Join(c.StopComponent(ctx, cluster.Argo), install.Configure(ctx, c, binary, args...), c.StartComponent(ctx, cluster.Argo)))
	}
	again(t.Context(), args...)
	t.Cleanup(func() { again(context.Background()) })
}

// killController kills the controller, checks that its plugins end too, and starts it again.
func killController(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	before := c.PluginProcesses()
	if err := c.KillComponent(cluster.Argo); err != nil {
		t.Error(err)
		return
	}
	await.Nil(t, "the plugins detect that the controller has ended", func(context.Context) error {
		if left := c.PluginProcesses(); len(left) > 0 {
			return fmt.Errorf("%v of %v are there", left, before)
		}
		return nil
	})
	assert.NoError(t, c.StartComponent(t.Context(), cluster.Argo))
}

// killPlugins ends the plugin processes of a kind the hard way.
func killPlugins(t *testing.T, c *cluster.Cluster, kind string) {
	t.Helper()
	killed := 0
	for _, id := range c.PluginProcesses() {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", id))
		if err != nil || !bytes.Contains(environment, []byte(cookie+"="+kind+"\x00")) {
			continue
		}
		assert.NoError(t, syscall.Kill(id, syscall.SIGKILL), "kill plugin process %d", id)
		killed++
	}
	assert.Equal(t, 1, killed, "plugin processes of kind %s were there", kind)
}

// The controller is not an administrator, and its plugins are two processes of one binary.
//
// Proves (test): Argo: published rights; unreadable steps; its progress deadline.
func TestInstallation(t *testing.T) {
	e := newRelease(t, step("upgrade: 25%")+pause+step("promote: true"))
	e.edit("v2")
	e.awaitPause(1)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
	assert.Len(t, e.Cluster.PluginProcesses(), 2, "plugin processes")
	cfg, err := e.Cluster.ServiceAccountConfig(t.Context(), cluster.ArgoNamespace, cluster.ArgoServiceAccount)
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "the controller's account may list nodes: %v", err)
}
