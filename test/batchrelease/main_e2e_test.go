// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"flag"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// parallel is how many tests run at once. They wait for most of their time.
const parallel = "6"

// Tests that are not parallel run first, and start hosts of their own; the others share one.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := cluster.Main(m, cluster.WithAudit())
	stopShared()
	driver.Cleanup()
	os.Exit(code)
}
