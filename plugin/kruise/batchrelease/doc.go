// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package batchrelease executes Kruise Rollouts' BatchRelease objects over the driver's contract, with Kruise's state machine and
// status fields. It is a library for hosts: [Next] is a pure function of a BatchRelease and the driver's BatchContext, which returns
// the BatchRelease's new status and the next call of the driver. It reads no clock and keeps no state: all that a decision
// needs of the past is in the status.
//
// # A host
//
// A host runs this whenever the BatchRelease or the BatchContext changes:
//
//	status, call := batchrelease.Next(release, context, time.Now())
//	// Write status if it differs from release.Status, with the resourceVersion of release as its precondition.
//	err := call.Do(ctx, driver)
//	// Repeat until there is neither a new status nor a call.
//
// The status is written before the call is made, so that no step is unrecorded. [Refused] records in the status why the driver
// refused a call. A host also keeps [Finalizer] on the BatchRelease until it is [Over]. Package host is such a host, for a
// cluster without Kruise's own manager.
//
// # The state machine
//
//   - Preparing: the workload is adopted, and the release begins once its template differs from that of its groups.
//   - Progressing: for one batch after the other, Upgrading (the batch is requested), Verifying (its groups are not ready yet),
//     Ready (batchPartition forbids the next batch, or it is the last one).
//   - Finalizing: batchPartition was removed, so the release is promoted; or the BatchRelease is being deleted, so the release is
//     rolled back; or another host has ended it.
//   - Completed is final. With finalizingPolicy Immediate the driver may still work on the release, which the host follows to its
//     end.
package batchrelease
