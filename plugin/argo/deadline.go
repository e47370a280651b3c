// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"time"
)

// defaultReleaseDeadline is the driver's progress deadline if the policy has none.
const defaultReleaseDeadline = 30 * time.Minute

// defaultProgressDeadline is Argo's, in seconds.
const defaultProgressDeadline = 600

// endless is a progressDeadlineSeconds that never expires.
const endless = 1<<31 - 1

// checkDeadline rejects a Rollout whose own progress deadline expires before the release's. Argo counts from the last change
// of the step index, so a running plugin step is no progress, and after the deadline it never calls the step again, even if
// the deadline is raised or the Rollout retried.
func (c *Config) checkDeadline(seconds int32) error {
	deadline := defaultReleaseDeadline
	if d := c.Policy.GetProgressDeadline().AsDuration(); d > 0 {
		deadline = d
	}
	if time.Duration(seconds)*time.Second >= deadline {
		return nil
	}
	return fmt.Errorf("nothing was changed: the Rollout's progressDeadlineSeconds is %d (Argo's default is %d), and after it Argo "+
		"never runs the step again, while groups may take %s to become ready (progressDeadline): "+
		"set spec.progressDeadlineSeconds: %d in the Rollout; the release keeps its own deadline",
		seconds, defaultProgressDeadline, deadline, endless)
}
