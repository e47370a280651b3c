// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"flag"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// parallel is how many tests run at once. They wait for most of their time.
const parallel = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := cluster.Main(m, cluster.WithTraefik(), cluster.WithAudit(), cluster.WithArgo(installPlugin))
	driver.Cleanup()
	os.Exit(code)
}
