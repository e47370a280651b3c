// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// parallelTests is the number of parallel tests. A third of the time they wait, for backoffs, deadlines and slow groups.
const parallelTests = 3

func TestMain(m *testing.M) {
	code := suite.Main(m, parallelTests, cluster.WithAudit(), cluster.WithGatewayAPI(), cluster.WithNodes(16, nodeResources()))
	driver.Cleanup()
	os.Exit(code)
}
