// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package batchrelease executes Kruise Rollouts' BatchRelease objects over the driver's contract, with Kruise's state machine and
// status fields. It is a library for hosts: [Next] is a pure function of a BatchRelease and the driver's BatchContext. It says what the
// BatchRelease's status becomes and which call of the driver comes next, reads no clock, and remembers nothing: all that a
// decision needs of the past is in the status.
//
// # A host
//
// A host is a loop, to be run whenever the BatchRelease or the BatchContext changes:
//
//	status, call := batchrelease.Next(release, context, time.Now())
//	// Write status, if it is another than release.Status, with the resourceVersion of release as its precondition.
//	err := call.Do(ctx, driver)
//	// Again, until there is neither a new status nor a call.
//
// The status is written before the call is made, so that no step is taken that is not on record. What a call is refused for goes into
// the status with [Refused]. A host also keeps [Finalizer] on the BatchRelease until it is [Over]. Package host beside
// this one is such a host, for a cluster without Kruise's own manager.
//
// # The state machine
//
//   - Preparing: the workload is taken under hold, and the release begins once its template is another than its groups have.
//   - Progressing: Upgrading (the batch is asked for), Verifying (its groups are not ready yet), Ready (batchPartition or the
//     last batch keeps it there), for one batch after the other.
//   - Finalizing: batchPartition is gone, so the release is promoted; or the BatchRelease is deleted, so it is rolled
//     back; or somebody else has ended it.
//   - Completed: no other phase follows, whatever changes. With finalizingPolicy Immediate the driver may still be at
//     work, which is seen to its end.
package batchrelease
