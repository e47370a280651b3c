// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/netns"
)

func TestMain(m *testing.M) {
	build := func() error {
		return cluster.Build(context.Background(), os.Stderr, cluster.WithTraefik(), cluster.WithPrometheus())
	}
	run := func() int {
		defer driver.Cleanup()
		return cluster.Main(m, cluster.WithTraefik(), cluster.WithPrometheus(), cluster.WithManifest(deploy.Permissions))
	}
	os.Exit(netns.Main(build, run, cluster.PodCIDR))
}
