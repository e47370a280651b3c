// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package disruption says what PodDisruptionBudgets mean for groups, and builds those that count groups. It is pure.
//
// A budget counts pods. In a LeaderWorkerSet no pod goes alone: LWS replaces the whole group, or the group serves nobody
// until the pod is back. So what a budget allows is one thing, and how many groups that costs another.
package disruption
