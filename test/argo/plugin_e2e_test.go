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
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/argo/install"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

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
