// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// parallel is how many tests run at once.
const parallel = 6

// Tests that are not parallel run first, and start their own hosts; the others share one.
func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles())
	stopShared()
	driver.Cleanup()
	os.Exit(code)
}
