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
	code := cluster.Main(m, cluster.WithGatewayAPI(), cluster.WithKruise(version(), install))
	stopController()
	stopServer()
	driver.Cleanup()
	os.Exit(code)
}

func version() string { return cmp.Or(os.Getenv(versionVariable), cluster.Kruise062) }

// apart says whether the driver is a `lockstep serve` of its own. Both ways are tested, one with each version of Kruise.
func apart() bool { return version() == cluster.Kruise063 }

// install is what config/kruise has, but for the Deployment: a child process runs instead.
func install(ctx context.Context, c *cluster.Cluster) error {
	manifest, err := config.Kruise()
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, "", manifest); err != nil || apart() {
		return err
	}
	if manifest, err = config.KruiseDriver(); err != nil {
		return err
	}
	return c.Apply(ctx, "", manifest)
}
