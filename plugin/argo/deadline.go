// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"time"
)

// defaultReleaseDeadline is the driver's progress deadline where the policy has none.
const defaultReleaseDeadline = 30 * time.Minute

// endless is a progressDeadlineSeconds that never passes.
const endless = 1<<31 - 1

// checkDeadline refuses a Rollout whose own progress deadline passes before the release's. Argo counts from the last
// change of its step, a running plugin step is no progress to it, and once the time is up it never calls the step again,
// not after the deadline was raised and not after a retry.
func (c *Config) checkDeadline(seconds int32) error {
	deadline := defaultReleaseDeadline
	if d := c.Policy.GetProgressDeadline().AsDuration(); d > 0 {
		deadline = d
	}
	if time.Duration(seconds)*time.Second >= deadline {
		return nil
	}
	return fmt.Errorf("nothing was changed: the Rollout's progressDeadlineSeconds is %d (Argo's default is %d), and once it has passed Argo "+
		"never runs the step again, while groups may take %s to become ready (progressDeadline): "+
		"set spec.progressDeadlineSeconds: %d in the Rollout; the release keeps its own deadline",
		seconds, defaultProgressDeadline, deadline, endless)
}
