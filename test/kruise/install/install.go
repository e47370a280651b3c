// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install puts RolloutTargets into a test cluster with Kruise Rollouts, as config/kruise does in a real one.
package install

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

// Rights is what config/kruise has, but for the Deployment: the kind, the controller's account, what it and Kruise may do.
// It is for [cluster.WithKruise].
func Rights(ctx context.Context, c *cluster.Cluster) error {
	return c.ApplyConfig(ctx, "", deploy.Kruise)
}

// DriverInside is Rights, and the driver's own for one inside the controller's process.
func DriverInside(ctx context.Context, c *cluster.Cluster) error {
	return c.ApplyConfig(ctx, "", deploy.Kruise, deploy.KruiseDriver)
}

const rollout = `
apiVersion: lockstep.dev/v1alpha1
kind: RolloutTarget
metadata: {name: %[1]s}
spec: {workloadRef: {name: %[1]s}}
---
apiVersion: rollouts.kruise.io/v1beta1
kind: Rollout
metadata: {name: %[1]s}
spec:
  workloadRef: {apiVersion: lockstep.dev/v1alpha1, kind: RolloutTarget, name: %[1]s}
  strategy:
    canary:
      steps: [%[2]s]
`

// Rollout is the manifest of a RolloutTarget of the LeaderWorkerSet with this name, and of a Rollout of Kruise that refers to it,
// with these steps, each a YAML flow mapping such as {replicas: 25%}.
func Rollout(name string, steps ...string) []byte {
	return fmt.Appendf(nil, rollout, name, strings.Join(steps, ", "))
}
