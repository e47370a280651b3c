// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package disruption judges what PodDisruptionBudgets mean for groups. It is pure.
//
// A budget counts pods. In a LeaderWorkerSet the eviction of one pod disrupts its whole group: LWS recreates it, or it can't serve
// until the pod is ready again. So a budget for several pods may disrupt as many groups.
package disruption
