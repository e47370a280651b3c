// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install puts RolloutTargets into a test cluster with Kruise Rollouts, as config/kruise does in a real one.
package install

import (
	"context"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Rights is what config/kruise has, but for the Deployment: the kind, the controller's account, what it and Kruise may do.
// It is for [cluster.WithKruise].
func Rights(ctx context.Context, c *cluster.Cluster) error {
	manifest, err := config.Kruise()
	if err != nil {
		return err
	}
	return c.Apply(ctx, "", manifest)
}

// DriverInside is Rights, and the driver's own for one inside the controller's process.
func DriverInside(ctx context.Context, c *cluster.Cluster) error {
	if err := Rights(ctx, c); err != nil {
		return err
	}
	manifest, err := config.KruiseDriver()
	if err != nil {
		return err
	}
	return c.Apply(ctx, "", manifest)
}
