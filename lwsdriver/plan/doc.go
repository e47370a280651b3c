// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides the next write for a workload. [Decide] is a pure function from an [Observation] and an
// optional [Intent] to a [Decision]. The package has no client, clock, log or events, so tests drive whole releases through it,
// and every Decision is explained by its Observation.
//
//	decision, err := plan.Decide(observation, intent)
//
// A Decision has at most one [Action], which is one write. The caller applies it, observes again and calls [Decide] again
// until there is nothing to write. Actions are idempotent, and a lost Action is decided again from the next Observation.
//
// These terms are used everywhere:
//
//   - group: a leader pod and its workers, which are ready, restarted and deleted together
//   - stable side: the user's own groups; their revision is the one that served before the release, or the promoted one
//   - added: of a workload or its groups, created by the release beside the user's own
//   - canary: the added workload of the update revision; in blue-green it is also the second set
//   - in place: a release that adds no workload, since LWS replaces the user's own groups batch by batch
//   - share: the percentage of requests that the update revision gets; the weight is the share that the host requested
//   - hold: what keeps LWS from rolling by itself: a partition above all groups, or the bounds of a set
//   - restart: the deletion of a group's leader, so that LWS recreates the group
//   - set: a DisaggregatedSet; LWS creates a child of it for each role, slice and revision
//   - role, entry role: a kind of groups of a set, such as prefill; the role whose leaders get the requests
//   - slice: one of the copies that a set has of all its roles
//   - unit: a group of the entry role with its part of the groups of every other role, all in one slice
//   - bounds: how many groups the children of a set may have: of the stable revision at least Min and at most Max, of the update revision Exact
//   - shift: the replacement of old units by new ones in a set, a step of the bounds at a time
package plan
