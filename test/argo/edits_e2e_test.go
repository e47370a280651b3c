// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// A promotion in full is about the template that the user saw: another one, which arrives while no controller runs, has its own steps.
//
// It is not parallel: the controller is that of all tests.
//
// Proves: Safety rule 11, Argo: undo, edits and backups while the Rollout is invalid, deleted or unattended.
func TestEditedAfterPromoteFullWhileDown(t *testing.T) {
	for _, test := range []struct{ name, flag string }{{"promote-full", "--full"}, {"skip-all-steps", "--skip-all-steps"}} {
		t.Run(test.name, func(t *testing.T) {
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			e.edit("v2")
			e.awaitPause(1)
			require.NoError(t, e.Cluster.KillComponent(cluster.Argo))
			e.argo("promote", test.flag, name)
			e.edit("v3")
			require.NoError(t, e.Cluster.StartComponent(t.Context(), cluster.Argo))
			e.awaitFirstStep("v3", before)
			e.argo("promote", "--full", name)
			e.awaitRest("v3")
		})
	}
}
