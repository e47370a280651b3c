// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/modelservers"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The examples of model servers with Kruise: in place, and the second group after an approval. One server after the other, because the
// nodes have GPUs for one release.
func TestModelServers(t *testing.T) {
	t.Parallel()
	for _, server := range modelservers.Names() {
		t.Run(server, func(t *testing.T) {
			e := newEnv(t)
			e.name, e.groups = server, 2
			e.apply(modelservers.Manifest(t, "../../examples", server, "kruise", e.namespace))
			e.awaitPhase("Healthy")
			e.edit("v1") // another image than the example's: the first release
			e.awaitPause(1)
			e.mustRoute(server + "-leader 50, " + server + "-leader-canary 50")
			e.approve()
			e.awaitDone()
			e.mustRest("v1")
			suite.DeleteWorkload(t, e.cluster, e.namespace, server)
		})
	}
}
