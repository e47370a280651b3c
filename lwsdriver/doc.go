// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lwsdriver is the engine: the WorkloadDriver of the contract for LeaderWorkerSet.
//
// Work on a workload is a loop of three parts, one file each: observe reads the caches and never writes; package plan
// decides, without any I/O, on at most one write; apply makes that write, with a precondition, and waits until the
// caches have seen it. Who starts the loop does not matter: an RPC records what the host wants and runs it, and so
// does every change in the cluster, which is how a release is finished although its host or an earlier driver is gone.
//
// The driver remembers nothing that it could not lose: what a release is stands in one annotation on the workload
// (see package record), all else is derived. Two drivers on one workload do no harm; one of them wins each write.
package lwsdriver
