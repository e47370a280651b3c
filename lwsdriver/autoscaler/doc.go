// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package autoscaler says how an object that scales a workload is kept from it for a release, and given back as its user
// had it. It computes patches and does no I/O.
//
// What the user had is noted on the object itself, in the request that changes it. So it is there before the first effect,
// it can't be torn apart from it, and it outlives the driver and the workload: whoever finds the note and no release that
// needs it gives the object back. A field that somebody changed meanwhile is the user's new wish, and stays.
package autoscaler
