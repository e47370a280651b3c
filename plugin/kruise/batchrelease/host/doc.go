// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host runs BatchReleases of Kruise Rollouts whose workload is a LeaderWorkerSet, in a cluster without Kruise's own
// manager. It is the shell around package batchrelease: it looks, writes the status, makes the driver's call, and looks again, whenever a
// BatchRelease or, as the driver's watch tells, its workload has changed. There is no clock in it but for what has failed.
package host
