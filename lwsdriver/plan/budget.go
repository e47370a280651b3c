// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

// Tolerated is how many groups the user lets be away at once, at least one: a budget of none could never be kept.
func Tolerated(saved rolling, replicas int) int {
	return max(scaled(saved.MaxUnavailable, replicas, false), 1)
}
