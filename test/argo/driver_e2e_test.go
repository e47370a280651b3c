// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// The driver is a process of its own, with its own account; it is killed and comes back in mid-release.
func TestDriverApart(t *testing.T) {
	c := cluster.Shared(t)
	d := driver.Start(t, driver.Kubeconfig(t, c), "")
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
	before := e.identities()
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.same(before)
	e.mustBeGivenBack()
	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.argo("promote", "--full", name)
	e.mustRest("v2")
	e.awaitRest("v2")
	e.mustBeGivenBack()
}
