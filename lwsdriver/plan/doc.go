// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides the next write for a workload. [Decide] is a pure function from an [Observation] and an
// optional [Intent] to a [Decision]. The package has no client, clock, log or events, so tests drive whole releases through it, and every Decision is
// explained by its Observation.
//
//	decision, err := plan.Decide(observation, intent)
//
// A Decision has at most one [Action], which is one write. The caller applies it, observes again and calls [Decide] again
// until there is nothing to write. Actions are idempotent, and a lost Action is decided again
// from the next Observation.
package plan
