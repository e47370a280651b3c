// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
)

// parallel is how many tests run at once. They wait for most of their time.
const parallel = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := cluster.Main(m, cluster.WithGatewayAPI(), cluster.WithKruise(rights))
	stopController()
	stopServer()
	driver.Cleanup()
	os.Exit(code)
}

// apart reports whether the driver is a `lockstep serve` of its own. Both ways are tested, one with each version of Kruise.
func apart(c *cluster.Cluster) bool { return c.Versions().Kruise != "v0.6.2" }

// rights are those of config/kruise.
func rights(ctx context.Context, c *cluster.Cluster) error {
	if apart(c) {
		return install.Rights(ctx, c)
	}
	return install.DriverInside(ctx, c)
}
