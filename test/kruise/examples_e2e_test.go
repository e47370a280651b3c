// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"path/filepath"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
)

// Proves: Kruise: targets that are deleted or come later; scaling; the examples.
func TestExampleWithTraffic(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.example("workload.yaml", "kruise/service.yaml", "kruise/rollouttarget.yaml", "kruise/rollout-traffic.yaml")
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.mustRoute("vllm-leader 80, vllm-leader-canary 20")
}

// example applies files of examples/.
func (e *env) example(paths ...string) {
	e.T.Helper()
	for _, path := range paths {
		manifest := files.Read(e.T, filepath.Join("..", "..", "examples", path))
		e.Apply(string(manifest))
	}
}
