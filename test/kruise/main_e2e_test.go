// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"cmp"
	"context"
	"flag"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

const (
	// parallel is how many tests run at once. They wait for most of their time.
	parallel = "6"
	// versionVariable chooses the version of Kruise Rollouts.
	versionVariable = "LOCKSTEP_KRUISE_VERSION"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	version := cmp.Or(os.Getenv(versionVariable), cluster.Kruise062)
	code := cluster.Main(m, cluster.WithGatewayAPI(), cluster.WithKruise(version, install))
	stopController()
	driver.Cleanup()
	os.Exit(code)
}

// install is what config/kruise has, but for the Deployment: a child process runs instead.
func install(ctx context.Context, c *cluster.Cluster) error {
	manifest, err := config.Kruise()
	if err != nil {
		return err
	}
	return c.Apply(ctx, "", manifest)
}
