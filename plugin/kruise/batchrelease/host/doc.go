// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host runs BatchReleases of Kruise Rollouts whose workload is a LeaderWorkerSet, in a cluster without Kruise's own
// manager. It is the shell around package batchrelease: whenever a BatchRelease or, by the driver's watch, its workload changes, it
// observes, writes the status, makes the driver's call, and repeats. It uses timers for retries only.
package host
