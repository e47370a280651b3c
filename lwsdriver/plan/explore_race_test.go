// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package plan

// The race detector takes ten times as long, and finds nothing in a planner without goroutines.
func init() { *exploreStates /= 10 }
