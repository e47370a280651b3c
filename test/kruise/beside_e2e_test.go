// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// The stock manager panics on a BatchRelease for a LeaderWorkerSet, so the host for those refuses to start beside it.
//
// Proves: Kruise: targets that are deleted, come later or twice; scaling; the examples.
func TestBatchReleaseHostRefusesToRunBesideKruise(t *testing.T) {
	t.Parallel()
	c := cluster.Shared(t)
	for _, read := range []func() ([]byte, error){config.BatchRelease, config.BatchReleaseDriver} {
		manifest, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(t.Context(), "", manifest); err != nil {
			t.Fatal(err)
		}
	}
	binary := driver.Path(t)
	kubeconfig, err := driver.AccountKubeconfig(c, config.Namespace, config.BatchReleaseServiceAccount)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, binary, "batchrelease", "--kubeconfig", kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || ctx.Err() != nil {
		t.Errorf("it ended with %v, %v", err, ctx.Err())
	}
	for _, words := range []string{"Kruise Rollouts' own manager is installed here", "panics", "lockstep kruise"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("it does not say %q:\n%s", words, out.String())
		}
	}
}
