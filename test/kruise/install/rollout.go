// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"strings"
)

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
