// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// parallel is how many tests run at once.
const parallel = 6

func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles(), cluster.WithGatewayAPI(), cluster.WithKruise(rights))
	stopController()
	stopServer()
	driver.Cleanup()
	os.Exit(code)
}

// apart reports whether the driver is a separate `lockstep serve`. Both modes are tested, one with each version of Kruise.
func apart(c *cluster.Cluster) bool { return c.Versions().Kruise != "v0.6.2" }

// rights are the permissions of config/kruise.
func rights(ctx context.Context, c *cluster.Cluster) error {
	if apart(c) {
		return install.Rights(ctx, c)
	}
	return install.DriverInside(ctx, c)
}
