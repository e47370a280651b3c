// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
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
