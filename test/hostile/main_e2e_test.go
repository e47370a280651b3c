// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

func TestMain(m *testing.M) {
	code := suite.Main(m, 1)
	driver.Cleanup()
	os.Exit(code)
}
