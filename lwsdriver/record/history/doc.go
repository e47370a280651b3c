// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history says what an entry of a workload's history is in the cluster: a ControllerRevision of the driver's own.
// It has no I/O.
//
// LWS lists and deletes ControllerRevisions by the label leaderworkerset.sigs.k8s.io/name, and the StatefulSet controller
// adopts those that its selectors match, which have that label, too. So a snapshot never has it. It is owned by the
// workload, and goes with it.
package history
