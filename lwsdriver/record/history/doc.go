// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history converts between an entry of a workload's history and the object that stores it: a ControllerRevision
// of the driver, called a snapshot. It has no I/O. [Object] makes a new snapshot, [Patch] changes its metadata, [Read]
// and [Template] read it.
//
// LWS lists and deletes ControllerRevisions by the label leaderworkerset.sigs.k8s.io/name, and the StatefulSet controller
// adopts those that its selectors match, which include that label. So a snapshot never has it. It is owned by the
// workload, and deleted with it.
package history
