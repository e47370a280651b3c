// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package converge decides the driver's next call for a host. A host maps what it shows, a Rollout's status or a partition, to a [Goal]
// with its evidence; [Next] compares the goal with the workload and returns a [Move].
//
// No group leaves its revision without evidence. A release begins, continues and is promoted only for the template revision that the
// goal names, and every request carries that revision, so that the driver refuses it if the template changes meanwhile. A host sets
// [Goal.Revision] from a step or a full promotion of this template only. An object that is absent, re-created, invalid or not yet
// observed is no evidence: its goal is [Hold].
//
// A release that was rolled back does not begin again, unless the host asks for another release.
package converge
