// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package observer records what happens in a test's namespace, and judges it by one rule: no group leaves its revision unless a host's
// step or a user asked for the revision that it gets. Every end-to-end suite starts an observer with each namespace:
//
//	observer.Start(t, client, namespace)
//
// The rule reads no decision of Lockstep's. What asked for a revision is positive evidence in objects that were seen before the pod:
//
//   - The groups ran the revision before the workload was adopted.
//   - Argo observed its Rollout in progress for the revision.
//   - A BatchRelease of Kruise is in a batch of the revision, or one of the workload itself has a partition.
//   - The workload's record names a release of the revision, whose owner has no objects as above: a command or another client.
//
// Evidence ends with its object, with an abort, and with the rollback of the release that followed from it. A revision stays asked for while
// a pod runs it, while a release in flight names it, or while there is evidence.
package observer
