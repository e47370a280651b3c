// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kruise lets Kruise Rollouts, unmodified, release LeaderWorkerSets. A RolloutTarget (package v1alpha1) is a
// StatefulSet-shaped view of one LeaderWorkerSet: Kruise's Rollout refers to it, Kruise's webhook observes its template, and
// Kruise lowers its partition and reads its status. This package is the controller of RolloutTargets, a host of the driver's
// contract with style Partition.
//
// # How it works
//
// The [Reconciler] observes (target, workload, the driver's BatchContext), a pure function decides the next move, the Reconciler
// performs it, and observes again. It keeps no state between two observations.
//
//   - The LeaderWorkerSet is adopted, so that an edit of its template updates no group.
//   - The Reconciler fills in what Kruise reads of a StatefulSet's spec. A new template of the LeaderWorkerSet changes the
//     target's, and is not released before: Kruise's webhook raises the partition in that same request.
//   - A partition below the number of groups begins a release, and is its target. No partition, or 0 while no Rollout is in
//     progress on the target, promotes it.
//   - A target that is deleted in mid-release has the release rolled back or promoted, as its onDeletion says.
//   - When the workload gets the stable template again, the driver rolls back by itself.
//   - status.observedGeneration is updated only after all of this, together with the rest of the status: until then Kruise
//     waits.
package kruise
