// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// nodes is the number of nodes. A group is on one or on several.
const nodes = 2

func TestMain(m *testing.M) {
	options := append(Options(nodes), cluster.WithEndpointPicker())
	build := func() error { return cluster.Build(context.Background(), os.Stderr, options...) }
	run := func() int {
		defer driver.Cleanup()
		// Tests share two processors with their pods.
		return suite.Main(m, 4, options...)
	}
	os.Exit(cluster.MainOnNode(build, run))
}
