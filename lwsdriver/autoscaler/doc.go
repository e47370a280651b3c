// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package autoscaler computes the patches that keep a HorizontalPodAutoscaler or a ScaledObject from scaling a workload during a
// release, and that restore it afterwards. It does no I/O.
//
// The user's configuration is annotated on the object itself, in the request that changes it. So it exists before the first
// effect, is consistent with it, and outlives the driver and the workload: a driver that finds the note without a release that
// needs it releases the object. A field that changes meanwhile is the user's new configuration, and stays.
package autoscaler
