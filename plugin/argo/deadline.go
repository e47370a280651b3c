// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"

	"k8s.io/utils/ptr"
)

// defaultProgressDeadline is Argo's, in seconds.
const defaultProgressDeadline = 600

// endless is a progressDeadlineSeconds that never expires.
const endless = 1<<31 - 1

// checkDeadline rejects a Rollout whose own progress deadline can expire. Argo counts from the last change of the step index, so
// a running plugin step is no progress, however many groups become ready. After the deadline it never calls the step again, even if the
// deadline is raised or the Rollout retried, or it aborts the Rollout.
func checkDeadline(seconds *int32) error {
	s := ptr.Deref(seconds, defaultProgressDeadline)
	if s == endless {
		return nil
	}
	return fmt.Errorf("the Rollout's progressDeadlineSeconds is %d (Argo's default is %d), which Argo counts for each step, whatever "+
		"becomes ready in it, and after which it never runs the step again: set spec.progressDeadlineSeconds: %d; the release has a "+
		"deadline of its own (progressDeadline)", s, defaultProgressDeadline, endless)
}
