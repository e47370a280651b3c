// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivererr builds and reads the errors of the contract in proto/lockstep/v1alpha1.
//
// Each error is a gRPC status whose ErrorInfo carries one [pb.ErrorReason]. The reason decides the code ([Code]) and
// what the caller does about it ([Advice]); SPEC.md prints the same table, and a test walks both. Drivers build errors
// with [New] and [Invalid], hosts read them with [Reason] and [Retryable].
package drivererr
