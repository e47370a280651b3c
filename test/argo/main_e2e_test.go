// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// parallel is how many tests run at once.
const parallel = 8

func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles(), cluster.WithTraefik(), cluster.WithAudit(), cluster.WithArgo(installPlugin))
	driver.Cleanup()
	os.Exit(code)
}
