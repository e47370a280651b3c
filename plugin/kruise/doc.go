// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kruise makes Kruise Rollouts, unmodified, drive LeaderWorkerSets. A RolloutTarget (package v1alpha1) is a
// StatefulSet-shaped view of one LeaderWorkerSet: Kruise's Rollout refers to it, Kruise's webhook sees its template
// change, and Kruise lowers its partition and reads its status. This package is the controller in between, a host of the driver's
// contract in style Partition.
//
// # How it works
//
// The [Reconciler] looks (target, workload, the driver's BatchContext), asks a pure function what is to be done next, does that one
// thing, and looks again. Nothing is remembered between two looks.
//
//   - The LeaderWorkerSet is adopted, so that nothing rolls by itself.
//   - What Kruise reads of a StatefulSet's spec is filled in. A new template of the LeaderWorkerSet changes the target's, and
//     nothing is released before: Kruise's webhook raises the partition in that very request.
//   - A partition below the number of groups begins a release, and is its target. No partition, or 0 while Kruise has
//     nothing to do with the target, promotes it.
//   - The template of the stable groups is the driver's own sign to roll back.
//   - status.observedGeneration follows only once all of this is done and the rest of the status is true of it: until
//     then Kruise waits.
package kruise
