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

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
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
	code := cluster.Main(m, cluster.WithGatewayAPI(), cluster.WithKruise(version(), rights))
	stopController()
	stopServer()
	driver.Cleanup()
	os.Exit(code)
}

func version() string { return cmp.Or(os.Getenv(versionVariable), cluster.Kruise062) }

// apart says whether the driver is a `lockstep serve` of its own. Both ways are tested, one with each version of Kruise.
func apart() bool { return version() == cluster.Kruise063 }

// rights are those of config/kruise.
func rights(ctx context.Context, c *cluster.Cluster) error {
	if apart() {
		return install.Rights(ctx, c)
	}
	return install.DriverInside(ctx, c)
}
