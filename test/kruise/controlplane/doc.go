// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane plugs a Lockstep driver into Kruise Rollouts itself: it implements the interfaces of Kruise's canary-style,
// blue-green-style and partition-style control planes over the driver's gRPC contract. It is what Kruise would need to release
// LeaderWorkerSets with its own manager, kept compiling and behaving by this module's tests; nothing of it is in the lockstep binary.
//
// It is a module of its own, since Kruise's packages need older Kubernetes libraries than Lockstep's.
package controlplane
